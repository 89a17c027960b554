"""Passes command-line flags to the script that a command runs.

``penstock run`` and ``penstock check`` execute the user's script, which configures and starts its
service itself; the flags are stored here until then. Paths on the command line are relative to the
folder in which the program was started, which the script may leave.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.observe.logs import LogOptions


def _folder() -> str:
    """The working directory, by the name under which it was entered: a link to the current release
    of a program may lead to another one later.
    """
    named = os.environ.get("PWD", "")
    try:
        if os.path.isabs(named) and os.path.samefile(named, "."):
            return named
    except OSError:
        return os.getcwd()
    return os.getcwd()


def _variables() -> dict[str, str]:
    """The environment with which this process was started, without the script's changes."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = [os.fsdecode(each).partition("=") for each in file.read().split(b"\0")]
    except OSError:
        return dict(os.environ)
    return {name: value for name, equals, value in pairs if equals}


STARTED_IN: Final = _folder()
"""The folder in which the program was started: this module is imported with the first class that a
service needs."""

STARTED_WITH: Final[Mapping[str, str]] = _variables()
"""The environment with which it was started."""


@dataclass(slots=True, kw_only=True)
class Flags:
    """One command's flags.

    Attributes:
        overrides: dotted configuration key to value.
        over: the keys of the file of ``--config``, see ``config.load``.
        lenient: unknown configuration keys are warnings.
        check_only: stop after the checks, without opening or starting anything.
        opens: also open the models, and run ``init_op`` and ``load``.
        arguments: the script's arguments in ``sys.argv``.
        importing: the script is run for its definitions only: nothing is configured or served.
        served: names of the services that the script has run (or checked).
        log: the options of the log, from the flags and the environment; once a service's
            configuration has been read, those of it.
        reports: reports of ``check_only``, one for each service or app.
    """

    overrides: Mapping[str, Any] = field(default_factory=dict)
    over: Mapping[tuple[str | int, ...], tuple[Any, str]] = field(default_factory=dict)
    lenient: bool = False
    check_only: bool = False
    opens: bool = False
    arguments: Sequence[str] = ()
    importing: bool = False
    served: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    log: LogOptions = field(default_factory=LogOptions)


_current = Flags()


def current() -> Flags:
    """The active flags; empty for a plain ``python service.py``."""
    return _current


def only_defines() -> bool:
    """Whether the script runs for its definitions only: with ``importing``, or when multiprocessing
    imports it again, as ``__mp_main__``, in a process that an op has started.
    """
    again = sys.modules.get("__mp_main__")  # elsewhere an alias of the main module
    imported = again is not None and again.__name__ == "__mp_main__"
    return _current.importing or (imported and sys.modules.get("__main__") is not again)


@contextmanager
def using(flags: Flags) -> Iterator[Flags]:
    """Activate these flags within the context."""
    global _current
    before, _current = _current, flags
    try:
        yield flags
    finally:
        _current = before
