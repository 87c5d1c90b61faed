"""Bad input by the dozen: one line that says what was given, what was needed, and what to do."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rootbeam.core.errors import EventsError
from rootbeam.data.events import ReadOptions, read_events

GOOD = "user_id,item_id,timestamp\n"
TIMED = "u,i,1700000000\n"


def refused(source: Any, **options: Any) -> str:
    with pytest.raises(EventsError) as caught:
        read_events(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- files that are none -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("e.csv", b"", ["e.csv", "is empty"]),
        ("e.csv", b"\n\n", ["is empty"]),
        ("e.csv", b"user_id,item_id\n", ["no rows"]),
        ("e.csv", b"user_id,item_id", ["no rows"]),
        ("e.jsonl", b"", ["is empty"]),
        ("e.inter", b"", ["is empty"]),
        ("e.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", ["binary", "UTF-8"]),
        ("e.csv", "user_id,item_id\nu,i\n".encode("utf-16"), ["UTF-16"]),
        ("e.csv", b"us\xe9r,item_id\nu,i\n", ["header", "UTF-8"]),
        (
            "e.csv",
            b"user,itemId,ts\nu,i,1\n",
            ["no column user_id", "user, itemId, ts", "--columns user_id=user"],
        ),
        ("e.csv", b"user_id,itemId\nu,i\n", ["no column item_id", "--columns item_id=itemId"]),
        ("e.csv", b"user_id,itm_id\nu,i\n", ["--columns item_id=itm_id"]),
        ("e.csv", b"user_id;item_id\nu;i\n", ["no column user_id", "user_id;item_id"]),
        ("e.csv", b"user_id,item_id,user_id\nu,i,u\n", ["2 columns named user_id"]),
        ("e.jsonl", b"[1]\n", ["JSON object", "[1]"]),
        ("e.jsonl", b"hello\n", ["JSON object", "hello"]),
        ("e.jsonl", b'{"user": 1, "item_id": 2}\n', ["no column user_id", "--columns user_id=user"]),
        ("e.parquet", b"", ["Parquet", "complete"]),
        ("e.parquet", b"PAR1 and then nothing", ["Parquet", "complete"]),
        ("e.txt", b"user_id,item_id\nu,i\n", ['".txt"', ".csv", "rename or convert"]),
        ("e", b"user_id,item_id\nu,i\n", ["extension"]),
        ("e.xlsx", b"PK", ['".xlsx"']),
        ("e.parquet.gz", b"", ["extension"]),
        ("e.csv.gz", b"user_id,item_id\nu,i\n", ["cannot be read", "complete"]),
        (
            "e.csv.gz",
            gzip.compress(b"user_id,item_id\n" + b"u,i\n" * 1000, mtime=0)[:-20],
            ["cannot be read"],
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, content: bytes, words: list[str]) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    message = refused(path)
    for word in words:
        assert word in message


def test_truncated_parquet(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    pl.DataFrame({"user_id": [1], "item_id": [2]}).write_parquet(path)
    path.write_bytes(path.read_bytes()[:-7])
    assert "Parquet" in refused(path)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "missing.csv")
    assert "matches no file" in refused(f"{tmp_path}/*.csv")
    assert "holds no file of events" in refused(tmp_path)
    assert "int" in refused(3)
    (tmp_path / "dataset.json").write_text("{")
    assert "dataset.json" in refused(tmp_path)
    (tmp_path / "dataset.json").write_text('{"format": 99}')
    assert "99" in refused(tmp_path)


def test_a_canonical_folder_without_events_says_so(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text('{"format": 1}')
    assert "no rows" in refused(tmp_path)


# -- rows that cannot be used --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD + TIMED + ",i,1700000000\n", ["row 3", "user_id is missing"]),
        (GOOD + TIMED + '"",i,1700000000\n', ["row 3", "user_id is empty"]),
        (GOOD + "u,,1700000000\n", ["row 2", "item_id is missing"]),
        (GOOD + "x" * 513 + ",i,1\n", ["row 2", "user_id " + "x" * 20 + "…", "longer than 512"]),
        (GOOD + TIMED + "u,i,\n", ["row 3", "timestamp is missing"]),
        (GOOD + TIMED * 2 + "u,i,soon\n", ["row 4", "timestamp soon", "seconds since 1970"]),
        (GOOD + TIMED + "u,i,nan\n", ["timestamp nan is not finite"]),
        (GOOD + TIMED + "u,i,inf\n", ["timestamp inf is not finite"]),
        (GOOD + TIMED + "u,i,253402300799\n", ["timestamp 253402300799 is in the year 9999", "before 2100"]),
        (GOOD + TIMED + "u,i,4102444800\n", ["in the year 2100", "before 2100"]),
        (GOOD + TIMED + "u,i,-1\n", ["in the year 1969", "from 1970"]),
        (GOOD + TIMED + "u,i,1e300\n", ["no time between 1970 and 2100"]),
        (GOOD + TIMED + "u,i,2024-05-01\n", ["timestamp 2024-05-01", "seconds since 1970"]),
        (GOOD + "u,i,2024-05-01\nu,i,1700000000\n", ["row 3", "ISO 8601"]),
        (GOOD + "u,i,2024-13-01\n", ["ISO 8601"]),
        (GOOD + "u,i,2023-02-29\n", ["ISO 8601"]),
        (GOOD + "u,i,2024-05-01T24:00\n", ["ISO 8601"]),
        (GOOD + "u,i,2024-05-01T12:60\n", ["ISO 8601"]),
        (GOOD + "u,i,2024-05-01T12:00:00 Paris\n", ["ISO 8601"]),
        (GOOD + "u,i,01/05/2024\n", ["ISO 8601"]),
        (GOOD + "u,i,2100-01-01\n", ["in the year 2100"]),
        (GOOD + "u,i,1969-12-31T23:59:59Z\n", ["in the year 1969"]),
        (GOOD + TIMED + "u,i\n", ["row 3", '"u,i" has 2 fields', "needed 3"]),
        (GOOD + TIMED + "u,i,1,9\nu,i\n", ["row 3", "has 4 fields", "row 4", "has 2 fields"]),
        (GOOD + TIMED + "\nu\n", ["row 4", "has 1 fields"]),
        ("user_id,item_id,rating\nu,i,five\n", ["row 2", "rating five is not a number"]),
        ("user_id,item_id,rating\nu,i,inf\n", ["rating inf is not finite"]),
        ("user_id,item_id,weight\nu,i,-1\n", ["weight -1 is negative"]),
        ("user_id,item_id,weight\nu,i,\n", ["weight is missing"]),
        ("user_id,item_id,weight\nu,i,1e39\n", ["weight 1e39 is not finite"]),
        ("user_id,item_id,propensity\nu,i,0\n", ["propensity 0 is no probability"]),
        ("user_id,item_id,propensity\nu,i,1.5\n", ["propensity 1.5 is no probability"]),
        ("user_id,item_id,position\nu,i,1.5\n", ["position 1.5 is not a whole number"]),
        ("user_id,item_id,position\nu,i,\n", ["position is missing"]),
        ("user_id,item_id,position\nu,i,first\n", ["position first"]),
    ],
)
@pytest.mark.parametrize("batch_bytes", [1, 2**20])
def test_bad_rows_of_text(tmp_path: Path, text: str, words: list[str], batch_bytes: int) -> None:
    path = tmp_path / "e.csv"
    path.write_text(text)
    message = refused(path, batch_bytes=batch_bytes)
    assert str(path) in message
    assert "quarantine" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"caf\xe9,i,1700000000", ["row 3", "UTF-8"]),
        (b'"open,i,1700000000', ["row 3", "quote"]),
        (b'"a"b,i,1700000000', ["row 3", "quotes"]),
    ],
)
def test_damaged_lines(tmp_path: Path, line: bytes, words: list[str]) -> None:
    path = tmp_path / "e.csv"
    path.write_bytes((GOOD + TIMED).encode() + line + b"\n")
    message = refused(path)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1, 2]", ["row 2", "no JSON object"]),
        ("7", ["no JSON object"]),
        ("not json", ["not JSON"]),
        ('{"user_id": 1, "item_id": 2', ["not JSON"]),
        ('{"user_id": 1, "item_id": 2, "timestamp": 1700000001} x', ["not JSON"]),
        ('{"user_id": null, "item_id": 2, "timestamp": 1700000001}', ["user_id is missing"]),
        ('{"item_id": 2, "timestamp": 1700000001}', ["user_id is missing"]),
        ('{"user_id": "", "item_id": 2, "timestamp": 1700000001}', ["user_id is empty"]),
        ('{"user_id": true, "item_id": 2, "timestamp": 1700000001}', ["user_id true"]),
        ('{"user_id": 1.5, "item_id": 2, "timestamp": 1700000001}', ["user_id 1.5"]),
        ('{"user_id": [1], "item_id": 2, "timestamp": 1700000001}', ["user_id [1]"]),
        ('{"user_id": 1, "item_id": {"a": 1}, "timestamp": 1700000001}', ["item_id"]),
        ('{"user_id": 1, "item_id": 2, "timestamp": [1]}', ["timestamp [1]"]),
        ('{"user_id": 1, "item_id": 2, "timestamp": true}', ["timestamp true"]),
        ('{"user_id": 1, "item_id": 2}', ["timestamp is missing"]),
    ],
)
def test_bad_json_lines(tmp_path: Path, line: str, words: list[str]) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"user_id": 1, "item_id": 2, "timestamp": 1700000000}\n' + line + "\n")
    message = refused(path)
    assert "1 of 2 rows" in message
    for word in ("row 2", *words):
        assert word in message


def frame(**columns: Any) -> pl.DataFrame:
    return pl.DataFrame({"user_id": [1], "item_id": [2]} | columns)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (frame(user_id=[float("nan")]), ["row 1", "user_id nan", "whole number"]),
        (frame(user_id=[1.5]), ["user_id 1.5"]),
        (frame(user_id=[None]), ["user_id is missing"]),
        (frame(user_id=pl.Series([2**63], dtype=pl.UInt64)), ["64 bits"]),
        (frame(user_id=[[1]]), ["user_id holds List(Int64)", "strings or integers"]),
        (frame(user_id=[True]), ["user_id holds Boolean"]),
        (frame(user_id=[b"x"]), ["user_id holds Binary"]),
        (frame(item_id=["x" * 600]), ["item_id " + "x" * 20 + "…"]),
        (frame(timestamp=[True]), ["timestamp holds Boolean"]),
        (frame(timestamp=[[1]]), ["timestamp holds List"]),
        (frame(timestamp=[float("inf")]), ["not finite"]),
        (frame(rating=[[1]]), ["rating holds List"]),
        (frame(rating=[float("nan")]), ["rating", "not finite"]),
        (frame(event_type=[1.5]), ["event_type holds Float64"]),
        (frame(position=[float("nan")]), ["position", "whole number"]),
        (pl.DataFrame({"user": [1], "item": [2]}), ["the frame", "--columns user_id=user"]),
        (frame().clear(), ["no rows"]),
    ],
)
def test_bad_frames(source: pl.DataFrame, words: list[str]) -> None:
    message = refused(source)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": {"user": "uid"}}, ["user", "canonical"]),
        ({"columns": {"rating": "stars"}}, ["no column rating", "stars"]),
        ({"weights": {"view": 1}}, ["no column event_type"]),
        ({"min_rating": 3}, ["no column rating"]),
        ({"on_bad_rows": "ignore"}, ['"ignore"', "quarantine"]),
        ({"weights": {"view": -1}}, ["-1", ">= 0"]),
        ({"weights": {"view": float("nan")}}, ["nan"]),
        ({"batch_bytes": 0}, ["batch_bytes"]),
    ],
)
def test_bad_options(options: dict[str, Any], words: list[str]) -> None:
    message = refused(frame(), **options)
    for word in words:
        assert word in message


def test_event_types_without_a_weight_are_listed() -> None:
    events = pl.DataFrame({"user_id": [1, 1], "item_id": [1, 2], "event_type": ["view", "buy"]})
    message = refused(events, weights={"view": 1})
    assert "without a weight: buy" in message
    assert "found are buy, view" in message
    assert "event_type is missing" in refused(frame(event_type=[None]), weights={"view": 1})
    assert "rating is missing" in refused(frame(rating=[None]), min_rating=1)


def test_nothing_left_is_an_error() -> None:
    assert "no event is left of 1 rows" in refused(frame(rating=[1.0]), min_rating=3)
    assert "1 of weight 0" in refused(frame(event_type=["hide"]), weights={"hide": 0})


def test_files_of_one_log_are_all_timed_or_none_is(tmp_path: Path) -> None:
    frame(timestamp=[1_700_000_000]).write_parquet(tmp_path / "a.parquet")
    frame().write_parquet(tmp_path / "b.parquet")
    message = refused(tmp_path)
    assert "b.parquet has neither timestamp nor position" in message
    assert "a.parquet has timestamp" in message


# -- many bad rows -------------------------------------------------------------------------------------------


def test_the_first_ten_are_named_and_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text(GOOD + TIMED + "u,i,x\n" * 25 + "u,j,1700000000\n")
    for batch_bytes in (1, 60, 2**20):
        message = refused(path, batch_bytes=batch_bytes)
        assert "25 of 27 rows" in message
        assert message.count(" row ") == 10
        assert "row 3:" in message
        assert "row 12:" in message
        assert "row 13:" not in message
        assert "15 more" in message


@pytest.mark.parametrize("batch_bytes", [1, 40, 2**20])
def test_quarantine_sets_every_bad_row_aside(tmp_path: Path, batch_bytes: int) -> None:
    path = tmp_path / "e.csv"
    path.write_text(GOOD + "u,i,1700000000\n,i,1\nu,i,x\nu,i\n\nv,j,1700000001\nw,k,-5\n")
    rejected = tmp_path / "deep" / "rejected.parquet"
    events = read_events(path, on_bad_rows="quarantine", rejected=rejected, batch_bytes=batch_bytes)
    assert events.frame["user_id"].to_list() == ["u", "v"]
    assert (events.report.rows, events.report.kept, events.report.rejected) == (6, 2, 4)
    written = pl.read_parquet(rejected)
    assert written.columns == ["file", "row", "column", "value", "reason"]
    assert written.select("row", "column", "value").rows() == [
        (3, "user_id", None),
        (4, "timestamp", "x"),
        (5, None, "u,i"),
        (8, "timestamp", "-5"),
    ]
    assert written["file"].unique().to_list() == [str(path)]


def test_quarantine_without_bad_rows_writes_an_empty_file(tmp_path: Path) -> None:
    rejected = tmp_path / "rejected.parquet"
    events = read_events(frame(), on_bad_rows="quarantine", rejected=rejected)
    assert events.report.rejected == 0
    assert pl.read_parquet(rejected).height == 0


def test_ids_of_bad_rows_do_not_decide_the_type(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("user_id,item_id\n1,2\n,x\n3,4\n")
    events = read_events(path, on_bad_rows="quarantine", rejected=tmp_path / "r.parquet")
    assert events.frame.select("user_id", "item_id").rows() == [(1, 2), (3, 4)]


def test_options_are_checked_when_made() -> None:
    with pytest.raises(EventsError, match="canonical=source"):
        ReadOptions(columns={"uid": "user_id"})
