"""From a scorer to the best k items: exact search and the filters every search obeys."""
