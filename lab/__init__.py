"""Recipes of papers and rivals, outside the package: `python -m lab run PAPER --data NAME`."""
