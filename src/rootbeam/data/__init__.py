"""From files of events to arrays: reading, sources, splits, histories, simulation."""
