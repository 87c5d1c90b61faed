"""How much validation costs: a CSV of events to a canonical folder, beside polars that only converts.

    python benchmarks/csv_to_parquet.py [--rows 10000000] [--repetitions 3]

Prints one JSON object. Each run is a process of its own, ours and polars' in turn; seconds are inside the
process, without its start; peak is its largest resident set. `ratio` is of the medians, `ratios` pairwise;
cpu_seconds are of all threads and tell how much of the difference other work on the machine has made.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl


def make_csv(path: Path, rows: int, seed: int = 0) -> None:
    """user_id, item_id, timestamp in seconds: about 24 bytes a row."""
    rng = np.random.default_rng(seed)
    columns = {
        "user_id": rng.integers(0, 1_000_000, rows),
        "item_id": rng.integers(0, 200_000, rows),
        "timestamp": rng.integers(1_500_000_000, 1_600_000_000, rows),
    }
    pl.DataFrame(columns).write_csv(path)


def convert_with_polars(source: Path, out: Path) -> None:
    pl.scan_csv(source).sink_parquet(out)


def convert_with_rootbeam(source: Path, out: Path) -> None:
    from rootbeam.data.events import write_canonical

    write_canonical(source, out)


CONVERTERS = {"polars": convert_with_polars, "rootbeam": convert_with_rootbeam}


def run_one(name: str, source: Path, out: Path) -> dict[str, float]:
    """In this process: convert once; seconds and the peak resident set in MiB."""
    import rootbeam.data.events  # noqa: F401  the import is no part of the conversion

    started, cpu_started = time.perf_counter(), time.process_time()
    CONVERTERS[name](source, out)
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def run_apart(name: str, source: Path, folder: Path) -> dict[str, float]:
    """In a fresh process, so that peaks are its own."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        command = [sys.executable, __file__, "--one", name, str(source), str(Path(out) / "out")]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(result.stdout)
    return measured


def compare(rows: int, repetitions: int) -> dict[str, object]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONVERTERS}
    with tempfile.TemporaryDirectory(prefix="rootbeam-bench-") as name:
        folder = Path(name)
        source = folder / "events.csv"
        make_csv(source, rows)
        size = source.stat().st_size
        for _ in range(repetitions):
            for converter in CONVERTERS:
                runs[converter].append(run_apart(converter, source, folder))
    seconds = {name: [run["seconds"] for run in of_one] for name, of_one in runs.items()}
    pairs = zip(seconds["rootbeam"], seconds["polars"], strict=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "rows": rows,
        "csv_mib": round(size / 2**20, 1),
        "ratio": round(medians["rootbeam"] / medians["polars"], 3),
        "ratios": [round(ours / theirs, 3) for ours, theirs in pairs],
        "seconds": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
        "cpu_seconds": {
            name: [round(run["cpu_seconds"], 3) for run in of_one] for name, of_one in runs.items()
        },
        "peak_mib": {name: round(max(run["peak_mib"] for run in of_one)) for name, of_one in runs.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--one", nargs=3, metavar=("NAME", "CSV", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, source, out = options.one
        print(json.dumps(run_one(name, Path(source), Path(out))))
    else:
        print(json.dumps(compare(options.rows, options.repetitions), indent=2))


if __name__ == "__main__":
    main()
