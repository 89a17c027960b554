"""A worker process of one op: its model opened on its card, its ``init_op`` run, then batches."""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import socket
import traceback
from contextlib import suppress
from functools import partial

from penstock.arrays import take_room_from
from penstock.errors import StartupError
from penstock.executors.processes.child import Child
from penstock.executors.processes.worker import ANSWER_BYTES, SLAB_BYTES
from penstock.service.blueprint import Deployment
from penstock.service.build import bound_op
from penstock.service.placement import stay_on_cpus

_log = logging.getLogger(__name__)


def serve_op(deployment: Deployment, op: str, index: int, channel: socket.socket) -> int:
    """Be worker ``index`` of an op until the engine has gone or says stop.

    Returns:
        The process's exit status.
    """
    channel.setblocking(True)
    child = Child(channel, SLAB_BYTES, ANSWER_BYTES)
    child.take_stderr()
    take_room_from(child.room)
    # What an op forks has another's memory before it.
    os.register_at_fork(after_in_child=partial(take_room_from, None))
    _leave_a_stack_and_no_core()
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
    with suppress(ConnectionError):  # the engine has gone: nobody is left who could be told
        child.ready()
        child.serve(bound, blueprint.outside_reader(at))
    return 0


def _leave_a_stack_and_no_core() -> None:
    """When a signal ends this process, its report has the Python stack; a core has users' data."""
    faulthandler.enable(2)
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    # One byte is too little for a file, and the only limit that programs which take cores obey.
    resource.setrlimit(resource.RLIMIT_CORE, (1 if most else 0, most))
