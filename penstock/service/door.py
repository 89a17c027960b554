"""Builds the door of a service from its configuration."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from penstock.admin.admin_port import AdminPort
from penstock.api.cors import Cors
from penstock.api.hosts import Hosts
from penstock.api.router import Router
from penstock.config.schema import DoorConfig, ServiceConfig
from penstock.door.budget import ByteBudget, default_budget
from penstock.door.certificates import Certificates
from penstock.door.door import Door
from penstock.door.limits import DoorLimits
from penstock.door.listeners import is_loopback
from penstock.engine.engine import Engine
from penstock.errors import StartupError
from penstock.executors.processes.executor import ProcessExecutor
from penstock.protocols.http1 import Http1Limits
from penstock.protocols.http2 import Http2Limits
from penstock.service.listening import max_connections
from penstock.typed.decoded import DECODED

# Open calls per admitted request. Beyond ``max_requests`` the answer is "busy", which old clients
# understand; beyond ``max_calls`` the call fails, which they do not.
_CALLS_A_REQUEST = 4


def most_in_flight(config: ServiceConfig) -> int:
    """The limit of bytes in flight of one engine."""
    return max(1, (config.max_inflight_bytes or default_budget()) // config.engines)


def is_public(listeners: Iterable[socket.socket]) -> bool:
    """Whether other machines can reach one of these bound sockets."""
    tcp = [each for each in listeners if each.family != socket.AF_UNIX]
    return not all(is_loopback(each.getsockname()[0]) for each in tcp)


def hosts_of(config: ServiceConfig, listeners: Iterable[socket.socket]) -> Hosts:
    """The check of Host and Origin for the service that has these sockets."""
    own = socket.gethostname()
    return Hosts(
        config.allowed_hosts,
        local=(own, own.partition(".")[0]),
        public=is_public(listeners),
    )


def exposure(config: ServiceConfig, *, public: bool, admits: bool) -> str | None:
    """Why a service is open to strangers; None if it is not.

    Args:
        config: of the service.
        public: whether other machines can reach it.
        admits: whether it decides who may call.
    """
    if admits or not public:
        return None
    return (
        f"host {config.host}: EVERY MACHINE that can reach this one may call this service, and no"
        " caller has to say who it is; set security, or host: 127.0.0.1 if a proxy here"
        " authenticates callers"
    )


def cors_of(config: ServiceConfig) -> Cors | None:
    """Which websites' pages may call the service; None if none may."""
    cors = config.cors
    if not cors.origins:
        return None
    return Cors(
        cors.origins,
        methods=cors.methods,
        headers=cors.headers,
        exposed_headers=cors.exposed_headers,
        credentials=cors.credentials,
        max_age=cors.max_age,
    )


def budget_of(config: ServiceConfig) -> ByteBudget:
    """The budget of bytes in flight of one engine, with the pictures that its workers decode."""
    budget = ByteBudget(most_in_flight(config), DECODED)
    DECODED.share(budget.limit, lambda: budget.used)
    return budget


def open_door(config: ServiceConfig, engine: Engine, router: Router) -> Door:
    """The door of a service, for both ports; it does not listen yet."""
    executors = [stage.executor for stage in engine.stages]
    processes = sum(each.workers for each in executors if isinstance(each, ProcessExecutor))
    limits = limits_of(config, processes)
    return Door(router, limits, budget_of(config), router.failure, engine.instruments)


def open_door_beside(config: ServiceConfig, router: Router) -> Door:
    """A further door, for scrapers or operators; it does not listen yet."""
    return Door(router, limits_of(config), ByteBudget(most_in_flight(config)), router.failure)


def admin_port_of(listener: socket.socket | None, *, tls: bool) -> AdminPort | None:
    """The port for operators, from its bound socket."""
    if listener is None:
        return None
    host, port = listener.getsockname()[:2]
    is_own = not (is_loopback(host) or ip_address(host).is_unspecified)
    return AdminPort(port=port, host=host if is_own else None, tls=tls)


def limits_of(config: ServiceConfig, processes: int = 0) -> DoorLimits:
    """The limits of the door, for an engine with this number of worker processes."""
    door = config.door
    return DoorLimits(
        **_limits_of(DoorLimits, door),
        http1=Http1Limits(**_limits_of(Http1Limits, door)),
        http2=Http2Limits(**_limits_of(Http2Limits, door)),
        max_connections=max_connections(config.max_connections, processes),
        max_calls=config.max_calls or _CALLS_A_REQUEST * config.max_requests,
        header_timeout=_with_margin(config.header_timeout),
        body_timeout=_with_margin(config.body_timeout),
        keep_alive=config.keep_alive,
        write_timeout=config.write_timeout,
    )


def _limits_of(limits: type[Any], door: DoorConfig) -> dict[str, Any]:
    """The values of the configuration keys with the names of limits."""
    return {
        each.name: value
        for each in fields(limits)
        if (value := getattr(door, each.name, None)) is not None
    }


def _with_margin(seconds: float) -> float:
    """The door's timeout for a limit: timeouts may fire up to a second late."""
    return seconds - min(1.0, seconds / 10)


def tls_of(config: ServiceConfig) -> Certificates | None:
    """The server's certificates from the configuration; None without TLS.

    Raises:
        StartupError: the files cannot be used.
    """
    tls = config.door.tls
    if tls.certificate is None:
        return None
    # Absolute: they are read again, and a script may leave the folder.
    certificate = os.path.abspath(tls.certificate)
    key = os.path.abspath(tls.key or tls.certificate)
    clients = tls.client_ca and os.path.abspath(tls.client_ca)
    files = [certificate, key, *([clients] if clients else [])]
    return Certificates(files, partial(_tls_context, certificate, key, clients))


def _tls_context(certificate: str, key: str, clients: str | None) -> ssl.SSLContext:
    for path in (certificate, key):  # OpenSSL's errors do not name the file
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise StartupError(f"door.tls: {path} cannot be read: {error.strerror}") from error

    def ask() -> str:  # otherwise OpenSSL waits for a passphrase at the terminal
        raise StartupError(f"door.tls: the private key in {key} has a passphrase: store it without")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, ask)
    except (OSError, ssl.SSLError) as error:
        why = f"{certificate} or {key} is no PEM file with a certificate and a private key"
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            why = f"the private key in {key} does not belong to the certificate in {certificate}"
        raise StartupError(f"door.tls: {why} ({error})") from error
    if clients is not None:
        try:
            context.load_verify_locations(clients)
        except (OSError, ssl.SSLError) as error:
            text = f"door.tls: {clients} is no PEM file of certificates ({error})"
            raise StartupError(text) from error
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
