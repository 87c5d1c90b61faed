"""Reading items: `item_id`, optional `title`, `category`, `available`, and feature columns, one row per item."""

from __future__ import annotations

from pathlib import Path

import polars as pl


def read_items(source: str | Path | pl.DataFrame) -> pl.DataFrame:
    return source if isinstance(source, pl.DataFrame) else pl.read_parquet(source)
