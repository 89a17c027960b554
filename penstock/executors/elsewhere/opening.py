"""How a worker opens its op: by running the user's program again, up to its service.

``python -m penstock.executors.elsewhere`` does that with an Opening from its standard input; worker
processes of a supervisor do it with descriptors that they inherit.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NoReturn

from penstock.executors.executor import OpSource

VARIABLE: Final = "_PENSTOCK_ROLE"
"""Tells a program that is run again what it is to be. Not a configuration variable: those are all
read before the role is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The user's script or configuration, as it is run.

    Attributes:
        arguments: of the Python interpreter.
        folder: the working directory.
        variables: environment variables that configure its service.
    """

    arguments: tuple[str, ...]
    folder: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def run_again(
        self, role: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> NoReturn:
        """Execute the program in this process.

        Args:
            role: what it is to be; gets the process's id, which distinguishes it from programs that
                it starts.
            environment: all of its variables; None: those of this process, and ``variables``.

        Raises:
            OSError: it cannot be executed.
        """
        given = json.dumps({**role, "pid": os.getpid()})
        if environment is None:
            environment = {**os.environ, **self.variables}
        os.chdir(self.folder)
        os.execve(  # noqa: S606 - no shell is wanted
            sys.executable,
            [sys.executable, *self.arguments],
            {**environment, VARIABLE: given},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a worker elsewhere needs to open its op, and to reach its engine. Plain data.

    Attributes:
        program: is run again; another machine may need another folder.
        service: the number of services that the program runs before this one.
        engine: the id of the engine that it works for.
        source: the op.
        index: the worker's number within the op.
        host: the address of the engine's socket; this and the following are set for each worker.
        port: its port.
        token: a secret that the worker sends first, once.
        output_token: the same for the connection with what it writes; empty if there is none.
    """

    program: Program
    service: int
    engine: Mapping[str, int]
    source: OpSource
    index: int = 0
    host: str = ""
    port: int = 0
    token: str = ""
    output_token: str = ""

    def encode(self) -> bytes:
        """Encode it, as the standard input of ``python -m penstock.executors.elsewhere``."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Opening:
        """Decode it.

        Raises:
            ValueError: it is none.
        """
        try:
            given = json.loads(data)
            program, source = Program(**given["program"]), OpSource(**given["source"])
            return cls(**{**given, "program": program, "source": source})
        except (TypeError, KeyError) as error:
            raise ValueError(f"this is no opening: {error}") from error

    def role(self, line: int) -> dict[str, Any]:
        """The role of its process.

        Args:
            line: the descriptor of its connection to the engine.
        """
        return {
            "service": self.service,
            "engine_id": dict(self.engine),
            "line": line,
            "source": asdict(self.source),
            "index": self.index,
            "elsewhere": True,
            "logged": bool(self.output_token),
        }
