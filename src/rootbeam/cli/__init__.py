"""The command line: one module a group of verbs; `main` turns every known error into one line."""

from __future__ import annotations

import errno
import json
import sys
from typing import Any

LONGEST_MESSAGE = 4000
INTERRUPTED = 130  # what typer makes of Ctrl-C
NAME_ERRORS = {errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; exit code 0 done, 1 failed, 2 bad input. Never a traceback for what a user did."""
    import typer

    from rootbeam.cli.app import app
    from rootbeam.core.errors import RootbeamError

    given = sys.argv[1:] if arguments is None else arguments
    try:
        "".join(given).encode()
        code = app(given, standalone_mode=False, prog_name="rootbeam")
        if code == INTERRUPTED:
            return _fail("stopped by the user", 1, given)
        return code if isinstance(code, int) else 0
    except typer.Exit as asked:
        return asked.exit_code
    except _command_line_error() as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return 2
        return _fail(error.format_message(), 2, given)
    except RootbeamError as error:
        return _fail(str(error), error.exit_code, given)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped by the user", 1, given)
    except UnicodeEncodeError:
        return _fail("an argument is not UTF-8 text; give names and ids in UTF-8", 2, given)
    except BrokenPipeError:
        sys.stdout = None
        return 1
    except PermissionError as error:
        return _fail(
            f"no permission for {error.filename}; choose another place or change its rights", 1, given
        )
    except OSError as error:
        told = f"{error.strerror or error}: {error.filename or 'writing the result'}"
        return _fail(told, 2 if error.errno in NAME_ERRORS else 1, given)
    except MemoryError:
        return _fail("out of memory; use a smaller part of the events or a machine with more", 1, given)


def _command_line_error() -> Any:
    """Base of the errors of a wrong command line: click's, which newer releases of typer carry inside."""
    import typer

    return typer.BadParameter.__mro__[2]


def _fail(message: str, code: int, arguments: list[str]) -> int:
    message = _one_line(message)
    if "--json" in arguments:
        print(json.dumps({"error": message, "exit_code": code}))
    print(f"error: {message}", file=sys.stderr)
    return code


def _one_line(message: str) -> str:
    """What was given may hold line breaks and be as long as it likes."""
    line = " ".join(message.splitlines())
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:LONGEST_MESSAGE]} …"


def run() -> None:
    """The console script."""
    sys.exit(main())
