"""Public data sets: every loader on a tiny file in its true format, against frames written out by hand."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from rootbeam.core.errors import EventsError
from rootbeam.data.contract import COLUMNS, is_canonical
from rootbeam.data.folder import events_glob, is_folder, read_meta, write_folder
from rootbeam.data.sources import SourceInfo, fetch, names

YAHOO = "ydata-ymusic-rating-study-v1_0"
REVIEW_2018 = {
    "overall": 5.0,
    "vote": "3",
    "verified": True,
    "style": {"Format:": " Hardcover"},
    "reviewText": 'He said "asin": really',
    "reviewerID": "A1C6M8LCIX4M6M",
    "asin": "0001713353",
    "unixReviewTime": 1123804800,
}
NO_FLAGS = "|".join("0" * 17)


def at(seconds: float) -> datetime:
    return datetime(1970, 1, 1) + timedelta(seconds=seconds)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[misc, arg-type]


def put(folder: Path, files: dict[str, str | bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        raw = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(gzip.compress(raw, mtime=0) if name.endswith(".gz") else raw)
    return folder


def events_of(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(events_glob(folder))


def events(**columns: list[Any]) -> pl.DataFrame:
    """The expected canonical frame: weight 1, ids as text, in the contract's types."""
    columns["weight"] = [1.0] * len(columns["user_id"])
    types = {
        "timestamp": pl.Datetime("ms"),
        "rating": pl.Float64,
        "propensity": pl.Float64,
        "weight": pl.Float32,
    }
    named = {name: columns[name] for name in COLUMNS if name in columns}
    return pl.DataFrame(named, schema={name: types.get(name, pl.String) for name in named})


def movies(rows: list[tuple[str, str, list[str]]]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "item_id": [item for item, _, _ in rows],
            "title": [title for _, title, _ in rows],
            "category": [genres[0] if genres else None for _, _, genres in rows],
            "genres": [genres for _, _, genres in rows],
        },
        schema={
            "item_id": pl.String,
            "title": pl.String,
            "category": pl.String,
            "genres": pl.List(pl.String),
        },
    )


