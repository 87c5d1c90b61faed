"""Every error Rootbeam raises on purpose.

RootbeamError                 something went wrong; exit code 1
├── InputError                what was given cannot be used; exit code 2
│   ├── EventsError           events or items that cannot be read
│   ├── ConfigError           a setting out of range or unknown
│   ├── BundleError           a bundle that is missing, damaged or too new
│   └── UnknownIdError        a user or item that the model has never seen
├── MissingExtraError         an optional package that is not installed
└── InterruptedTraining       stopped by the user; the state on disk goes on with --resume

A message says what was given, what was needed, and what to do, in one line.
"""

from __future__ import annotations


class RootbeamError(Exception):
    """Base of all errors raised on purpose; the command line prints its message alone."""

    exit_code = 1


class InputError(RootbeamError):
    """What the caller gave cannot be used."""

    exit_code = 2


class EventsError(InputError):
    """Events or items that cannot be read."""


class ConfigError(InputError):
    """A setting out of range, or a name that is not a setting."""


class BundleError(InputError):
    """A bundle that is missing, damaged, or written by a newer version."""


class UnknownIdError(InputError):
    """A user or item that the model has never seen."""


class MissingExtraError(RootbeamError):
    """An optional package is needed and not installed; the message names the pip command."""


class InterruptedTraining(RootbeamError):
    """Training was stopped; the message says how to go on."""
