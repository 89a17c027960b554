"""Checks between keys, unavailable features, and the choice of ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from urllib.parse import urlsplit

from penstock.config.callers import CorsConfig, PriorityConfig
from penstock.config.op import OpConfig
from penstock.config.problems import KeyPath, Problem
from penstock.config.schema import RolloutConfig, ServiceConfig
from penstock.errors import ConfigError

HARDWARE = {3: "ARM CPU", 4: "Kunlun XPU", 5: "Ascend 310", 6: "Ascend 910"}


def unavailable(config: ServiceConfig) -> list[Problem]:
    """Problems of keys that request unavailable features."""
    problems: list[Problem] = []
    for name, op in config.op.items():
        found = unavailable_op(op, ("op", name))
        gives_way = config.missing_device == "cpu"
        problems += [each for each in found if each.path[-1] != "device_type" or not gives_way]
    return problems


def unavailable_op(op: OpConfig, path: KeyPath = ()) -> Iterator[Problem]:
    """The same for one op, from YAML or from its constructor."""
    if op.use_encryption_model and op.encryption_key is None:
        text = "needs encryption_key, the place of the key"
        yield Problem(path=(*path, "use_encryption_model"), text=text)
    local, inner = op.local_service_conf, (*path, "local_service_conf")
    if local.device_type in HARDWARE:
        text = f"{local.device_type} ({HARDWARE[local.device_type]}) is not available in this build"
        yield Problem(path=(*inner, "device_type"), text=text)


MOST_ENGINES = 1024

NEEDS_CARD = {1: "GPU", 2: "GPU with TensorRT"}


def _security(config: ServiceConfig) -> Iterator[Problem]:
    security, at = config.security, ("security",)
    if "security" in config.model_fields_set and not security.enabled:
        text = "admits everybody: set keys, keys_env, jwt or certificates"
        ways = ("keys", "keys_env", "jwt", "certificates")
        yield Problem(path=at, text=text, involves=tuple((*at, each) for each in ways))
    if security.jwt is not None and not is_safe_place(security.jwt.keys):
        text = "must be a file, https, or http on this machine: keys could be replaced on the way"
        yield Problem(path=(*at, "jwt", "keys"), text=text)
    if security.certificates and config.door.tls.client_ca is None:
        text = "needs door.tls.client_ca, the authorities of client certificates"
        yield Problem(path=(*at, "certificates"), text=text)
    if config.door.tls.client_ca is not None and config.door.tls.certificate is None:
        text = "needs door.tls.certificate: without it the ports use no TLS"
        yield Problem(path=("door", "tls", "client_ca"), text=text)


def is_safe_place(place: str) -> bool:
    """Whether keys may be read there: a file, ``https``, or ``http`` on this machine."""
    if "://" not in place:
        return True
    parts = urlsplit(place)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    return parts.scheme == "https" or (parts.scheme == "http" and local)


def _of_rollout(rollout: RolloutConfig, at: KeyPath) -> Iterator[Problem]:
    steps, copies = rollout.steps, (*at, "shadow", "share")
    if list(steps) != sorted({*steps}) or not all(0 <= each <= 100 for each in steps):
        text = "must be ascending, from 0 to 100 percent, such as [5, 25, 50]"
        yield Problem(path=(*at, "steps"), text=text)
    if 0 in steps and not rollout.shadow.share:
        text = "has a step of 0 %, and needs shadow.share: nothing would run in the new version"
        yield Problem(path=(*at, "steps"), text=text, involves=(copies,))
    if rollout.disagreement is not None and not rollout.shadow.share:
        text = "needs shadow.share: without copies no answers are compared"
        yield Problem(path=(*at, "disagreement"), text=text, involves=(copies,))
    for key in ("shadow", "disagreement"):
        if key in rollout.model_fields_set and not steps:
            text = "needs steps: without them a new version gets all requests at once"
            yield Problem(path=(*at, key), text=text, involves=((*at, "steps"),))


def contradictions(config: ServiceConfig) -> list[Problem]:
    """All contradictions, each with its keys in ``path`` and ``involves``."""
    problems = []
    if config.rpc_port is None and config.http_port is None:
        text = "set rpc_port or http_port: the service has no port"
        problems.append(Problem(path=(), text=text, involves=(("rpc_port",), ("http_port",))))
    problems += _security(config)
    metrics = config.dag.prometheus_port if config.dag.enable_prometheus else None
    for key in ("http_port", "rpc_port"):
        if metrics and metrics == getattr(config, key):
            text = f"is {metrics}, and {key} is the same: leave it out, as {key} has /metrics, too"
            at = ("dag", "prometheus_port")
            problems.append(Problem(path=at, text=text, involves=((key,),)))
    if config.admin_host is not None and config.admin_port is None:
        text = "needs admin_port: without it the service has no port for operators"
        problems.append(Problem(path=("admin_host",), text=text, involves=(("admin_port",),)))
    others = {"http_port": config.http_port, "rpc_port": config.rpc_port}
    for key, port in {**others, "dag.prometheus_port": metrics}.items():
        if config.admin_port and config.admin_port == port:
            text = f"is {port}, and {key} is the same: choose another port for operators"
            other = (tuple(key.split(".")),)
            problems.append(Problem(path=("admin_port",), text=text, involves=other))
    if config.engines > MOST_ENGINES:
        text = (
            f"with build_dag_each_worker: must be at most {MOST_ENGINES}, got {config.worker_num}"
        )
        involved = (("build_dag_each_worker",),)
        problems.append(Problem(path=("worker_num",), text=text, involves=involved))
    # The default is lowered, so that lowering the maximum alone is enough.
    if "deadline" in config.model_fields_set and config.deadline > config.max_deadline:
        text = f"{config.deadline:g} s is more than max_deadline, {config.max_deadline:g} s"
        problems.append(Problem(path=("deadline",), text=text, involves=(("max_deadline",),)))
    if config.door.tls.key is not None and config.door.tls.certificate is None:
        text = "needs door.tls.certificate: without it the service does not use TLS"
        path = ("door", "tls", "key")
        problems.append(Problem(path=path, text=text, involves=(("door", "tls", "certificate"),)))
    if config.load_model and config.model_control_mode != "explicit":
        text = "needs model_control_mode: explicit; with none and poll all models are loaded"
        problems.append(
            Problem(path=("load_model",), text=text, involves=(("model_control_mode",),))
        )
    problems += _of_cors(config.cors)
    problems += _of_priority(config.priority)
    problems += _of_queue(config)
    for name, rollout in config.rollout.items():
        problems += _of_rollout(rollout, ("rollout", name))
    for name, quota in config.quotas.items():
        if quota.rate is None and quota.concurrency is None:
            text = "needs rate or concurrency: it limits nothing"
            problems.append(Problem(path=("quotas", name), text=text))
        elif quota.burst is not None and quota.rate is None:
            path = ("quotas", name, "burst")
            problems.append(Problem(path=path, text="needs rate: burst is a part of it"))
    for name, op in config.op.items():
        local, path = op.local_service_conf, ("op", name, "local_service_conf")
        if local.device_type in NEEDS_CARD and not local.device_ids:
            text = (
                f"{local.device_type} ({NEEDS_CARD[local.device_type]}) needs card ids in devices"
            )
            problems.append(
                Problem(path=(*path, "device_type"), text=text, involves=((*path, "devices"),))
            )
    return problems


def _of_cors(cors: CorsConfig) -> Iterator[Problem]:
    involved = (("cors", "origins"),)
    for key in sorted(cors.model_fields_set - {"origins"}):
        if not cors.origins:
            text = "needs cors.origins: without it no other website may call the service"
            yield Problem(path=("cors", key), text=text, involves=involved)
    if not cors.credentials:
        return
    for name in ("*", "null"):
        if name in cors.origins:
            text = (
                f"needs origins by name, not {name}: otherwise any website could call the service"
                " as its visitor"
            )
            yield Problem(path=("cors", "credentials"), text=text, involves=involved)
    if "*" in cors.exposed_headers:
        text = "* is no list for browsers when cors.credentials is true: name the fields"
        path = ("cors", "exposed_headers")
        yield Problem(path=path, text=text, involves=(("cors", "credentials"),))


def _of_priority(priority: PriorityConfig) -> Iterator[Problem]:
    levels, involved = priority.levels, (("priority", "levels"),)
    given: list[tuple[KeyPath, int | None]] = [(("priority", "default"), priority.default)]
    for key in ("callers", "scopes", "routes"):
        listed: dict[str, int] = getattr(priority, key)
        given += [(("priority", key, name), each) for name, each in listed.items()]
    for path, value in given:
        if value is not None and value > levels:
            text = f"is {value}, and priority.levels has only {levels}"
            yield Problem(path=path, text=text, involves=involved)
    if levels == 1 and priority.header:
        text = "needs priority.levels: there is only one"
        yield Problem(path=("priority", "header"), text=text, involves=involved)


def _of_queue(config: ServiceConfig) -> Iterator[Problem]:
    levels, involved = config.priority.levels, (("priority", "levels"),)
    for level in config.queue.levels:
        if int(level) > levels:
            text = f"there is no such priority: priority.levels is {levels}"
            yield Problem(path=("queue", "levels", level), text=text, involves=involved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports to bind; 0 is any free one.

    Attributes:
        rpc: a port for gRPC; None: the HTTP port alone, which speaks every protocol.
        http: the HTTP port; None is gRPC only.
    """

    rpc: int | None
    http: int | None


def ports(config: ServiceConfig, free: Callable[[int], bool], *, one_port: bool = False) -> Ports:
    """The ports to bind; by default the gRPC port is the next free one after the HTTP port.

    Args:
        config: a checked configuration.
        free: whether a port can be bound now; only called for a port that is chosen here.
        one_port: without ``rpc_port`` the HTTP port is the only one.

    Raises:
        ConfigError: no port is set, or none is free.

    Source: ``docs/compatibility.md``.
    """
    rpc, http = config.rpc_port, config.http_port
    if rpc is not None:
        return Ports(rpc=None if rpc == http != 0 else rpc, http=http)
    if http is None:
        raise ConfigError(["set rpc_port or http_port: the service has no port"])
    if one_port:
        return Ports(rpc=None, http=http)
    if http == 0:
        return Ports(rpc=0, http=0)
    for port in chain(range(http + 1, 65536), range(1024, http)):
        if free(port):
            return Ports(rpc=port, http=http)
    raise ConfigError(["rpc_port: no port is free"])
