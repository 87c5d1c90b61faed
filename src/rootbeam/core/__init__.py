"""What everything else stands on: errors, array types, configuration, ids, bundles."""
