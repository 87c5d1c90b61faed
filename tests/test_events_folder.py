"""Streaming into a canonical folder: the same events and the same report as reading into memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rootbeam.core.errors import EventsError
from rootbeam.data import duplicates, spool
from rootbeam.data.duplicates import count_distinct, find_duplicates, row_hashes
from rootbeam.data.events import ReadOptions, read_events, scan_batches, write_canonical


def random_log(rows: int, seed: int, with_text: bool = False) -> pl.DataFrame:
    """Few users, items and times, so that duplicates and repeats are many."""
    rng = np.random.default_rng(seed)
    users = [str(user) for user in rng.integers(0, 9, rows)]
    if with_text:
        users[-1] = "the last user"
    return pl.DataFrame(
        {
            "user_id": users,
            "item_id": rng.integers(0, 9, rows),
            "timestamp": rng.integers(1_700_000_000, 1_700_000_005, rows),
            "rating": rng.integers(1, 3, rows),
        }
    )


@pytest.mark.parametrize("with_text", [False, True])
@pytest.mark.parametrize("batch_bytes", [1, 97, 2**20])
@pytest.mark.parametrize("part_rows", [1, 64, 10**6])
def test_batches_and_parts_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_text: bool, batch_bytes: int, part_rows: int
) -> None:
    """Duplicates across parts, and a first string id in the last row, are found at any batch size."""
    monkeypatch.setattr(spool, "PART_ROWS", part_rows)
    log = random_log(150, seed=1, with_text=with_text)
    source = tmp_path / "log.csv"
    log.write_csv(source)
    expected = read_events(source, batch_bytes=2**24)
    first_rows = log.unique(maintain_order=True)
    assert expected.report.duplicates == 150 - first_rows.height > 0
    assert expected.frame["user_id"].dtype == (pl.String if with_text else pl.Int64)

    options = ReadOptions(batch_bytes=batch_bytes)
    report = write_canonical(source, tmp_path / "out", options)
    assert report == expected.report
    assert read_events(tmp_path / "out").frame.equals(expected.frame)
    assert pl.concat(list(scan_batches(source, options))).equals(expected.frame)
    assert read_events(source, batch_bytes=batch_bytes).frame.equals(expected.frame)


def test_the_folder(tmp_path: Path) -> None:
    items = pl.DataFrame({"item_id": [1, 2], "title": ["one", "two"]})
    frame = pl.DataFrame(
        {"user_id": ["a", "a", "b"], "item_id": [1, 2, 1], "timestamp": [86400, 86401, 86400]}
    )
    report = write_canonical(frame, tmp_path / "toy", name="Toy", licence="CC0", items=items)
    about = json.loads((tmp_path / "toy" / "dataset.json").read_text())
    expected = {
        "format": 1,
        "name": "Toy",
        "licence": "CC0",
        "rows": 3,
        "users": 2,
        "items": 2,
        "timed": True,
    }
    assert expected.items() <= about.items()
    assert sorted(path.name for path in (tmp_path / "toy").iterdir()) == [
        "dataset.json",
        "events",
        "items.parquet",
    ]
    assert [path.name for path in (tmp_path / "toy" / "events").iterdir()] == ["part-00000.parquet"]
    events = read_events(tmp_path / "toy")
    assert events.report.kept == report.kept == 3
    assert events.items is not None
    assert events.items.equals(items)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]  # nothing temporary is left


def test_files_with_different_columns_share_one_schema(tmp_path: Path) -> None:
    pl.DataFrame({"user_id": [1], "item_id": [1], "rating": [4.0]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"user_id": ["x"], "item_id": [1], "event_type": ["buy"]}).write_parquet(
        tmp_path / "b.parquet"
    )
    write_canonical(tmp_path, tmp_path / "out", ReadOptions(batch_bytes=1))
    for frame in (read_events(tmp_path / "out").frame, read_events(f"{tmp_path}/?.parquet").frame):
        assert frame.select("user_id", "rating", "event_type").rows() == [
            ("1", 4.0, None),
            ("x", None, "buy"),
        ]


def test_json_lines_are_streamed(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    lines = [
        {"user_id": 1, "item_id": "a"},
        {"user_id": "x", "item_id": 5, "rating": 4},
        {"user_id": 1, "item_id": "a"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for batch_bytes in (1, 40, 2**20):
        events = read_events(path, batch_bytes=batch_bytes)
        assert events.frame.select("user_id", "item_id", "rating").rows() == [
            ("1", "a", None),
            ("x", "5", 4.0),
        ]
        assert pl.concat(list(scan_batches(path, ReadOptions(batch_bytes=batch_bytes)))).equals(events.frame)


def test_quarantine_goes_into_the_folder(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user_id": ["a", None], "item_id": [1, 2]})
    report = write_canonical(frame, tmp_path / "out", ReadOptions(on_bad_rows="quarantine"))
    assert report.rejected == 1
    assert pl.read_parquet(tmp_path / "out" / "rejected.parquet")["row"].to_list() == [2]


def test_bad_input_leaves_nothing_behind(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user_id": ["a", None], "item_id": [1, 2]})
    with pytest.raises(EventsError, match="row 2: user_id is missing"):
        write_canonical(frame, tmp_path / "out")
    with pytest.raises(EventsError, match="row 2"):
        next(scan_batches(frame))
    assert list(tmp_path.iterdir()) == []


def test_other_folders_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(EventsError, match="not a data set folder"):
        write_canonical(pl.DataFrame({"user_id": [1], "item_id": [1]}), tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "irreplaceable"


def test_names_that_look_like_patterns(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user_id": [1, 1], "item_id": [1, 1]})
    assert write_canonical(frame, tmp_path / "a[1]*?").duplicates == 1
    assert read_events(tmp_path / "a[1]*?").report.kept == 1


def test_rows_that_are_dropped_do_not_decide_the_type_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("user_id,item_id,event_type\n1,1,buy\nx,2,hide\n3,3,buy\n")
    for batch_bytes in (1, 20, 2**20):
        events = read_events(path, weights={"buy": 1, "hide": 0}, batch_bytes=batch_bytes)
        assert events.frame["user_id"].to_list() == [1, 3]


def test_a_canonical_folder_can_be_rewritten_from_itself(tmp_path: Path) -> None:
    log = random_log(50, seed=2)
    write_canonical(log, tmp_path / "out")
    before = read_events(tmp_path / "out").frame
    write_canonical(tmp_path / "out", tmp_path / "out", replace(ReadOptions(), min_rating=2))
    assert read_events(tmp_path / "out").frame.equals(before.filter(pl.col("rating") >= 2))


# -- duplicates ----------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40),
    st.integers(1, 5),
    st.integers(1, 3),
)
@settings(deadline=None, max_examples=80)
def test_a_shared_hash_is_no_proof(rows: list[tuple[int, int]], modulus: int, rows_at_a_time: int) -> None:
    """Whatever the hashes, as long as equal rows have equal ones, exactly the later equal rows are found."""
    frame = pl.DataFrame(rows, schema={"user_id": pl.Int64, "item_id": pl.Int64}, orient="row")
    hashes = row_hashes(frame) % np.uint64(modulus)
    expected = [index for index, row in enumerate(rows) if row in rows[:index]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "ROWS_AT_A_TIME", rows_at_a_time)
        assert find_duplicates(hashes, lambda indices: frame[indices]).tolist() == expected


def test_hashes_do_not_depend_on_the_batch() -> None:
    log = random_log(100, seed=3)
    whole = row_hashes(log)
    assert whole.tolist() == [row_hashes(log[row : row + 1])[0] for row in range(100)]


@given(st.lists(st.one_of(st.integers(-5, 50), st.integers(-(2**63), 2**63 - 1)), max_size=30))
def test_distinct_values_are_counted_whether_close_together_or_far_apart(values: list[int]) -> None:
    assert count_distinct(np.array(values, dtype=np.int64)) == len(set(values))
    hashes = [value % 2**64 for value in values]
    assert count_distinct(np.array(hashes, dtype=np.uint64)) == len(set(hashes))
