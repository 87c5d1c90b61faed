"""python -m lab run PAPER --data NAME · python -m lab prepare NAME --out FILE · python -m lab tables"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import time
from pathlib import Path

from lab.data import prepare, read_data
from lab.harness import RESULTS, Context, Results, fail, pick_device
from rootbeam.core.errors import RootbeamError

ARRAYS = Path(__file__).parent / "arrays"
RECIPES = {
    "bir": "lab.papers.bir",
    "rivals": "lab.rivals",
    "sequence": "lab.papers.sequence",
    "served": "lab.papers.served",
}


def main(arguments: list[str] | None = None) -> None:
    parsed = _parser().parse_args(arguments)
    try:
        parsed.call(parsed, arguments if arguments is not None else sys.argv[1:])
    except RootbeamError as error:
        fail(str(error))


def run(parsed: argparse.Namespace, arguments: list[str]) -> None:
    arrays = parsed.arrays or ARRAYS / f"{parsed.data}.safetensors"
    if not arrays.exists():
        if parsed.arrays:
            fail(f"no file {arrays}; make it with: python -m lab prepare {parsed.data} --out {arrays}")
        prepare(parsed.data, arrays)
    data, device = read_data(arrays), pick_device(parsed.device)
    path = parsed.results / f"{parsed.paper}-{data.name}.json"
    results = Results.open(path, parsed.paper, data.name)
    deadline = time.monotonic() + seconds_of(parsed.budget)
    only = {name: values.split(",") for name, _, values in (text.partition("=") for text in parsed.only)}
    context = Context(data, range(parsed.seeds), device, results, arguments, deadline, only)
    importlib.import_module(RECIPES[parsed.paper]).run(context)
    results.summarise()
    if not only:
        results.note("unfinished", context.skipped)
    left = f"; {context.skipped} cells left for want of time: run it again" if context.skipped else ""
    print(f"{path}: {len(results.content['cells'])} cells{left}")


def make_arrays(parsed: argparse.Namespace, arguments: list[str]) -> None:
    log = prepare(parsed.name, parsed.out, parsed.source).log
    print(f"{parsed.out}: {log.n_users:,} users × {log.n_items:,} items, {log.n_events:,} events")


def write_tables(parsed: argparse.Namespace, arguments: list[str]) -> None:
    from lab.tables import write

    write(parsed.results, parsed.out)
    print(parsed.out)


def seconds_of(text: str) -> float:
    """ "90", "90s", "30m", "2h" -> seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match:
        fail(f"--budget was given {text!r}; needed a number with s, m or h, as in 30m")
        raise AssertionError
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="run a recipe; what is finished already is skipped")
    one.add_argument("paper", choices=RECIPES)
    one.add_argument("--data", required=True, help="a name that `prepare` knows")
    one.add_argument("--seeds", type=int, default=5)
    one.add_argument("--budget", default="30m", help="no cell is begun after this; 90s, 30m, 2h")
    one.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    one.add_argument("--arrays", type=Path, help="a file made by `prepare`, elsewhere")
    one.add_argument("--only", action="append", default=[], metavar="NAME=V[,V]", help="of the settings")
    one.add_argument("--results", type=Path, default=RESULTS)
    one.set_defaults(call=run)
    two = commands.add_parser("prepare", help="canonical events -> arrays; needs polars")
    two.add_argument("name")
    two.add_argument("--out", type=Path, required=True)
    two.add_argument("--from", dest="source", type=Path, help="events; data/NAME where not given")
    two.set_defaults(call=make_arrays)
    three = commands.add_parser("tables", help="lab/results/*.json -> docs/results.md")
    three.add_argument("--results", type=Path, default=RESULTS)
    three.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "results.md")
    three.set_defaults(call=write_tables)
    return parser


if __name__ == "__main__":
    main()
