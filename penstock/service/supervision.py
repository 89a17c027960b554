"""What the configuration says about workers: processes to be looked after, and those of others."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config.problems import Problem
from penstock.config.resolve import OpOptions
from penstock.config.schema import ServiceConfig
from penstock.executors.processes.watchdog import Supervision


def supervision_of(options: OpOptions, config: ServiceConfig) -> Supervision:
    """How the workers of one op are to be looked after."""
    return Supervision(
        kill_late=options.kill_late,
        start_timeout=config.start_timeout or None,
        hang_limit=config.hang_limit or None,
        memory_limit=options.memory_limit,
        max_batches=options.max_batches,
        crash_dir=config.crash_dir,
    )


def only_for_processes(options: OpOptions) -> Iterator[Problem]:
    """What is asked of an op without processes: nobody can end its calls or replace its workers."""
    if options.executor.own_processes:
        return
    if options.kill_late:
        text = (
            "kill is for ops that run in processes, and this one does not:"
            " its calls cannot be ended; write abandon, or executor: process"
        )
        yield Problem(path=("op", options.name, "on_timeout"), text=text)
    text = "is for ops that run in processes, and this one does not: leave it out"
    for key, value in (
        ("memory_limit_mib", options.memory_limit),
        ("max_batches", options.max_batches),
    ):
        if value is not None:
            yield Problem(path=("op", options.name, key), text=text)


def problems_of_socket(options: OpOptions, config: ServiceConfig) -> Iterator[Problem]:
    """What is wrong with an op's socket, or with the lack of one."""
    path, name = ("op", options.name, "socket"), options.executor.name
    if not options.executor.needs_socket:
        if options.socket is not None:
            text = f"is for ops with executor: external, and this one has {name}: leave it out"
            yield Problem(path=path, text=text)
    elif options.socket is None:
        text = f"must be set with executor: {name}: the path that its workers connect to"
        yield Problem(path=path, text=text)
    elif config.engines > 1:
        text = (
            "cannot be shared by several engines: leave out build_dag_each_worker, or start a"
            " service for each"
        )
        yield Problem(path=path, text=text)
