"""Tells the author of a script that it has defined a service and ended without serving it."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Final

_SERVERS: Final = frozenset(("uvicorn", "hypercorn", "granian", "gunicorn"))
"""Servers that a script may run in other processes, which import it again."""

_kinds: tuple[type, ...] = ()
_is_used = False
_file: str | None = None


def watch(*kinds: type) -> None:
    """A service was made: look for objects of these classes when the interpreter exits."""
    global _kinds, _file
    if not _kinds:
        _kinds = kinds
        # The interpreter removes it when the script has ended.
        _file = getattr(sys.modules.get("__main__"), "__file__", None)
        atexit.register(_tell)


def used() -> None:
    """A service was run, checked, or given to another server or a test."""
    global _is_used
    _is_used = True


def _tell() -> None:
    interactive = sys.flags.interactive or hasattr(sys, "ps1")
    raised = hasattr(sys, "last_type")  # the traceback is the reason
    if _is_used or _file is None or interactive or raised or not _SERVERS.isdisjoint(sys.modules):
        return
    names = vars(sys.modules["__main__"])
    found = next((each for each in names.values() if isinstance(each, _kinds)), None)
    if found is not None and sys.stderr is not None:
        script = Path(_file).name
        text = f"run it, such as by app.run(), or use: penstock run {script}"
        sys.stderr.write(f"{script} defines {found!r} and has not served it: {text}\n")
