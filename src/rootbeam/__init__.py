"""Rootbeam: an interaction log becomes a recommender."""
