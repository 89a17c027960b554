"""What a configuration may ask for and this build does not do yet.

A key that changes results, placement or isolation is refused when it is switched on; a key that
only reports is answered with one warning. Delete a line here when its feature arrives.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config.problems import KeyPath, Problem
from penstock.config.schema import OpConfig, ServiceConfig

HARDWARE = {3: "ARM CPU", 4: "Kunlun XPU", 5: "Ascend 310", 6: "Ascend 910"}


def unavailable(config: ServiceConfig) -> list[Problem]:
    """Everything switched on that would have to be silently left out."""
    problems: list[Problem] = []
    for name, op in config.op.items():
        problems += unavailable_op(op, ("op", name))
    return problems


def unavailable_op(op: OpConfig, path: KeyPath = ()) -> Iterator[Problem]:
    """The same for one op, whether its values come from YAML or from its constructor."""
    if op.server_endpoints:
        text = "remote model servers are not yet available: use local_service_conf"
        yield Problem(path=(*path, "server_endpoints"), text=text)
    if op.client_type not in (None, "local_predictor"):
        text = f"{op.client_type} is not yet available: only local_predictor is"
        yield Problem(path=(*path, "client_type"), text=text)
    if op.use_encryption_model:
        text = "encrypted models are not available in this build"
        yield Problem(path=(*path, "use_encryption_model"), text=text)
    local, inner = op.local_service_conf, (*path, "local_service_conf")
    if local.client_type not in (None, "local_predictor"):
        text = f"{local.client_type} is not yet available: only local_predictor is"
        yield Problem(path=(*inner, "client_type"), text=text)
    if local.device_type in HARDWARE:
        text = f"{local.device_type} ({HARDWARE[local.device_type]}) is not available in this build"
        yield Problem(path=(*inner, "device_type"), text=text)


def unheard(config: ServiceConfig) -> list[Problem]:
    """Reports that were switched on and will not appear; nothing else changes without them."""
    dag = config.dag
    switched_on = {
        ("dag", "use_profile"): dag.use_profile,
        ("dag", "tracer", "interval_s"): dag.tracer.interval_s is not None,
        ("dag", "enable_prometheus"): dag.enable_prometheus,
    }
    text = "is not yet available and has no effect"
    return [Problem(path=path, text=text) for path, on in switched_on.items() if on]