# One entry per format: name, files, expected events, expected items, expected test events.
ML_100K = {
    "u.data": "196\t242\t3\t881250949\n186\t3\t1\t891717742\n",
    "u.item": (
        f"3|Misérables, Les (1995)|01-Jan-1995||http://x/?Les%20Mis|0|1|{NO_FLAGS}\n"
        f'242|Four Rooms: A "Night" (1995)|01-Jan-1995||http://x/?Four|0|0|{NO_FLAGS[:-1]}1\n'
        f"267|unknown||||1|0|{NO_FLAGS}\n"
    ).encode("latin-1"),
}
ML_1M = {
    "ratings.dat": "1::1193::5::978300760\n2::2::3::978302109\n",
    "movies.dat": (
        "2::Star Wars: Episode IV - A New Hope (1977)::Action|Sci-Fi\n"
        "1193::Vie est belle, La: été (1997)::Drama\n"
        "1194::Nameless (1998)::(no genres listed)\n"
    ).encode("latin-1"),
}
ML_10M = {
    "ratings.dat": "1::122::3.5::838985046\n",
    "movies.dat": "122::Été à « Rome », L' (1992)::Comedy|Romance\n".encode(),
}
ML_25M = {
    "ratings.csv": "userId,movieId,rating,timestamp\n1,11,4.5,1147880044\n1,2,0.5,1147868817\n",
    "movies.csv": (
        "movieId,title,genres\n"
        '11,"American President, The (1995)",Comedy|Drama|Romance\n'
        '2,"""Great Performances"" Cats (1998)",Musical\n'
        "3,Amélie (2001),(no genres listed)\n"
    ),
}
MIND = {
    "behaviors.tsv": (
        "1\tU13740\t11/15/2019 8:55:22 AM\tN55189 N42782\tN55689-1 N35729-0\n"
        "2\tU91836\t11/9/2019 12:05:02 PM\t\tN20678-0 N39317-1 N58114-1\n"
        "3\tU1\t11/9/2019 12:05:02 AM\tN1\tN20678-0\n"
    ),
    "news.tsv": (
        'N55689\tsports\tfootball_nfl\tA "quoted" title, with a comma\tText\thttps://x\t[{"a": 1}]\t[]\n'
        "N39317\tlifestyle\t\tÉlysée\t\thttps://x\t[]\t[]\n"
    ),
}
GOWALLA = (
    "0\t2010-10-19T23:55:27Z\t30.25\t-97.75\t22847\n"
    "0\t2010-10-18T22:17:43Z\t-1.5\t0.0\t420315\n"
    "1\t2010-10-17T23:42:03Z\t30.25\t-97.75\t22847\n"
)
GOWALLA_EVENTS = events(
    user_id=["0", "0", "1"],
    item_id=["22847", "420315", "22847"],
    timestamp=[utc(2010, 10, 19, 23, 55, 27), utc(2010, 10, 18, 22, 17, 43), utc(2010, 10, 17, 23, 42, 3)],
)
PLACES = pl.DataFrame({"item_id": ["22847", "420315"], "latitude": [30.25, -1.5], "longitude": [-97.75, 0.0]})
REVIEWS_EVENTS = events(
    user_id=["A1C6M8LCIX4M6M", "A2"],
    item_id=["0001713353", "B000000001"],
    timestamp=[utc(2005, 8, 12), at(1.0)],
    rating=[5.0, 4.0],
)
REVIEWS = (
    json.dumps(REVIEW_2018)
    + '\n{"asin": "B000000001", "reviewerID": "A2", "overall": 4, "unixReviewTime": 1}\n'
)
REVIEWS_2023 = (
    '{"rating": 5.0, "title": "é", "images": [], "asin": "B00YQ6X8EO", "parent_asin": "B00YQ6X8E1", '
    '"user_id": "AGKHLEW2SOWH", "timestamp": 1588687728923, "helpful_vote": 0}\n'
)
EVENTS_2023 = events(
    user_id=["AGKHLEW2SOWH"], item_id=["B00YQ6X8E1"], timestamp=[at(1588687728.923)], rating=[5.0]
)

