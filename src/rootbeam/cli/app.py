"""The tree of verbs. Modules that are slow to import are imported inside the verbs."""

from __future__ import annotations

import typer

from rootbeam.cli.answers import doctor, evaluate, inspect, report
from rootbeam.cli.data import data_app
from rootbeam.cli.demo import demo
from rootbeam.cli.recommending import recommend
from rootbeam.cli.training import train, tune

app = typer.Typer(
    name="rootbeam",
    help="From an interaction log to a recommender; says honestly how good it is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.add_typer(data_app, name="data")
app.command()(train)
app.command()(evaluate)
app.command()(recommend)
app.command()(tune)
app.command()(inspect)
app.command()(report)
app.command()(doctor)


def _version(asked: bool) -> None:
    if asked:
        from rootbeam import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    """Turns an interaction log into a recommender, and says honestly how good it is."""
