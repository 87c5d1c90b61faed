"""`rootbeam recommend`: lists for users, for a history, or for a whole file of users."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rootbeam.cli.terminal import Bundle, Json, Quiet, Screen, Seed

if TYPE_CHECKING:
    import polars as pl

    from rootbeam.recommender import Recommender

WRITERS = {
    ".parquet": "write_parquet",
    ".csv": "write_csv",
    ".jsonl": "write_ndjson",
    ".ndjson": "write_ndjson",
}


def recommend(
    bundle: Bundle,
    user: Annotated[list[str] | None, typer.Option("--user", help="A user id; repeatable.")] = None,
    history: Annotated[
        str | None, typer.Option("--history", help="Items of someone unknown, oldest first: a,b,c.")
    ] = None,
    users: Annotated[
        Path | None, typer.Option("--users", help="File with a user_id column, or an id a line.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="With --users: Parquet, CSV or JSON Lines.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Items a user.", min=1)] = 10,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also items the user had before.")
    ] = False,
    allow: Annotated[str | None, typer.Option("--allow", help="Only these items: a,b,c or @FILE.")] = None,
    deny: Annotated[str | None, typer.Option("--deny", help="Never these items: a,b,c or @FILE.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """The best items of known users, or of someone unknown."""
    from rootbeam.core.errors import ConfigError
    from rootbeam.recommender import load

    screen = Screen(json, quiet)
    if sum(given is not None and given != [] for given in (user, history, users)) != 1:
        raise ConfigError("needed exactly one of --user, --history and --users")
    if out is not None and out.suffix not in WRITERS:
        raise ConfigError(f"--out is {out.name}; needed a name that ends in {', '.join(WRITERS)}")
    recommender = load(bundle)
    filters: dict[str, Any] = {
        "exclude_seen": False if include_seen else None,
        "allow": _id_list(allow),
        "deny": _id_list(deny),
    }
    if history is not None:
        items = [item.strip() for item in history.split(",") if item.strip()]
        _warn_unknown(recommender, items, screen)
        key, ids = "history", list[Any]([0])
        found = recommender.recommend_from_history([items], k, **filters)
    else:
        given = list(user) if user else read_users(users)
        key, ids = "user_id", [recommender.model.users.as_stored(each) for each in dict.fromkeys(given)]
        found = recommender.recommend(ids, k, **filters)
        _warn_strangers(found, len(ids), screen)
    if out is not None:
        _write(found, out)
        screen.result(
            {"out": str(out), "users": len(ids), "rows": len(found)}, [f"wrote {len(found):,} rows to {out}"]
        )
        return
    answers = _answers(found, key, ids)
    screen.result({"users": answers}, _lines(answers, key, recommender))


def read_users(path: Path | None) -> list[Any]:
    """User ids of a file: its user_id column, or a line each."""
    import polars as pl

    from rootbeam.core.errors import EventsError

    assert path is not None
    try:
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
        elif path.suffix in (".csv", ".tsv"):
            frame = pl.read_csv(path, separator="\t" if path.suffix == ".tsv" else ",", infer_schema=False)
        elif path.suffix in (".jsonl", ".ndjson"):
            frame = pl.read_ndjson(path, infer_schema_length=None)
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
            frame = pl.DataFrame({"user_id": [line.strip() for line in lines if line.strip()]})
    except FileNotFoundError:
        raise EventsError(
            f"no file {path}; give --users a file with a user_id column or an id a line"
        ) from None
    except (pl.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
        raise EventsError(
            f"{path} cannot be read ({str(error).splitlines()[0]}); needed a user_id column"
        ) from None
    if "user_id" not in frame.columns:
        raise EventsError(f"{path} has the columns {', '.join(frame.columns)}; needed user_id")
    if frame["user_id"].dtype not in (pl.String, pl.Null) and not frame["user_id"].dtype.is_integer():
        raise EventsError(f"{path}: user_id is {frame['user_id'].dtype}; needed strings or integers")
    users = frame["user_id"].drop_nulls().unique(maintain_order=True).to_list()
    if not users:
        raise EventsError(f"{path} names no user; needed a user_id column or an id a line")
    return users


def _id_list(given: str | None) -> list[str] | None:
    from rootbeam.core.errors import ConfigError

    if given is None:
        return None
    if given.startswith("@"):
        try:
            return [
                line.strip()
                for line in Path(given[1:]).read_text(encoding="utf-8").splitlines()
                if line.strip()
            ]
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"no readable file {given[1:]!r}; needed an item id a line") from None
    return [item.strip() for item in given.split(",") if item.strip()]


def _warn_unknown(recommender: Recommender, items: list[str], screen: Screen) -> None:
    unknown = [item for item in items if item not in recommender.model.items]
    if unknown:
        shown = ", ".join(item[:40] for item in unknown[:3])
        screen.say(f"{len(unknown)} of {len(items)} items of the history are unknown to the model: {shown}")


def _warn_strangers(found: pl.DataFrame, users: int, screen: Screen) -> None:
    strangers = found.filter(found["source"] == "fallback")["user_id"].n_unique()
    if strangers:
        screen.say(f"{strangers:,} of {users:,} users are unknown to the model: recent popularity instead")


def _answers(found: pl.DataFrame, key: str, ids: list[Any]) -> list[dict[str, Any]]:
    """A dictionary for each of `ids`; without items for whom the filters leave none."""
    rows = {value: part for (value,), part in found.group_by(key)}
    as_text = not found[key].dtype.is_integer()
    answers = []
    for each in ids:
        part = rows.get(str(each) if as_text else each, found.clear())
        items = part.sort("rank").select("item_id", "score", "rank").to_dicts()
        answers.append({key: each, "source": part["source"][0] if items else None, "items": items})
    return answers


def _lines(answers: list[dict[str, Any]], key: str, recommender: Recommender) -> list[str]:
    titles = recommender.model.titles
    lines: list[str] = []
    for answer in answers:
        head = f"user {answer[key]}" if key == "user_id" else "history"
        if answer["source"] == "fallback":
            head += " (unknown to the model: recent popularity)"
        if not answer["items"]:
            head += " (no item is left to recommend)"
        lines += ["", head]
        dense = recommender.model.items.dense(item["item_id"] for item in answer["items"])
        for item, row in zip(answer["items"], dense, strict=True):
            title = f"  {titles[row]}" if titles and titles[row] else ""
            lines.append(f"{item['score']:9.4f}  {item['item_id']}{title}")
    return lines[1:]


def _write(frame: pl.DataFrame, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    getattr(frame, WRITERS[out.suffix])(out)