Case = tuple[str, dict[str, str | bytes], pl.DataFrame, pl.DataFrame | None, pl.DataFrame | None]
CASES: dict[str, Case] = {
    "ml-100k": (
        "ml-100k",
        ML_100K,
        events(
            user_id=["196", "186"],
            item_id=["242", "3"],
            timestamp=[at(881250949), at(891717742)],
            rating=[3.0, 1.0],
        ),
        movies(
            [
                ("3", "Misérables, Les (1995)", ["Action"]),
                ("242", 'Four Rooms: A "Night" (1995)', ["Western"]),
                ("267", "unknown", []),
            ]
        ),
        None,
    ),
    "ml-1m": (
        "ml-1m",
        ML_1M,
        events(
            user_id=["1", "2"],
            item_id=["1193", "2"],
            timestamp=[at(978300760), at(978302109)],
            rating=[5.0, 3.0],
        ),
        movies(
            [
                ("2", "Star Wars: Episode IV - A New Hope (1977)", ["Action", "Sci-Fi"]),
                ("1193", "Vie est belle, La: été (1997)", ["Drama"]),
                ("1194", "Nameless (1998)", []),
            ]
        ),
        None,
    ),
    "ml-10m": (
        "ml-10m",
        ML_10M,
        events(user_id=["1"], item_id=["122"], timestamp=[at(838985046)], rating=[3.5]),
        movies([("122", "Été à « Rome », L' (1992)", ["Comedy", "Romance"])]),
        None,
    ),
    **{
        name: (
            name,
            ML_25M,
            events(
                user_id=["1", "1"],
                item_id=["11", "2"],
                timestamp=[at(1147880044), at(1147868817)],
                rating=[4.5, 0.5],
            ),
            movies(
                [
                    ("11", "American President, The (1995)", ["Comedy", "Drama", "Romance"]),
                    ("2", '"Great Performances" Cats (1998)', ["Musical"]),
                    ("3", "Amélie (2001)", []),
                ]
            ),
            None,
        )
        for name in ("ml-20m", "ml-25m", "ml-32m")
    },
    "amazon-2014 csv": (
        "amazon-2014",
        {"ratings_Books.csv": "AH2L9G3DQHHAJ,0000000116,4.0,1019865600\nA2,B000000001,1.0,1395619200\n"},
        events(
            user_id=["AH2L9G3DQHHAJ", "A2"],
            item_id=["0000000116", "B000000001"],
            timestamp=[utc(2002, 4, 27), utc(2014, 3, 24)],
            rating=[4.0, 1.0],
        ),
        None,
        None,
    ),
    "amazon-2014 json": ("amazon-2014", {"reviews_Books_5.json.gz": REVIEWS}, REVIEWS_EVENTS, None, None),
    "amazon-2018 csv": (
        "amazon-2018",
        {"Books.csv": "0001713353,A1C6M8LCIX4M6M,5.0,1123804800\n"},
        REVIEWS_EVENTS.head(1),
        None,
        None,
    ),
    "amazon-2018 json": ("amazon-2018", {"Books.json": REVIEWS}, REVIEWS_EVENTS, None, None),
    "amazon-2023 json": ("amazon-2023", {"All_Beauty.jsonl": REVIEWS_2023}, EVENTS_2023, None, None),
    "amazon-2023 gzip": ("amazon-2023", {"All_Beauty.jsonl.gz": REVIEWS_2023}, EVENTS_2023, None, None),
    "amazon-2023 csv": (
        "amazon-2023",
        {
            "All_Beauty.csv": (
                "user_id,parent_asin,rating,timestamp,history\n"
                "AGKHLEW2SOWH,B00YQ6X8E1,5.0,1588687728923,B1 B2\n"
            )
        },
        EVENTS_2023,
        None,
        None,
    ),
    "mind": (
        "mind",
        MIND,
        events(
            user_id=["U13740", "U91836", "U91836"],
            item_id=["N55689", "N39317", "N58114"],
            timestamp=[utc(2019, 11, 15, 8, 55, 22)] + 2 * [utc(2019, 11, 9, 12, 5, 2)],
            event_type=["click"] * 3,
            request_id=["1", "2", "2"],
        ),
        pl.DataFrame(
            {
                "item_id": ["N55689", "N39317"],
                "title": ['A "quoted" title, with a comma', "Élysée"],
                "category": ["sports", "lifestyle"],
                "subcategories": [["football_nfl"], []],
            }
        ),
        None,
    ),
    "yahoo-r3": (
        "yahoo-r3",
        {f"{YAHOO}-train.txt": "1\t14\t5\n1\t35\t1\n", f"{YAHOO}-test.txt": "1\t49\t1\n"},
        events(user_id=["1", "1"], item_id=["14", "35"], rating=[5.0, 1.0]),
        None,
        events(user_id=["1"], item_id=["49"], rating=[1.0]),
    ),
    "coat": (
        "coat",
        {"train.ascii": "0 0 4 \n1 0 0 \n", "test.ascii": "0 2 0\n0 0 3\n"},
        events(user_id=["0", "1"], item_id=["2", "0"], rating=[4.0, 1.0]),
        None,
        events(user_id=["0", "1"], item_id=["1", "2"], rating=[2.0, 3.0]),
    ),
    "coat with propensities": (
        "coat",
        {
            "train.ascii": "0 0 4\n1 0 0\n",
            "test.ascii": "0 2 0\n0 0 3\n",
            "propensities.ascii": "1.0e-01 0.2 0.25\n0.5 0.1 0.1\n",
        },
        events(user_id=["0", "1"], item_id=["2", "0"], rating=[4.0, 1.0], propensity=[0.25, 0.5]),
        None,
        events(user_id=["0", "1"], item_id=["1", "2"], rating=[2.0, 3.0]),
    ),
    "gowalla": ("gowalla", {"loc-gowalla_totalCheckins.txt": GOWALLA}, GOWALLA_EVENTS, PLACES, None),
    "gowalla gzip": ("gowalla", {"loc-gowalla_totalCheckins.txt.gz": GOWALLA}, GOWALLA_EVENTS, PLACES, None),
    "gowalla graph": (
        "gowalla",
        {"train.txt": "0 12 7 345\n1\n2 7 \n", "test.txt": "0 9\n1 \n"},
        events(user_id=["0", "0", "0", "2"], item_id=["12", "7", "345", "7"]),
        None,
        events(user_id=["0"], item_id=["9"]),
    ),
    "jodie": (
        "jodie",
        {
            "wikipedia.csv": (
                "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
                "0,0,0.0,0,-0.175,0.2,-0.3\n"
                "1,0,36.5,1,-0.175,0.2,-0.3,0.9\n"
            )
        },
        events(user_id=["0", "1"], item_id=["0", "0"], timestamp=[at(0), at(36.5)]),
        None,
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loader_reads_the_authors_format(case: str, tmp_path: Path) -> None:
    name, files, expected, items, test = CASES[case]
    out = fetch(name, tmp_path / "out", source=put(tmp_path / "own", files))
    assert_frame_equal(events_of(out), expected)
    assert is_canonical(events_of(out).schema)
    assert (out / "items.parquet").exists() == (items is not None)
    if items is not None:
        assert_frame_equal(pl.read_parquet(out / "items.parquet"), items)
    assert is_folder(out / "test") == (test is not None)
    if test is not None:
        assert_frame_equal(events_of(out / "test"), test)
        assert read_meta(out / "test")["rows"] == test.height


@pytest.mark.parametrize("case", CASES)
def test_dataset_json_says_what_is_there(case: str, tmp_path: Path) -> None:
    name, files, expected, _, _ = CASES[case]
    meta = read_meta(fetch(name, tmp_path / "out", source=put(tmp_path / "own", files)))
    info = next(info for info in names() if info.name == name)
    assert meta == {
        "format": 1,
        "name": name,
        "licence": info.licence,
        "about": info.about,
        "rows": expected.height,
        "users": len(set(expected["user_id"])),
        "items": len(set(expected["item_id"])),
        "timed": "timestamp" in expected.columns,
    }


def test_every_source_is_tested_here() -> None:
    assert {info.name for info in names()} == {case[0] for case in CASES.values()}


def test_names_say_what_can_be_downloaded() -> None:
    assert {info.name for info in names() if not info.needs_path} == {"ml-100k", "ml-1m"}
    for info in names():
        assert isinstance(info, SourceInfo)
        assert info.licence
        assert info.about


def test_movielens_terms_are_stated() -> None:
    licence = next(info.licence for info in names() if info.name == "ml-100k")
    assert "no commercial use" in licence
    assert "no redistribution" in licence.replace("no commercial use and ", "")


def test_the_licence_is_told_first(tmp_path: Path) -> None:
    told: list[str] = []
    fetch("ml-1m", tmp_path / "out", source=put(tmp_path / "own", ML_1M), progress=told.append)
    assert "GroupLens" in told[0]


# --- where the files may lie ---


def test_the_folder_may_lie_one_level_down(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    put(tmp_path / "own" / "ml-1m", ML_1M)
    assert events_of(fetch("ml-1m", tmp_path / "out", source=tmp_path / "own")).height == 2


def test_one_of_the_files_names_the_folder(tmp_path: Path) -> None:
    own = put(tmp_path / "own", ML_1M)
    assert events_of(fetch("ml-1m", tmp_path / "out", source=own / "ratings.dat")).height == 2


def test_windows_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    files = {
        name: b"\xef\xbb\xbf" + str(text).replace("\n", "\r\n").encode() for name, text in ML_25M.items()
    }
    out = fetch("ml-25m", tmp_path / "out", source=put(tmp_path / "own", files))
    assert_frame_equal(events_of(out), CASES["ml-25m"][2])
    assert pl.read_parquet(out / "items.parquet")["category"].to_list() == ["Comedy", "Musical", None]


# --- what cannot be read ---

HEADER_JODIE = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
BAD: dict[str, tuple[str, dict[str, str | bytes], list[str]]] = {
    "empty folder": ("ml-1m", {}, ["ratings.dat and movies.dat", "an empty folder"]),
    "another edition": ("ml-1m", ML_25M, ["ratings.dat", "movies.csv, ratings.csv"]),
    "one file missing": ("ml-100k", {"u.data": ML_100K["u.data"]}, ["u.data and u.item", "found u.data"]),
    "empty file": ("ml-1m", {**ML_1M, "ratings.dat": ""}, ["ratings.dat", "1::1193::5"]),
    "tabs for colons": ("ml-1m", {**ML_1M, "ratings.dat": "1\t2\t3\t4\n"}, ["1::1193::5", "1\\t2\\t3\\t4"]),
    "short later line": (
        "ml-1m",
        {**ML_1M, "ratings.dat": "1::2::3::4\n1::2\n"},
        ["timestamp in 1 of 2 events", "event 2"],
    ),
    "word for a rating": ("ml-1m", {**ML_1M, "ratings.dat": "1::2::3::4\n1::2::x::4\n"}, ["x", "rating"]),
    "rating not a number": ("ml-1m", {**ML_1M, "ratings.dat": "1::2::3::4\n1::2::NaN::4\n"}, ["rating"]),
    "movie line broken": (
        "ml-1m",
        {**ML_1M, "movies.dat": "1::A::B\nxx\n"},
        ["movies.dat", "id::title::genres"],
    ),
    "item line broken": (
        "ml-100k",
        {**ML_100K, "u.item": f"3|A|||x|0|1|{NO_FLAGS}\n4|B\n"},
        ["u.item", "24"],
    ),
    "header missing": ("ml-25m", {**ML_25M, "ratings.csv": "1,2,3,4\n"}, ["userId,movieId", "1,2,3,4"]),
    "header only": ("ml-25m", {**ML_25M, "ratings.csv": "userId,movieId,rating,timestamp\n"}, ["no events"]),
    "null user": (
        "ml-25m",
        {**ML_25M, "ratings.csv": "userId,movieId,rating,timestamp\n1,2,3,4\n,2,3,4\n"},
        ["user_id", "event 2"],
    ),
    "2018 order as 2014": (
        "amazon-2014",
        {"Books.csv": "0001713353,A1C6M8LCIX4M6M,5.0,1123804800\n"},
        ["amazon-2018", "column order"],
    ),
    "2014 order as 2018": (
        "amazon-2018",
        {"Books.csv": "A1C6M8LCIX4M6M,0001713353,5.0,1123804800\n"},
        ["amazon-2014", "column order"],
    ),
    "two csv files": (
        "amazon-2014",
        {"a.csv": "", "b.csv": ""},
        ["one file", "a.csv, b.csv", "name the file"],
    ),
    "2018 lines as 2023": ("amazon-2023", {"Books.json": REVIEWS}, ["parent_asin"]),
    "2023 lines as 2018": ("amazon-2018", {"Books.jsonl": REVIEWS_2023}, ["reviewerID"]),
    "later line not JSON": ("amazon-2018", {"Books.json": REVIEWS + "oops\n"}, ["amazon-2018"]),
    "later line without a key": (
        "amazon-2018",
        {"Books.json": REVIEWS + '{"asin": "B1", "reviewerID": "A", "overall": 1.0}\n'},
        ["timestamp", "event 3"],
    ),
    "not gzip": ("amazon-2018", {"Books.json": ""}, ["Books.json"]),
    "mind without labels": (
        "mind",
        {**MIND, "behaviors.tsv": "1\tU1\t11/15/2019 8:55:22 AM\tN1\tN2 N3\n"},
        ["N55689-1", "behaviors.tsv"],
    ),
    "mind with an impossible time": (
        "mind",
        {**MIND, "behaviors.tsv": "1\tU1\t15/11/2019 8:55:22 AM\tN1\tN2-1\n"},
        ["mind", "15/11/2019"],
    ),
    "mind without clicks": (
        "mind",
        {**MIND, "behaviors.tsv": "1\tU1\t11/15/2019 8:55:22 AM\tN1\tN2-0\n"},
        ["no events"],
    ),
    "mind without news": (
        "mind",
        {"behaviors.tsv": MIND["behaviors.tsv"]},
        ["news.tsv", "found behaviors.tsv"],
    ),
    "yahoo without its test": ("yahoo-r3", {f"{YAHOO}-train.txt": "1\t2\t3\n"}, [f"{YAHOO}-test.txt"]),
    "yahoo with commas": (
        "yahoo-r3",
        {f"{YAHOO}-train.txt": "1,2,3\n", f"{YAHOO}-test.txt": "1\t2\t3\n"},
        ["1,2,3", "train"],
    ),
    "coat of unequal shapes": (
        "coat",
        {"train.ascii": "0 1\n", "test.ascii": "0 1 1\n"},
        ["(1, 3)", "(1, 2)"],
    ),
    "coat of unequal rows": (
        "coat",
        {"train.ascii": "0 1\n1\n", "test.ascii": "0 1\n1 1\n"},
        ["train.ascii"],
    ),
    "coat of words": ("coat", {"train.ascii": "0 1\na 1\n", "test.ascii": "0 1\n1 1\n"}, ["train.ascii"]),
    "coat propensity of zero": (
        "coat",
        {"train.ascii": "0 1\n", "test.ascii": "0 1\n", "propensities.ascii": "0.5 0\n"},
        ["propensities.ascii", "above 0"],
    ),
    "coat all zero": ("coat", {"train.ascii": "0 0\n", "test.ascii": "0 1\n"}, ["no events"]),
    "gowalla of commas": (
        "gowalla",
        {"loc-gowalla_totalCheckins.txt": "0,1,2,3,4\n"},
        ["22847", "0,1,2,3,4"],
    ),
    "gowalla with a broken time": (
        "gowalla",
        {"loc-gowalla_totalCheckins.txt": GOWALLA + "1\tyesterday\t1\t1\t9\n"},
        ["yesterday"],
    ),
    "gowalla graph of words": ("gowalla", {"train.txt": "a b\n", "test.txt": "0 1\n"}, ["a b", "train.txt"]),
    "jodie without rows": ("jodie", {"mooc.csv": HEADER_JODIE}, ["jodie"]),
    "jodie of two columns": ("jodie", {"mooc.csv": HEADER_JODIE + "0,1\n"}, ["mooc.csv", "rows like"]),
    "jodie with a word for seconds": ("jodie", {"mooc.csv": HEADER_JODIE + "0,1,x,0,0\n"}, ["x"]),
    "jodie without a header": ("jodie", {"mooc.csv": "0,1,2.0,0,0\n"}, ["user_id,item_id"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_file_is_one_line_that_says_so(case: str, tmp_path: Path) -> None:
    name, files, expected = BAD[case]
    with pytest.raises(EventsError) as raised:
        fetch(name, tmp_path / "out", source=put(tmp_path / "own", files))
    message = str(raised.value)
    assert "\n" not in message
    for words in expected:
        assert words in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own"]  # nothing half written


@pytest.mark.parametrize(
    "content",
    [b"not gzip at all", gzip.compress(REVIEWS.encode(), mtime=0)[:40], b""],
    ids=["not gzip", "cut short", "empty"],
)
def test_a_damaged_gzip_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "Books.json.gz"
    path.write_bytes(content)
    with pytest.raises(EventsError, match=r"Books\.json\.gz"):
        fetch("amazon-2018", tmp_path / "out", source=path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["ml-1m", "jodie", "amazon-2018"])
def test_a_path_that_does_not_exist(name: str, tmp_path: Path) -> None:
    with pytest.raises(EventsError, match="nowhere does not exist; expected"):
        fetch(name, tmp_path / "out", source=tmp_path / "nowhere")


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    own = put(tmp_path / "own", {"wikipedia.zip": b"PK"})
    with pytest.raises(EventsError, match=r"wikipedia\.zip: expected a file \*\.csv"):
        fetch("jodie", tmp_path / "out", source=own / "wikipedia.zip")
    with pytest.raises(EventsError, match=r"expected ratings\.dat and movies\.dat, found wikipedia\.zip"):
        fetch("ml-1m", tmp_path / "out", source=own / "wikipedia.zip")


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(EventsError, match=r"'netflix'; known: ml-100k, ml-1m, .*jodie"):
        fetch("netflix", tmp_path / "out")


@pytest.mark.parametrize("name", [info.name for info in names() if info.needs_path])
def test_what_is_not_downloaded_asks_for_a_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(EventsError, match=r"get your own copy .*--from PATH"):
        fetch(name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- the folder ---


def test_fetching_again_replaces_the_folder_whole(tmp_path: Path) -> None:
    fetch("coat", tmp_path / "out", source=put(tmp_path / "a", CASES["coat"][1]))
    fetch("ml-1m", tmp_path / "out", source=put(tmp_path / "b", ML_1M))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "dataset.json",
        "events",
        "items.parquet",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "out"]


def test_a_failed_fetch_leaves_the_old_folder(tmp_path: Path) -> None:
    out = fetch("ml-1m", tmp_path / "out", source=put(tmp_path / "a", ML_1M))
    before = (out / "dataset.json").read_bytes()
    with pytest.raises(EventsError):
        fetch("ml-25m", out, source=put(tmp_path / "b", {**ML_25M, "ratings.csv": "x\n"}))
    assert (out / "dataset.json").read_bytes() == before
    assert events_of(out).height == 2


def test_a_foreign_folder_is_never_replaced(tmp_path: Path) -> None:
    own = put(tmp_path / "own", ML_1M)
    with pytest.raises(EventsError, match="exists and is not a data set folder"):
        fetch("ml-1m", own, source=own)
    assert sorted(path.name for path in own.iterdir()) == ["movies.dat", "ratings.dat"]


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    out = fetch("ml-1m", tmp_path / "out", source=put(tmp_path / "own", ML_1M))
    assert events_of(out).height == 2


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    fetch("ml-1m", tmp_path / "out", source=put(tmp_path / "own", ML_1M))
    assert (tmp_path / "out").is_symlink()
    assert is_folder(tmp_path / "real")


def test_a_folder_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EventsError, match="cannot be written"):
        fetch("ml-1m", tmp_path / "file" / "out", source=put(tmp_path / "own", ML_1M))


def test_write_folder_numbers_its_parts_and_orders_columns(tmp_path: Path) -> None:
    frame = events(user_id=["a", "b"], item_id=["x", "x"], rating=[1.0, 2.0])
    out = write_folder(
        tmp_path / "out", [frame.head(1), frame.tail(1).select(sorted(frame.columns))], None, {}
    )
    assert [path.name for path in sorted((out / "events").iterdir())] == [
        "part-00000.parquet",
        "part-00001.parquet",
    ]
    assert_frame_equal(events_of(out), frame)
    assert read_meta(out) == {"format": 1, "rows": 2, "users": 2, "items": 1, "timed": False}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no dataset.json"),
        ("{", "cannot be read as JSON"),
        ("[]", "no format number"),
        ('{"format": "1"}', "no format number"),
        ('{"format": 2}', "update rootbeam"),
    ],
)
def test_a_bad_dataset_json(content: str | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "dataset.json").write_text(content)
    with pytest.raises(EventsError, match=said):
        read_meta(tmp_path)
