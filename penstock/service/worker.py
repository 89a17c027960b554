"""A worker process of one op: its model opened on its card, its ``init_op`` run, then batches."""

from __future__ import annotations

import logging
import os
import resource
import socket
import traceback
from contextlib import suppress
from typing import Any

from penstock.errors import StartupError
from penstock.executors.processes.child import Child
from penstock.executors.processes.watchdog import resident_bytes
from penstock.executors.processes.worker import ANSWER_BYTES
from penstock.executors.work import BoundOp
from penstock.service.blueprint import Deployment
from penstock.service.build import bound_op
from penstock.service.models import card_of, described, signature_of
from penstock.service.placement import stay_on_cpus

_log = logging.getLogger(__name__)


def serve_op(deployment: Deployment, op: str, index: int, channel: socket.socket) -> int:
    """Be worker ``index`` of an op until the engine has gone or says stop.

    Returns:
        The process's exit status.
    """
    channel.setblocking(True)
    with suppress(ConnectionError):  # the engine has gone: nobody is left who could be told
        return _serve(Child(channel, ANSWER_BYTES), deployment, op, index)
    return 0


def _serve(child: Child, deployment: Deployment, op: str, index: int) -> int:
    _leave_no_core()
    blueprint, at = deployment.find_op(op)
    try:
        stay_on_cpus(blueprint.options[at], index)
        bound, notes = bound_op(deployment, op, index)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the service is told
        _log.error("op %s: worker %s cannot start", op, index, exc_info=error)
        told = traceback.format_exception_only(error)
        # What we raise says all by itself, and will be raised again as what it is.
        child.failed(str(error) if isinstance(error, StartupError) else "".join(told).strip())
        return 1
    if index == 0:
        for note in notes:
            _log.warning("op %s: %s", op, note)
    child.ready(_loaded(bound, _card(deployment, op, index)))
    child.serve(bound, blueprint.outside_reader(at))
    return 0


def _loaded(op: BoundOp, card: str | None) -> dict[str, Any]:
    """What this worker has loaded, for the engine and whoever asks how the service stands."""
    model = op.model
    return {
        "pid": os.getpid(),
        "model": model and described(signature_of(model)),
        "device": card and f"gpu {card}",
        "memory": resident_bytes(os.getpid()) or 0,
    }


def _card(deployment: Deployment, name: str, index: int) -> str | None:
    """The card that it was given, if any."""
    blueprint, at = deployment.find_op(name)
    op, options = blueprint.graph.ops[at], blueprint.options[at]
    turn = deployment.place.card(options.concurrency, index)
    return card_of(op, options, blueprint.config.op.get(name), turn)


def _leave_no_core() -> None:
    """A core file would have users' data; the report of a death has the Python stacks."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    # One byte is too little for a file, and the only limit that programs which take cores obey.
    resource.setrlimit(resource.RLIMIT_CORE, (1 if most else 0, most))
