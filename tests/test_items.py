"""Reading items: the same frame from every format, and a sentence for what cannot be used."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from shared_data import shared

from rootbeam.core.errors import EventsError
from rootbeam.data.events import read_events
from rootbeam.data.items import read_items

ROWS = [
    {
        "item_id": "a1",
        "title": "One, the first",
        "category": "7",
        "available": True,
        "price": 1.5,
        "year": 1999,
    },
    {"item_id": "b2", "title": "Zwei", "category": None, "available": False, "price": None, "year": 2004},
]
EXPECTED = pl.DataFrame(ROWS)
CSV = 'year,title,item_id,price,available,category\n1999,"One, the first",a1,1.5,true,7\n2004,Zwei,b2,,0,\n'


def refused(source: Any, **options: Any) -> str:
    with pytest.raises(EventsError) as caught:
        read_items(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".csv.gz", ".tsv", ".jsonl", ".jsonl.gz"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"items{suffix}"
    if suffix == ".parquet":
        EXPECTED.write_parquet(path)
    else:
        text = "".join(json.dumps(row) + "\n" for row in ROWS) if "json" in suffix else CSV
        if suffix == ".tsv":
            text = text.replace(",", "\t").replace("One\t", "One,")
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    items = read_items(path)
    assert items.columns[:4] == ["item_id", "title", "category", "available"]
    assert items.select(EXPECTED.columns).equals(EXPECTED)


def test_frames_keep_features_of_any_kind() -> None:
    frame = pl.DataFrame({"genres": [["x", "y"], []], "item_id": [1, 2], "vector": [[0.5], [1.5]]})
    items = read_items(frame)
    assert items.columns == ["item_id", "genres", "vector"]
    assert items.equals(frame.select("item_id", "genres", "vector"))


def test_recbole_items(tmp_path: Path) -> None:
    path = tmp_path / "ml.item"
    path.write_text(
        "item_id:token\tmovie_title:token_seq\tyear:float\tclass:token_seq\tpoint:float_seq\n"
        '1\tToy "Story"\t1995\tAnimation Comedy\t0.5 1.5\n'
    )
    items = read_items(path)
    assert items.row(0, named=True) == {
        "item_id": "1",
        "movie_title": ["Toy", '"Story"'],
        "year": 1995.0,
        "class": ["Animation", "Comedy"],
        "point": [0.5, 1.5],
    }
    titled = read_items(path, columns={"title": "movie_title"})
    assert titled["title"].to_list() == ['Toy "Story"']


def test_renaming_hides_the_column_of_that_name() -> None:
    frame = pl.DataFrame({"sku": [1], "item_id": ["internal"], "name": ["One"]})
    items = read_items(frame, columns={"item_id": "sku", "title": "name"})
    assert items.rows(named=True) == [{"item_id": 1, "title": "One"}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1, 0, None], [True, False, None]),
        (["Yes", "no", ""], [True, False, None]),
        (["TRUE", "false", None], [True, False, None]),
        ([True, False, None], [True, False, None]),
        ([1.0, 0.0, None], [True, False, None]),
    ],
)
def test_available(given: list[Any], expected: list[bool | None]) -> None:
    items = read_items(pl.DataFrame({"item_id": [1, 2, 3], "available": given}))
    assert items.schema["available"] == pl.Boolean
    assert items["available"].to_list() == expected


def test_ids_written_with_leading_zeros_stay_strings(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text("item_id,code\n007,010\n8,9\n")
    assert read_items(path).rows() == [("007", "010"), ("8", "9")]


def test_equal_rows_are_one_item() -> None:
    assert read_items(pl.DataFrame({"item_id": [1, 1], "title": ["x", "x"]})).height == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (pl.DataFrame({"item": [1]}), ["no column item_id", "--columns item_id=item"]),
        (pl.DataFrame({"item_id": [1, None]}), ["row 2: item_id is missing", "1 of 2 items"]),
        (pl.DataFrame({"item_id": ["a", ""]}), ["item_id is empty"]),
        (pl.DataFrame({"item_id": [1.5]}), ["item_id 1.5"]),
        (pl.DataFrame({"item_id": [[1]]}), ["item_id holds List(Int64)"]),
        (pl.DataFrame({"item_id": [1, 1], "title": ["x", "y"]}), ["more than once", "one row per item"]),
        (
            pl.DataFrame({"item_id": [1], "available": ["perhaps"]}),
            ["row 1", "perhaps", "neither true nor false"],
        ),
        (pl.DataFrame({"item_id": [1], "category": [{"a": 1}]}), ["category holds Struct"]),
        (7, ["int"]),
    ],
)
def test_bad_items(source: Any, words: list[str]) -> None:
    message = refused(source)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("i.csv", b"", ["is empty"]),
        ("i.csv", b"\x00\x01", ["binary"]),
        ("i.csv", b"item_id,title\n1,a,b\n", ["row 2", "3 fields"]),
        ("i.csv", b"item_id,title,title\n1,a,b\n", ["two columns of one name"]),
        ("i.parquet", b"PAR1", ["Parquet"]),
        ("i.jsonl", b"[1]\n", ["one object a line"]),
        ("i.doc", b"x", ["extension"]),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, words: list[str]) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    message = refused(path)
    for word in words:
        assert word in message
    assert "is no file" in refused(tmp_path / "missing.csv")


def test_benchmark_items() -> None:
    items = read_items(shared("ml-1m/items.parquet"))
    assert items.columns == ["item_id", "title", "category", "genres"]
    events = read_events(shared("ml-1m/events.parquet"), items=shared("ml-1m/items.parquet"))
    assert events.items is not None
    assert events.frame.join(events.items, on="item_id", how="anti").height == 0
