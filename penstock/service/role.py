"""The role of a process that runs the program again: an engine, a worker, or a template."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NoReturn

from penstock.errors import StartupError
from penstock.executors.elsewhere.opening import VARIABLE
from penstock.executors.executor import OpSource
from penstock.service.program import this_program
from penstock.supervisor.engine_id import EngineId

COPIES: Final = "_PENSTOCK_MODELS"
"""The variable that tells such a process the copies of models; see ``hot_loading.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The role of a spawned process.

    Attributes:
        service: the number of services that the script ran before it.
        engine_id: its engine, or the engine that it works for.
        line: descriptor of its socket to the supervisor, or to its engine.
        listeners: descriptors of an engine's listening sockets, by configuration key.
        versions: states of names that an engine serves, plain; see ``Deployment.changed``.
        source: the op of a worker; None for an engine.
        index: the worker's number.
        elsewhere: whether the worker was not started by the supervisor.
        logged: whether its engine reads and logs what it writes.
        pid: its process id, which distinguishes it from programs that it starts.
        kept: descriptors that instruments keep open, by name.
        template: the version of the supervisor's Penstock, if it is a template; else None.
        errors: a template's descriptor of the real standard error.
    """

    service: int
    engine_id: EngineId
    line: int
    listeners: Mapping[str, int] = field(default_factory=dict)
    versions: Sequence[Mapping[str, Any]] = ()
    source: OpSource | None = None
    index: int = 0
    elsewhere: bool = False
    logged: bool = False
    pid: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    template: str | None = None
    errors: int = -1

    def run_program(self, environment: Mapping[str, str] | None = None) -> NoReturn:
        """In a fork: execute this program again, with this role.

        Args:
            environment: the variables of its environment; None: those of this process.

        Raises:
            StartupError: it cannot be started.
        """
        self._set_inheritable(True)
        try:
            this_program().run_again(asdict(self), environment)
        except OSError as error:
            raise StartupError(f"the program cannot be run again: {error}") from error

    def take(self) -> None:
        """Take the role, so that programs started by this process do not inherit it."""
        os.environ.pop(VARIABLE, None)
        self._set_inheritable(False)

    def _set_inheritable(self, inheritable: bool) -> None:
        for fd in (self.line, self.errors, *self.listeners.values(), *self.kept.values()):
            if fd >= 0:
                os.set_inheritable(fd, inheritable)


def spawned_role() -> Role | None:
    """The role of this process; None if it was not spawned by a supervisor.

    Raises:
        StartupError: the role cannot be read.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    try:
        given: dict[str, Any] = json.loads(text)
        source = given["source"]
        found = Role(
            **{
                **given,
                "engine_id": EngineId(**given["engine_id"]),
                "source": None if source is None else OpSource(**source),
            }
        )
    except (ValueError, TypeError, KeyError) as error:
        raise StartupError(f"{VARIABLE} is set by the service itself, not to {text!r}") from error
    return found if found.pid == os.getpid() else None
