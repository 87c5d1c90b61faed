"""Trees over items: how a first one is built."""
