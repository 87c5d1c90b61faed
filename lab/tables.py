"""docs/results.md from lab/results/*.json: every table with its command, seeds, intervals and machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rootbeam.core.files import write_bytes

Content = dict[str, Any]
BENCHMARKS = Path(__file__).parents[1] / "benchmarks" / "results"

HEAD = """# Results

Written by `python -m lab tables` from `lab/results/*.json`; do not edit. Every number is of a run of ours
unless it stands in a column "published". A value is the mean over seeds; brackets are the 95 % bootstrap
interval over users of the users' means over seeds, ± is the standard deviation over seeds. Differences are
paired by user and seed. Arrays are made on first use by `python -m lab prepare`; the exact command of every
cell stands in its JSON file.
"""

PUBLISHED: dict[tuple[str, str], dict[str, str]] = {
    ("bir", "ml-100k"): {  # Recall@20 of the released code, one seed, run for REFERENCES
        "ssl": ".125",
        "ssl-pop": ".282",
        "bir": ".275",
        "xir": ".272",
    },
    ("sequence", "beauty"): {"sequence": "NDCG .053, Recall .092 (best published)"},
    ("sequence", "ml-1m"): {"sequence": "NDCG .168"},
}
ABOUT = {
    "bir": (
        "In-batch importance resampling",
        "Matrix factorisation, dimension 32, N(0, 1) start, Adam with coupled weight decay, learning rate "
        "× .95 every 5 epochs, accidental hits masked. Protocol: `lab/papers/bir.py`.",
    ),
    "sequence": (
        "Sequence rung (SASRec type), leave-one-out",
        "Full catalogue, seen items left out, the last event tested. Protocol: `lab/papers/sequence.py`.",
    ),
    "rivals": (
        "Rivals",
        "Each tuned on validation with the same number of trials. Protocol: `lab/rivals.py`.",
    ),
    "served": (
        "What is served, against tuned rivals",
        "A split by time. The rivals are as published: none but recent popularity knows when an event "
        "happened, so a part of every difference is recency. Protocol: `lab/papers/served.py`.",
    ),
}


def write(results: Path, out: Path, benchmarks: Path = BENCHMARKS) -> None:
    contents = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    text = "\n".join([HEAD, *(section(content) for content in contents), benchmark_section(benchmarks)])
    write_bytes(out, (text.rstrip() + "\n").encode())


def benchmark_section(folder: Path) -> str:
    """What the last run of every benchmark printed."""
    lines = [
        "## Benchmarks",
        "",
        "Each is one command; ratios are of one run, interleaved, on two cores.",
        "",
    ]
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        arguments = found.get("events", "")
        lines += [f"    python benchmarks/{path.stem}.py {arguments}".rstrip(), "", json.dumps(found), ""]
    return "\n".join(lines)


def section(content: Content) -> str:
    paper, data = content["paper"], content["data"]
    title, about = ABOUT.get(paper, (paper, ""))
    lines = [f"## {title} · {data}", "", about, ""]
    lines += commands(content)
    curve = curve_rows(content)
    lines += curve_table(content, curve) if curve else []
    lines += rows_table(content, PUBLISHED.get((paper, data), {}))
    return "\n".join([*lines, *remarks(content), ""])


def commands(content: Content) -> list[str]:
    """The command as one would type it, and the machines that ran it."""
    used = sorted({cell["session"] for cell in content["cells"]})
    sessions = [content["sessions"][number] for number in used]
    machines = {machine(each): None for each in sessions}  # a set that keeps the order
    commits = sorted({each["commit"] for each in sessions})
    seeds = sorted({cell["seed"] for cell in content["cells"] if "tune" not in cell["settings"]})
    return [
        f"    python -m lab run {content['paper']} --data {content['data']} --seeds {len(seeds)}",
        "",
        f"Ran on {'; '.join(machines)}. Commit {', '.join(commits)} (+: with changes).",
        f"Seeds {', '.join(map(str, seeds)) or 'none'}.",
        "",
    ]


def machine(session: Content) -> str:
    described = session["machine"]
    where = described["gpu"] if session["device"] == "cuda" else f"{session['threads']} CPU thread(s)"
    return f"{where} of a machine with {described['cpus']} cores, torch {session['versions']['torch']}"


def rows_table(content: Content, published: dict[str, str]) -> list[str]:
    rows = list(content["notes"].get("rows", {}).values())
    if not rows:
        return []
    names = list(rows[0]["metrics"])
    keys = [key for key in rows[0]["settings"] if key != "row"]
    head = ["row", *keys, *names, "seeds", *(["published"] if published else [])]
    body = []
    for row in sorted(rows, key=lambda each: [each["settings"].get(key, 0) for key in keys]):
        settings, metrics = row["settings"], row["metrics"]
        cells = [settings["row"], *(str(settings[key]) for key in keys)]
        cells += [value(metrics[name]) for name in names if name in metrics]
        cells += [str(len(row["seeds"])), *([published.get(settings["row"], "")] if published else [])]
        body.append(cells)
    return [*table(head, body), ""]


def curve_rows(content: Content) -> list[tuple[int, Content, Content]]:
    """(batch, SSL-Pop, BIR) where both were run at more than one batch size."""
    rows = {
        (row["settings"]["row"], row["settings"]["batch"]): row
        for row in content["notes"].get("rows", {}).values()
        if "batch" in row["settings"]
    }
    batches = sorted({batch for _, batch in rows})
    both = [
        (b, rows["ssl-pop", b], rows["bir", b])
        for b in batches
        if ("ssl-pop", b) in rows and ("bir", b) in rows
    ]
    return both if len(both) > 1 else []


def curve_table(content: Content, curve: Sequence[tuple[int, Content, Content]]) -> list[str]:
    """Figure 7: Recall@20 by batch size, and the settings that validation chose."""
    cells = {(c["settings"]["row"], c["settings"].get("batch")): c for c in content["cells"] if "lr" in c}
    differences = content["notes"].get("recall@20 differences", {})
    body = []
    for batch, first, second in curve:
        found = differences.get(f"bir - ssl-pop @ {batch}")
        gap = f"{found['mean']:+.4f} [{found['low']:+.4f}, {found['high']:+.4f}]" if found else ""
        seeds = sum(x > 0 for x in found["per_seed"]) if found else 0
        chosen = [cells[row, batch] for row in ("ssl-pop", "bir")]
        body.append(
            [
                str(batch),
                *(value(row["metrics"]["recall@20"]) for row in (first, second)),
                gap,
                f"{seeds} of {len(found['per_seed'])}" if found else "",
                *(f"{cell['lr']:g}, {cell['wd']:g}" for cell in chosen),
            ]
        )
    head = ["batch", "SSL-Pop Recall@20", "BIR Recall@20", "BIR − SSL-Pop", "seeds where BIR is ahead"]
    return [*table([*head, "SSL-Pop lr, wd", "BIR lr, wd"], body), ""]


def remarks(content: Content) -> list[str]:
    """What else the results hold to say."""
    notes = content["notes"]
    lines = []
    if "data" in notes:
        data = notes["data"]
        lines.append(f"{data['users']:,} users × {data['items']:,} items, {data['events']:,} events.")
    if notes.get("ties", {}).get("adjacent_events"):
        ties = notes["ties"]
        lines.append(
            f"Ties: {ties['adjacent_events']:.0%} of neighbouring events of a user, and "
            f"{ties['test_events']:.0%} of test events and the event before, have one time stamp; their "
            "order is that of the source, so a part of what is predicted is the order of a listing."
        )
    if notes.get("unfinished"):
        lines.append(f"{notes['unfinished']} cells of this command were not run for want of time.")
    if notes.get("skipped"):
        lines += [f"{name} is left out: {reason}." for name, reason in notes["skipped"].items()]
    for note, differences in notes.items():
        others = (
            {k: v for k, v in differences.items() if not k.startswith("bir - ")} if " diff" in note else {}
        )
        if others:
            head = [note.removesuffix(" differences"), "difference"]
            lines += ["", *table(head, [[k, gap_of(v)] for k, v in others.items()])]
    return [*lines, "", *notes.get("remarks", [])]


def gap_of(found: Content) -> str:
    return f"{found['mean']:+.4f} [{found['low']:+.4f}, {found['high']:+.4f}]"


def value(found: Content) -> str:
    """The mean, its interval over users where every user's value was kept, and the spread over seeds."""
    seeds = found["per_seed"]
    middle = sum(seeds) / len(seeds)
    spread = (sum((x - middle) ** 2 for x in seeds) / max(1, len(seeds) - 1)) ** 0.5
    text = f"{found['mean']:.4f}"
    if "low" in found:
        text += f" [{found['low']:.4f}, {found['high']:.4f}]"
    return text + (f" ± {spread:.4f}" if len(seeds) > 1 else "")


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    rows = [head, ["---"] * len(head), *body]
    return ["| " + " | ".join(row) + " |" for row in rows]
