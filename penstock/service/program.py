"""The program of this process: whether and how it can be run again, for a worker or an engine."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Final

from penstock.executors.elsewhere.opening import Opening, Program
from penstock.executors.executor import OpSource
from penstock.service import flags
from penstock.supervisor.engine_id import EngineId

_NO_FILE: Final = ("", "-")  # names of programs from standard input
_CONFIGURES: Final = "PENSTOCK_"
"""Prefix of the variables that configure a service."""


def rerun_problem() -> str | None:
    """Why this program cannot be run again; None if it can."""
    if sys.argv[0] in _NO_FILE:
        return "its script is not in a file"
    if "ipykernel" in sys.modules:
        return "it is a notebook"
    return None


def this_program() -> Program:
    """The program of this process."""
    return Program(
        arguments=tuple(sys.orig_argv[1:]),
        folder=flags.STARTED_IN,
        variables={key: value for key, value in os.environ.items() if key.startswith(_CONFIGURES)},
    )


def opening_of(op: OpSource, engine_id: EngineId, service: int | None) -> Opening | None:
    """How a worker elsewhere opens an op of this process's service; None if it cannot.

    Args:
        op: the op.
        engine_id: the engine that it works for.
        service: the number of services that the program ran before; None if it does not run it.
    """
    if service is None or rerun_problem() is not None:
        return None
    return Opening(program=this_program(), service=service, engine=asdict(engine_id), source=op)
