"""Runs a deployment in this process: its log, its signals, and one engine or the supervisor.

The ports are bound first: a taken port fails at once. Then models are opened and ``init_op`` runs;
``lifecycle.py`` has the rest of an engine's start, and its stop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import NoReturn

from penstock.config.resolve import OpOptions
from penstock.config.schema import ServiceConfig
from penstock.door.certificates import Certificates
from penstock.errors import StartupError
from penstock.observe.logs import logging_to_stderr
from penstock.security.tokens import import_jwt
from penstock.service import flags, op_servers
from penstock.service.banner import address_lines, announce, check_reports
from penstock.service.blueprint import Deployment
from penstock.service.build import LoadedDeployment, load
from penstock.service.credentials import Credentials, callers_without_key
from penstock.service.door import tls_of
from penstock.service.in_process import InProcessService
from penstock.service.instruments import Process, instruments_in
from penstock.service.lifecycle import EngineLifecycle, cannot_replace
from penstock.service.listening import (
    Listeners,
    addresses,
    bind_all,
    bind_worker_sockets,
    listen_on_all,
    raise_descriptor_limit,
)
from penstock.service.loop import run_on_a_loop
from penstock.service.model_keys import send_keys
from penstock.service.numpy_compat import restore_numpy
from penstock.service.processes import Processes, limits_of, log_options
from penstock.service.role import Role, spawned_role
from penstock.service.serving import import_otel
from penstock.supervisor.signals import (
    Stopped,
    StopSignals,
    on_hangup,
    signals_stop_the_start,
)

_log = logging.getLogger(__name__)


def run_deployment(deployment: Deployment) -> None:
    """Serve in this thread, the main one, until SIGTERM or SIGINT.

    Raises:
        StartupError: the service cannot start; nothing is left running.
    """
    now = flags.current()
    number = len(now.served)
    now.served.append(" and ".join(graph.called for graph in deployment.graphs))
    now.log = log_options(deployment.config)
    if deployment.config.otel:
        import_otel()
    if deployment.config.security.jwt is not None:
        import_jwt()
    restored = restore_numpy() if deployment.legacy else None
    if now.check_only:
        now.reports += _checked(deployment, opens=now.opens)
        return
    if threading.current_thread() is not threading.main_thread():
        raise StartupError("a service must run in the main thread, which takes the signals")
    deployment = replace(deployment, service=number)
    role = spawned_role()
    if role is None:
        _run_service(deployment, number, restored)
    elif role.service == number:  # else this process runs a later service of the script
        _run_role(deployment, role)


def _checked(deployment: Deployment, *, opens: bool) -> list[str]:
    """The reports of ``penstock check``; with ``opens`` those of the opened models, too.

    Raises:
        StartupError: a key, a certificate or a model that the service would open cannot be used.
    """
    config = deployment.config
    if not opens:
        *reports, last = check_reports(deployment, None)
        tls = config.door.tls
        files = [tls.certificate, tls.key, tls.client_ca, config.security.keys]
        names = ", ".join(each for each in files if each is not None)
        return [*reports, last + f"\n  not opened: {names}; --open tries that, too" * bool(names)]
    tls_of(config)
    warnings = []
    if config.security.enabled:
        known = Credentials(config.security)
        warnings = [f"  warning  {each}" for each in callers_without_key(config, known)]
    options = [each for graph in deployment.graphs for each in graph.options]
    limit = config.start_timeout or None
    found = [*_try_clusters(options, limit), *_try_store(config)]
    places = [f"  warning  {each}" for each in found]
    inside = deployment.in_threads()
    loaded = load(inside)
    if _tried_out(inside, loaded):
        warnings = []  # they were logged
    return [*check_reports(deployment, loaded.options), *loaded.batching_lines, *warnings, *places]


def _try_clusters(options: list[OpOptions], timeout: float | None) -> list[str]:
    if not any(each.executor.name == "ray" for each in options):
        return []
    from penstock.service.ray_check import try_clusters

    return try_clusters(options, timeout=timeout)


def _try_store(config: ServiceConfig) -> Sequence[str]:
    if config.dag.external_store is None:
        return []
    from penstock.service.external_store import store_options
    from penstock.service.store_check import try_store

    options = store_options(config, None)
    assert options is not None
    return try_store(options)


def _tried_out(deployment: Deployment, loaded: LoadedDeployment) -> bool:
    """Start the opened service without ports, run its examples, and end it. Not if an op has
    workers or a server that only a running service has; returns whether it was done.

    Raises:
        StartupError: an example fails, or a step of the start.
    """
    options = [each for graph in deployment.graphs for each in graph.options]
    if any(each.starts_server or each.executor.needs_socket for each in options):
        return False

    async def start_and_stop() -> None:
        service = InProcessService(deployment)
        await service.start_loaded(loaded)
        await service.stop()

    asyncio.run(start_and_stop())
    return True


def _run_role(deployment: Deployment, role: Role) -> NoReturn:
    """Run one process of a service, which runs the script again, and exit."""
    deployment = op_servers.found(deployment)
    tls = None
    if role.source is None:  # an engine, or a template
        deployment = send_keys(deployment)
        tls = tls_of(deployment.config)
    processes = Processes(
        deployment=deployment,
        number=role.service,
        serve=partial(_serve, tls),
        kept=dict(role.kept),
    )
    processes.run_role(role)


def _run_service(deployment: Deployment, number: int, note: str | None) -> None:
    """Run the service in the process of its script.

    Args:
        deployment: what is served.
        number: how many services the script ran before.
        note: is logged first.
    """
    process = Process(deployment.config, True, {})
    with (
        instruments_in(process, deployment.instruments),
        logging_to_stderr(log_options(deployment.config), at_once=deployment.is_supervised),
    ):
        if note is not None:
            _log.info("%s", note)
        for warning in (*deployment.warnings, raise_descriptor_limit(deployment.processes)):
            if warning is not None:
                _log.warning("%s", warning)
        try:
            with signals_stop_the_start() as signals, ExitStack() as stack:
                # A supervisor, which starts later, can replace processes; nothing else can.
                on_hup = (lambda: None) if deployment.is_supervised else cannot_replace
                stack.enter_context(on_hangup(on_hup))
                tls = tls_of(deployment.config)
                deployment = op_servers.start(send_keys(deployment), stack)
                sockets = bind_worker_sockets(deployment, stack)
                bound = bind_all(deployment.config, stack, one_port=deployment.one_port)
                engines = [{**each, **sockets} for each in bound]
                if deployment.is_supervised:
                    serve = partial(_serve, tls)
                    processes = Processes(
                        deployment=deployment, number=number, serve=serve, kept=process.kept
                    )
                    _supervise(processes, engines, signals)
                else:
                    _serve(tls, deployment, engines[0], signals)
        except Stopped:
            _log.info("stopped before the start was over")
        first = threading.main_thread()
        others = [x.name for x in threading.enumerate() if not x.daemon and x is not first]
        if others:
            _log.info("threads of the script, which its end waits for: %s", ", ".join(others))


def _serve(
    tls: Certificates | None,
    deployment: Deployment,
    listeners: Listeners,
    signals: StopSignals,
    control: socket.socket | None = None,
) -> None:
    """Run one engine in this process."""
    loaded = load(deployment)
    signals.raise_if_stopped()
    if deployment.engine_id.is_first:
        for note in loaded.notes:
            _log.warning("%s", note)
    opened = partial(_announce, deployment, listeners)
    run_on_a_loop(EngineLifecycle(loaded, listeners, tls, opened, control).run(signals))


def _supervise(
    processes: Processes,
    engines: Sequence[Listeners],
    signals: StopSignals,
) -> None:
    """Run the supervisor in this process: it forks the engines and their workers."""
    config = processes.deployment.config

    def open_ports(lines: Sequence[str]) -> None:
        listen_on_all(config, engines)
        _announce(processes.deployment, engines[0], lines)

    if processes.supervise(engines, open_ports, signals, *limits_of(config)):
        raise StartupError("the service ended; the messages above say why")


def _announce(deployment: Deployment, listeners: Listeners, lines: Sequence[str]) -> None:
    config = deployment.config
    first = address_lines(deployment, addresses(config, listeners))
    announce([*first, *lines], log_options(config))
