"""One recipe a file, to be read top to bottom."""
