"""A reload: the program is run again beside what serves, and takes its place.

A template runs the changed program (see ``template.py``). Then one engine of it starts, and when it
is ready the others. When all are ready, they serve, and the old ones are sent ``Leave``. Whatever
fails before that ends the new processes, and the old ones serve on::

    loading ──Loaded──> starting ──all Ready──> Serve to the new, Leave to the old ──Switched──> end
       └──────────────────┴──a failure, a limit of time, a stop──> the new ones are ended

The result is reported when the new ones accept connections and the old ones do not, so that whoever
connects after a reload gets the changed program.

The record of the reloads is a file in memory of the supervisor, by which ``penstock reload --pid``
finds the process and the result: nobody else may read it than who may signal the process.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.errors import StartupError
from penstock.repository.served import Served
from penstock.supervisor.code import Code
from penstock.supervisor.engine_process import EngineProcess
from penstock.supervisor.engine_slot import EngineSlot
from penstock.supervisor.messages import Loaded
from penstock.supervisor.template import Template

_RECORD: Final = "penstock-reloads"
_POLL: Final = 0.05  # seconds between two looks at the record


@dataclass(frozen=True, slots=True)
class Reloading:
    """How a service is reloaded.

    Attributes:
        main: see ``Template``.
        code: the code of a template that has loaded its program; raises StartupError if it cannot
            serve here.
        limit: seconds within which the program must reach its service.
        problem: why the program cannot be run again; None if it can.
    """

    main: Callable[[Any, int], int]
    code: Callable[[Template, Loaded], Code]
    limit: float = math.inf
    problem: str | None = None


@dataclass(slots=True, kw_only=True)
class Reload:
    """The reload under way.

    Attributes:
        template: runs the changed program.
        askers: the engines that wait for the result, and the numbers of their requests.
        began: when, in seconds of the monotonic clock.
        due: when its current step fails.
        code: of the changed program, once it is loaded.
        limits: the seconds for an engine to end, and to answer, once it is loaded.
        step_limit: seconds for an engine to become ready, once it is loaded.
        load_limit: seconds within which the next program must reach its service, once it is loaded.
        states: of the changed program's names, once it is loaded.
        again: whether another reload follows.
        engines: the new processes, which do not serve yet.
    """

    template: Template
    askers: list[tuple[EngineProcess, int]]
    began: float
    due: float
    code: Code | None = None
    limits: tuple[float, float] = (math.inf, math.inf)
    step_limit: float = math.inf
    load_limit: float = math.inf
    states: Sequence[Served] = ()
    again: bool = False
    engines: dict[EngineSlot, EngineProcess] = field(default_factory=dict)


@dataclass(slots=True)
class Switch:
    """A reload whose engines have been told to serve, and the others to leave.

    Attributes:
        reload: that reload.
        awaited: engines that have not reported yet that they have done so.
        due: when they are not waited for any longer.
    """

    reload: Reload
    awaited: set[EngineProcess]
    due: float


class Record:
    """The record of the reloads; only with the supervisor's action of SIGHUP."""

    def __init__(self) -> None:
        self._file = os.memfd_create(_RECORD, os.MFD_CLOEXEC)
        self._begun = 0
        self._write({"begun": 0, "ended": 0})

    def begin(self) -> None:
        """A reload has begun."""
        self._begun += 1
        self._write({"begun": self._begun, "ended": self._begun - 1})

    def end(self, seconds: float, problem: str | None) -> None:
        """It has ended."""
        ended = {"begun": self._begun, "ended": self._begun}
        self._write({**ended, "seconds": seconds, "problem": problem})

    def _write(self, record: dict[str, Any]) -> None:
        data = json.dumps(record).encode()
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def reload_process(pid: int, timeout: float = math.inf) -> float:
    """Send SIGHUP to the main process of a service, and wait for the result; returns the seconds
    that the reload took.

    Raises:
        StartupError: the service serves on as before, with the reason; or the process is no main
            process of a service that SIGHUP reloads.
    """
    try:
        file = _record_of(pid)
        before = _read(file)["begun"]
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        raise StartupError(f"process {pid} cannot be reloaded: {error.strerror}") from error
    until = time.monotonic() + timeout
    found: dict[str, Any] = {"ended": before}
    while found["ended"] <= before:
        if time.monotonic() > until:
            raise StartupError(f"no result within {timeout:g} s; the log will have it")
        time.sleep(_POLL)
        try:
            found = _read(file)
        except OSError:
            raise StartupError(f"process {pid} has ended meanwhile") from None
    if found["problem"] is not None:
        raise StartupError(found["problem"])
    return float(found["seconds"])


def _record_of(pid: int) -> Path:
    folder = Path(f"/proc/{pid}/fd")
    for each in folder.iterdir():
        with suppress(OSError):
            if os.readlink(each).startswith(f"/memfd:{_RECORD}"):
                return each
    raise StartupError(
        f"process {pid} is no main process of a service that SIGHUP reloads: give the process that"
        " was started first; a service of one process needs supervised: true"
    )


def _read(file: Path) -> dict[str, Any]:
    while True:
        try:
            found: dict[str, Any] = json.loads(file.read_bytes())
        except ValueError:  # it is being written
            time.sleep(_POLL)
        else:
            return found
