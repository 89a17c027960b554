"""What the command line says to a script that it runs.

``penstock run`` and ``penstock check`` execute the user's script, which configures and starts its
service by itself; the flags wait here until it does. Paths on the command line are relative to the
folder that the program was started in, which the script may leave.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

STARTED_IN: Final = os.getcwd()
"""Where the program was started, as far as we can know: this is imported with the first class that
a script needs to have a service."""


@dataclass(slots=True, kw_only=True)
class Flags:
    """One command's flags.

    Attributes:
        overrides: dotted configuration key to value.
        lenient: unknown configuration keys are warnings.
        check_only: stop after the checks; nothing is opened or started.
        opens: the checks also open the models, and run what loads them.
        arguments: what the script finds in ``sys.argv`` behind its own name.
        importing: a script is run for what it defines: nothing is configured or served meanwhile.
        served: names of the services that the script has run (or checked).
        reports: one for each service or app, of ``check_only``.
    """

    overrides: Mapping[str, Any] = field(default_factory=dict)
    lenient: bool = False
    check_only: bool = False
    opens: bool = False
    arguments: Sequence[str] = ()
    importing: bool = False
    served: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)


_current = Flags()


def current() -> Flags:
    """The flags in force; those of a plain ``python service.py`` say nothing."""
    return _current


def only_defines() -> bool:
    """Whether the script runs for what it defines, and not to serve: ``importing`` says so, or
    multiprocessing imports it once more, as ``__mp_main__``, in a process that an op has started.
    """
    again = sys.modules.get("__mp_main__")  # anywhere else, another name of the main module
    imported = again is not None and again.__name__ == "__mp_main__"
    return _current.importing or (imported and sys.modules.get("__main__") is not again)


@contextmanager
def using(flags: Flags) -> Iterator[Flags]:
    """Put these flags in force for a while."""
    global _current
    before, _current = _current, flags
    try:
        yield flags
    finally:
        _current = before
