"""Reading events: every format gives the same canonical rows, and the report counts what happened."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared_data import shared

from rootbeam.core.errors import EventsError
from rootbeam.data.events import Events, frame_of, read_events
from rootbeam.data.validate import integers_if_spelled_so, printed_length

T0 = datetime(2024, 5, 1, 12, 0, 0)
ROWS = [("u1", "a", T0), ("u1", "b", T0 + timedelta(seconds=1)), ("u2", "a", T0 + timedelta(days=3))]
EXPECTED = pl.DataFrame(
    {"user_id": [r[0] for r in ROWS], "item_id": [r[1] for r in ROWS], "timestamp": [r[2] for r in ROWS]},
    schema={"user_id": pl.String, "item_id": pl.String, "timestamp": pl.Datetime("ms")},
).with_columns(weight=pl.lit(1.0, pl.Float32))


def epoch_ms(time: datetime) -> int:
    return (time - datetime(1970, 1, 1)) // timedelta(milliseconds=1)


def separated(separator: str) -> str:
    header = separator.join(["user_id", "item_id", "timestamp"])
    return (
        "\n".join([header, *(f"{u}{separator}{i}{separator}{epoch_ms(t) // 1000}" for u, i, t in ROWS)])
        + "\n"
    )


def json_lines() -> str:
    return "".join(
        json.dumps({"user_id": u, "item_id": i, "timestamp": t.isoformat() + "Z"}) + "\n" for u, i, t in ROWS
    )


def recbole() -> str:
    return separated("\t").replace(
        "user_id\titem_id\ttimestamp", "user_id:token\titem_id:token\ttimestamp:float"
    )


TEXTS = {"e.csv": separated(","), "e.tsv": separated("\t"), "e.jsonl": json_lines(), "e.ndjson": json_lines()}
TEXTS["e.inter"] = recbole()


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


# -- formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("zipped", [False, True])
def test_text_formats(tmp_path: Path, name: str, zipped: bool) -> None:
    path = tmp_path / (name + ".gz" * zipped)
    data = TEXTS[name].encode()
    path.write_bytes(gzip.compress(data) if zipped else data)
    events = read_events(path)
    assert events.frame.equals(EXPECTED)
    assert events.frame.schema == EXPECTED.schema
    assert events.report.rows == events.report.kept == 3
    assert events.report.timed
    assert events.report.files == (str(path),)


def test_parquet_file_folder_and_glob(tmp_path: Path) -> None:
    EXPECTED[:2].write_parquet(tmp_path / "b1.parquet")
    EXPECTED[2:].write_parquet(tmp_path / "b2.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.txt").write_text("not events")
    for source in (tmp_path, str(tmp_path), f"{tmp_path}/b*.parquet"):
        events = read_events(source)
        assert events.frame.equals(EXPECTED)
        assert [Path(file).name for file in events.report.files] == ["b1.parquet", "b2.parquet"]
    assert read_events(tmp_path / "b1.parquet").frame.equals(EXPECTED[:2])


def test_a_folder_of_recbole_files_gives_its_events(tmp_path: Path) -> None:
    write(tmp_path, "ml.inter", recbole())
    write(tmp_path, "ml.item", "item_id:token\tname:token_seq\na\tx y\n")
    assert read_events(tmp_path).frame.equals(EXPECTED)


def test_frame(tmp_path: Path) -> None:
    assert read_events(EXPECTED).frame.equals(EXPECTED)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_blank_lines_and_byte_order_mark(tmp_path: Path, ending: str, last: bool) -> None:
    text = "\ufeff" + TEXTS["e.csv"].replace("u2", "\nu2").replace("\n", ending) + ending * 2
    path = write(tmp_path, "e.csv", text if last else text.rstrip())
    assert read_events(path).frame.equals(EXPECTED)


def test_quoted_fields_may_hold_separators_newlines_and_quotes(tmp_path: Path) -> None:
    ids = ["a,b", "line\nbreak", 'a "quoted" word', " kept blanks ", "é"]
    rows = "".join(f'"{text.replace(chr(34), chr(34) * 2)}","x"\n' for text in ids)
    path = write(tmp_path, "e.csv", "user_id,item_id\n" + rows)
    for batch_bytes in (1, 7, 2**20):
        assert read_events(path, batch_bytes=batch_bytes).frame["user_id"].to_list() == ids


# -- ids -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "dtype"),
    [
        (["1", "22", "-3", "0"], pl.Int64),
        (["1", "007"], pl.String),
        (["1", "+5"], pl.String),
        (["1", "-0"], pl.String),
        (["1", "9223372036854775808"], pl.String),
        (["1", "12.0"], pl.String),
        (["1", " 2"], pl.String),
        (["1", "x"], pl.String),
    ],
)
@pytest.mark.parametrize("batch_bytes", [1, 2**20])
def test_ids_of_text_come_back_as_they_were_written(
    tmp_path: Path, ids: list[str], dtype: pl.DataType, batch_bytes: int
) -> None:
    path = write(tmp_path, "e.csv", "user_id,item_id\n" + "".join(f"{each},i\n" for each in ids))
    users = read_events(path, batch_bytes=batch_bytes).frame["user_id"]
    assert users.dtype == dtype
    assert users.cast(pl.String).to_list() == ids


def test_json_ids_keep_their_type(tmp_path: Path) -> None:
    lines = [{"user_id": "1", "item_id": 5}, {"user_id": "2", "item_id": 6}]
    path = write(tmp_path, "e.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    frame = read_events(path).frame
    assert frame["user_id"].to_list() == ["1", "2"]
    assert frame["item_id"].to_list() == [5, 6]


def test_strings_win_over_integers_across_files(tmp_path: Path) -> None:
    pl.DataFrame({"user_id": [1, 2], "item_id": [7, 8]}).write_parquet(tmp_path / "1.parquet")
    pl.DataFrame({"user_id": ["x", "1"], "item_id": [9, 7]}).write_parquet(tmp_path / "2.parquet")
    events = read_events(tmp_path)
    assert events.frame["user_id"].to_list() == ["1", "2", "x"]  # the second ("1", 7) is a duplicate
    assert events.frame["item_id"].to_list() == [7, 8, 9]
    assert events.report.duplicates == 1


def test_other_id_types(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"user_id": [1.0, 2.0], "item_id": pl.Series(["a", "b"], dtype=pl.Categorical)},
    )
    read = read_events(frame).frame
    assert read["user_id"].to_list() == [1, 2]
    assert read.schema["user_id"] == pl.Int64
    assert read["item_id"].to_list() == ["a", "b"]
    assert read_events(frame.with_columns(user_id=pl.Series([3, 4], dtype=pl.UInt8))).frame["user_id"][0] == 3


# -- time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-05-01", datetime(2024, 5, 1)),
        ("2024-05-01T12:30", datetime(2024, 5, 1, 12, 30)),
        ("2024-05-01 12:30:15", datetime(2024, 5, 1, 12, 30, 15)),
        ("2024-05-01T12:30:15Z", datetime(2024, 5, 1, 12, 30, 15)),
        ("2024-05-01T12:30:15.5Z", datetime(2024, 5, 1, 12, 30, 15, 500_000)),
        ("2024-05-01T12:30:15.123456789+00:00", datetime(2024, 5, 1, 12, 30, 15, 123_000)),
        ("2024-05-01T12:30:15+02:00", datetime(2024, 5, 1, 10, 30, 15)),
        ("2024-05-01T00:30:15-0130", datetime(2024, 5, 1, 2, 0, 15)),
        ("2024-05-01T12:30:15+02", datetime(2024, 5, 1, 10, 30, 15)),
        ("1970-01-01", datetime(1970, 1, 1)),
        ("2099-12-31T23:59:59.999", datetime(2099, 12, 31, 23, 59, 59, 999_000)),
        ("1714566615", datetime(2024, 5, 1, 12, 30, 15)),
        ("1714566615123", datetime(2024, 5, 1, 12, 30, 15, 123_000)),
        ("1714566615.25", datetime(2024, 5, 1, 12, 30, 15, 250_000)),
        (" 1714566615 ", datetime(2024, 5, 1, 12, 30, 15)),
        ("0", datetime(1970, 1, 1)),
    ],
)
def test_times_as_text(tmp_path: Path, text: str, expected: datetime) -> None:
    path = write(tmp_path, "e.csv", f"user_id,item_id,timestamp\nu,i,{text}\n")
    assert read_events(path).frame["timestamp"].to_list() == [expected]


@pytest.mark.parametrize(
    "times",
    [
        pl.Series([1714564800], dtype=pl.Int64),
        pl.Series([1714564800], dtype=pl.UInt32),
        pl.Series([1714564800000], dtype=pl.Int64),
        pl.Series([1714564800.0], dtype=pl.Float64),
        pl.Series([T0], dtype=pl.Datetime("ns")),
        pl.Series([T0], dtype=pl.Datetime("us")),
        pl.Series([T0.replace(tzinfo=UTC)]),
        pl.Series([datetime(2024, 5, 1, 14, tzinfo=timezone(timedelta(hours=2)))]).dt.convert_time_zone(
            "Europe/Paris"
        ),
        pl.Series(["2024-05-01T14:00:00+02:00"]),
    ],
)
def test_times_as_columns(times: pl.Series) -> None:
    frame = pl.DataFrame({"user_id": ["u"], "item_id": ["i"], "timestamp": times})
    assert read_events(frame).frame["timestamp"].to_list() == [T0]


def test_date_column() -> None:
    frame = pl.DataFrame({"user_id": ["u"], "item_id": ["i"], "timestamp": [date(2024, 5, 1)]})
    assert read_events(frame).frame["timestamp"].to_list() == [datetime(2024, 5, 1)]


def test_the_median_of_the_first_rows_decides_the_unit() -> None:
    seconds = pl.DataFrame(
        {"user_id": [1] * 3, "item_id": [1, 2, 3], "timestamp": [5, 1_700_000_000, 1_700_000_001]}
    )
    assert read_events(seconds).frame["timestamp"][0] == datetime(1970, 1, 1, 0, 0, 5)
    millis = seconds.with_columns(pl.Series("timestamp", [5, 1_700_000_000_000, 1_700_000_000_001]))
    assert read_events(millis).frame["timestamp"][0] == datetime(1970, 1, 1, 0, 0, 0, 5000)


# -- columns, weights, ratings -------------------------------------------------------------------------------


def test_renaming(tmp_path: Path) -> None:
    path = write(tmp_path, "e.csv", "uid,user_id,thing\nu1,other,i1\n")
    frame = read_events(path, columns={"user_id": "uid", "item_id": "thing"}).frame
    assert frame.row(0) == ("u1", "i1", 1.0)


def test_every_column_is_typed(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "e.csv",
        "weight,request_id,propensity,rating,event_type,position,timestamp,item_id,user_id,ignored\n"
        "0.5,9,0.25,4.5,view,9007199254740993,86400,i,u,zzz\n"
        "2,,1,,,1,86401,i,u,\n",
    )
    frame = read_events(path).frame
    assert frame.schema == {
        "user_id": pl.String,
        "item_id": pl.String,
        "timestamp": pl.Datetime("ms"),
        "position": pl.Int64,
        "weight": pl.Float32,
        "event_type": pl.String,
        "rating": pl.Float64,
        "propensity": pl.Float64,
        "request_id": pl.String,
    }
    second = datetime(1970, 1, 2, 0, 0, 1)
    assert frame.rows() == [
        ("u", "i", datetime(1970, 1, 2), 9007199254740993, 0.5, "view", 4.5, 0.25, "9"),
        ("u", "i", second, 1, 2.0, None, None, 1.0, None),
    ]


def test_weights_and_min_rating() -> None:
    frame = pl.DataFrame(
        {
            "user_id": [1, 1, 1, 1],
            "item_id": [1, 2, 3, 4],
            "event_type": ["view", "hide", "buy", "buy"],
            "rating": [5.0, 5.0, 2.0, 3.0],
            "weight": [2.0, 1.0, 1.0, 1.0],
        }
    )
    events = read_events(frame, weights={"view": 1, "hide": 0, "buy": 5}, min_rating=3)
    assert events.frame.select("item_id", "weight").rows() == [(1, 2.0 * 1), (4, 1.0 * 5)]
    report = events.report
    assert (report.dropped_zero_weight, report.dropped_low_rating, report.kept, report.rows) == (1, 1, 2, 4)


# -- duplicates and repeats ----------------------------------------------------------------------------------


def test_exact_duplicates_go_and_repeats_stay() -> None:
    rows = [("u", "a", 10), ("u", "b", 11), ("u", "a", 10), ("u", "a", 12), ("v", "a", 10), ("u", "b", 11)]
    frame = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    for batch_bytes in (1, 2**20):
        events = read_events(frame, batch_bytes=batch_bytes)
        kept = [rows[0], rows[1], rows[3], rows[4]]
        assert events.frame["item_id"].to_list() == [row[1] for row in kept]
        assert events.frame["timestamp"].dt.epoch("s").to_list() == [row[2] for row in kept]
        assert events.report.duplicates == 2
        assert events.report.repeat_rate == 1 / 4  # (u, a) a second time, of four events kept


def test_without_time_a_repeat_is_a_duplicate_and_the_report_says_so() -> None:
    events = read_events(pl.DataFrame({"user_id": [1, 1], "item_id": [2, 2]}))
    assert events.report.duplicates == 1
    assert not events.report.timed
    assert any("cannot be told from a duplicate" in note for note in events.report.notes())


def test_positions_tell_repeats_from_duplicates() -> None:
    events = read_events(pl.DataFrame({"user_id": [1, 1, 1], "item_id": [2, 2, 2], "position": [0, 1, 1]}))
    assert (events.report.kept, events.report.duplicates, events.report.repeat_rate) == (2, 1, 1 / 2)


# -- frame_of ------------------------------------------------------------------------------------------------


def test_frame_of() -> None:
    events = read_events(EXPECTED)
    assert frame_of(events) is events.frame
    assert frame_of(events.frame) is events.frame
    assert frame_of(events.frame.clear()).height == 0  # a split may be empty; it is canonical all the same
    assert frame_of(EXPECTED.drop("weight")).equals(EXPECTED)
    with pytest.raises(EventsError, match="list"):
        frame_of([1, 2])  # type: ignore[arg-type]


def test_items_and_events_agree_on_the_type_of_ids() -> None:
    events = read_events(
        pl.DataFrame({"user_id": [1], "item_id": [7]}), items=pl.DataFrame({"item_id": ["7", "x"]})
    )
    assert events.items is not None
    assert events.frame["item_id"].to_list() == ["7"]
    assert events.items["item_id"].to_list() == ["7", "x"]
    assert events.frame["user_id"].to_list() == [1]


# -- properties ----------------------------------------------------------------------------------------------

ID_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=8)
IDS = st.one_of(st.integers(-(2**63), 2**63 - 1), ID_TEXT)
EVENT_ROWS = st.one_of(st.integers(-(2**63), 2**63 - 1), ID_TEXT).flatmap(
    lambda kind: st.lists(
        st.tuples(
            ID_TEXT if isinstance(kind, str) else st.integers(-(2**63), 2**63 - 1),
            ID_TEXT,
            st.integers(200_000_000_000, 4_102_444_799_999),  # above the limit that means milliseconds
            st.one_of(st.none(), st.floats(-1e6, 1e6)),
        ),
        min_size=1,
        max_size=12,
    )
)


def canonical(rows: list[tuple[int | str, str, int, float | None]]) -> pl.DataFrame:
    frame = pl.DataFrame(
        {name: [row[index] for row in rows] for index, name in enumerate(["user_id", "item_id"])}
        | {"timestamp": [row[2] for row in rows], "rating": [row[3] for row in rows]},
        schema_overrides={"rating": pl.Float64},
    )
    return frame.with_columns(pl.col("timestamp").cast(pl.Datetime("ms")))


def written(frame: pl.DataFrame, path: Path) -> Path:
    numbers = frame.with_columns(pl.col("timestamp").dt.epoch("ms"))
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in numbers.to_dicts()), "utf-8"
        )
    else:
        numbers.write_csv(path, separator="\t" if path.suffix == ".tsv" else ",", quote_style="non_numeric")
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv", ".jsonl"])
@given(rows=EVENT_ROWS, batch_bytes=st.integers(1, 400))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip(
    tmp_path: Path, suffix: str, rows: list[tuple[int | str, str, int, float | None]], batch_bytes: int
) -> None:
    """What was written is read back: the first of every set of equal rows, ids unchanged, in order."""
    unique = list(dict.fromkeys(rows))
    events = read_events(written(canonical(rows), tmp_path / f"e{suffix}"), batch_bytes=batch_bytes)
    users = events.frame["user_id"].to_list()
    items = events.frame["item_id"].to_list()
    spelled_as_text = suffix in (".csv", ".tsv")
    assert [str(user) for user in users] == [str(row[0]) for row in unique]
    assert [str(item) for item in items] == [row[1] for row in unique]
    if not spelled_as_text:
        assert users == [row[0] for row in unique]
        assert items == [row[1] for row in unique]
    assert events.frame["timestamp"].dt.epoch("ms").to_list() == [row[2] for row in unique]
    if "rating" in events.frame.columns:
        assert events.frame["rating"].to_list() == [row[3] for row in unique]
    else:
        assert all(row[3] is None for row in unique)
    assert events.report.duplicates == len(rows) - len(unique)
    assert events.report.repeat_rate == pytest.approx(1 - len({row[:2] for row in unique}) / len(unique))


def test_benchmark_data_is_read_whole() -> None:
    path = shared("ml-100k/events.parquet")
    events: Events = read_events(path)
    assert events.report.rows == events.report.kept == 100_000
    assert events.frame["user_id"].n_unique() == 943
    assert events.frame["item_id"].n_unique() == 1682


@settings(max_examples=200)
@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=1, max_size=20))
def test_the_printed_length_is_that_of_print(numbers: list[int]) -> None:
    assert printed_length(pl.Series(numbers, dtype=pl.Int64)) == sum(len(str(n)) for n in numbers)


@pytest.mark.parametrize("odd", ["007", "+7", "-0", " 7", "7 ", "-9223372036854775808", "1e3", "", "७"])
def test_one_id_that_print_would_spell_otherwise_keeps_all_as_text(odd: str) -> None:
    ids = ["1", "-20", odd]
    assert integers_if_spelled_so(pl.Series(ids)).to_list() == ids


def test_integers_spelled_as_printed_become_integers() -> None:
    assert integers_if_spelled_so(pl.Series(["1", "-20", "0", "100"])).to_list() == [1, -20, 0, 100]
