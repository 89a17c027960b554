"""``penstock worker``: runs a function or class of a module as an external worker."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.door.budget import default_budget
from penstock.errors import HookError, StartupError
from penstock.executors.external.program import WorkerProgram
from penstock.executors.work import BoundOp, WorkOptions
from penstock.ops.functions import runs_on_loop
from penstock.service.bound_ops import init
from penstock.typed.decoded import DECODED
from penstock.typed.op import TypedOp

_log = logging.getLogger(__name__)


def worker_program(target: str, path: Path, kind: str, *, batched: bool) -> WorkerProgram:
    """Import the module, create the object, load the model, and return the worker program.

    Args:
        target: ``module:name``; the working directory is on the import path.
        path: path of the service's socket.
        kind: the media type of bodies.
        batched: whether the function, or the class's ``inference`` or ``predict``, takes and
            returns lists. A class with ``batch_inference`` is always batched.

    Raises:
        StartupError: the target does not exist, or cannot be served; with the original exception as
        its cause.
    """
    found = _imported(target)
    op = bound_op(found, batched=batched)
    if not batched and _may_take_batches(found):
        _log.warning(
            "%s takes lists, and is called with one request at a time: if a list is to hold an"
            " element for each request of a batch, start the worker with --batched",
            target,
        )
    return WorkerProgram(op, str(path), kind)


def _may_take_batches(target: Callable[..., Any]) -> bool:
    """Whether the types allow ``--batched``. They also allow a request that holds a list, so it is
    not chosen from them.
    """
    if hasattr(target, "preprocess") or hasattr(target, "batch_inference"):
        return False  # the types of ``preprocess`` are of one request; the other is always batched
    try:
        TypedOp(target, batched=True)
    except HookError:
        return False
    return True


def bound_op(target: Callable[..., Any], *, batched: bool = False) -> BoundOp:
    """A function or class, ready to run batches.

    Raises:
        StartupError: it cannot be served.
    """
    op = TypedOp(target, batched=batched or hasattr(target, "batch_inference"), answers=None)
    if op.caller_parameter is not None:
        raise HookError(f"{op.name}: an external worker does not get the Caller")
    if runs_on_loop(op.process):
        raise HookError(f"{op.name} is a coroutine: an external worker runs one call at a time")
    init(op)
    DECODED.share(default_budget())
    return BoundOp(op, None, WorkOptions(process=op.hook_name("process")))


def _imported(target: str) -> Any:
    """Import ``module:name``; other exceptions of the import are those of user code."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise StartupError(f"give module:name, such as iris:predict, not {target!r}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        hint = f"; write {module[:-3]}:{name}" if module.endswith(".py") else ""
        raise StartupError(f"there is no module {module!r} here: {error}{hint}") from error
    if not hasattr(found, name):
        raise StartupError(f"the module {module} has no {name}")
    value = getattr(found, name)
    if not callable(value):
        raise StartupError(f"{target} is a {type(value).__name__}: give a function or a class")
    return value
