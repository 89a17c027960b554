"""Children that run the program anew, where a fork of the supervisor would not do.

A fork lacks the threads of its parent and may wait for ever for a lock that one of them held. So
where a script has started threads before its service runs, a child is forked only to become another
program at once: the same one, from its beginning. It runs the script again, up to the service that
it is for, and is an engine or a worker from there on. What the script does on its way there happens
once more in each child, its threads included.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NoReturn

from penstock.errors import StartupError
from penstock.service import flags
from penstock.service.native_threads import lost_by_forks, native_threads
from penstock.service.place import Place

_VARIABLE: Final = "_PENSTOCK_ROLE"
"""Not one of those that configure: they are all read before the service knows what it is."""

_NO_FILE: Final = ("", "-")  # what a program is called that was typed, or read from a pipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a spawned process is for.

    Attributes:
        service: how many services the script ran before that one.
        place: which engine it is, or works for.
        line: descriptor of its line to the supervisor, or to its engine.
        listeners: descriptors of an engine's, by the key that asks for them.
        op: whose worker it is; None for an engine.
        index: the worker's number.
        pid: its own, which a program that it starts does not share.
    """

    service: int
    place: Place
    line: int
    listeners: Mapping[str, int] = field(default_factory=dict)
    op: str | None = None
    index: int = 0
    pid: int = 0


def threads_in_the_way() -> list[str]:
    """Threads that a fork would lack, by name: Python's own, and those of native libraries that do
    not start new ones in a child.
    """
    names = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    try:
        names += lost_by_forks(native_threads())
    except OSError:  # this system does not tell
        return names
    return names


def why_not_again() -> str | None:
    """What keeps this program from being run again; None when nothing does."""
    if sys.argv[0] in _NO_FILE:
        return "its script is not in a file"
    if "ipykernel" in sys.modules:
        return "it is a notebook"
    return None


def become(role: Role) -> NoReturn:
    """In a fork: become the program that this process is, for that role.

    Raises:
        OSError: it cannot be started.
    """
    for fd in (role.line, *role.listeners.values()):
        os.set_inheritable(fd, True)
    text = json.dumps(asdict(replace(role, pid=os.getpid())))
    if flags.STARTED_IN is not None:
        os.chdir(flags.STARTED_IN)
    os.execve(  # noqa: S606 - no shell is wanted
        sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _VARIABLE: text}
    )


def role() -> Role | None:
    """What this process was spawned for; None when it was started by anybody else.

    Raises:
        StartupError: that cannot be read.
    """
    text = os.environ.get(_VARIABLE)
    if text is None:
        return None
    try:
        given: dict[str, Any] = json.loads(text)
        found = Role(**{**given, "place": Place(**given["place"])})
    except (ValueError, TypeError, KeyError) as error:
        raise StartupError(f"{_VARIABLE} is set by the service itself, not to {text!r}") from error
    return found if found.pid == os.getpid() else None


def own(found: Role) -> None:
    """It is what this process is from now on: programs that it starts get nothing of it."""
    os.environ.pop(_VARIABLE, None)
    for fd in (found.line, *found.listeners.values()):
        os.set_inheritable(fd, False)
