"""Writes docs/command-line.md from the help texts: `python docs/make_command_line.py`."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

PAGE = Path(__file__).with_name("command-line.md")
WIDTH = 80
INTRODUCTION = """\
# The command line

Made from the help texts by `docs/make_command_line.py`; do not edit. Every verb exits with 0 when it is done,
1 when it failed and 2 when what it was given cannot be used. Results go to stdout, everything else to stderr.
"""


def verbs() -> list[str]:
    """Every verb, those of a group after its name, as in "data split"; "" is the program itself."""
    from rootbeam.cli.app import app

    groups = {group.name or "": group.typer_instance for group in app.registered_groups}
    names = [command.callback.__name__ for command in app.registered_commands if command.callback]
    for name, group in groups.items():
        assert group is not None
        names.append(name)
        names += [f"{name} {c.callback.__name__}" for c in group.registered_commands if c.callback]
    return ["", *names]


def help_of(verb: str) -> str:
    """What `rootbeam VERB --help` prints on a terminal of WIDTH columns."""
    from rootbeam.cli import main

    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            code = main([*verb.split(), "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    if code:
        raise SystemExit(f"rootbeam {verb} --help ended with {code}")
    return "\n".join(line.rstrip() for line in shown.getvalue().strip().splitlines())


def page() -> str:
    parts = [INTRODUCTION]
    for verb in verbs():
        parts.append(f"## {f'rootbeam {verb}'.strip()}\n\n```text\n{help_of(verb)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
