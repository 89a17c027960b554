"""Keys that are right one by one and wrong together."""

from __future__ import annotations

from penstock.config.problems import Problem
from penstock.config.schema import ServiceConfig

MOST_ENGINES = 1024

NEEDS_CARD = {1: "GPU", 2: "GPU with TensorRT"}


def contradictions(config: ServiceConfig) -> list[Problem]:
    """Every disagreement, each with all the keys it needs in ``path`` and ``involves``."""
    problems = []
    if config.rpc_port is None and config.http_port is None:
        text = "rpc_port or http_port must be set, or nobody can reach the service"
        problems.append(Problem(path=(), text=text, involves=(("rpc_port",), ("http_port",))))
    elif config.rpc_port == config.http_port and config.rpc_port:
        text = f"is {config.rpc_port}, and rpc_port is the same: each needs its own"
        problems.append(Problem(path=("http_port",), text=text, involves=(("rpc_port",),)))
    if config.engines > MOST_ENGINES:
        text = (
            f"with build_dag_each_worker: must be at most {MOST_ENGINES}, got {config.worker_num}"
        )
        involved = (("build_dag_each_worker",),)
        problems.append(Problem(path=("worker_num",), text=text, involves=involved))
    # Its default gives way, so that lowering the maximum alone is enough.
    if "deadline" in config.model_fields_set and config.deadline > config.max_deadline:
        text = f"{config.deadline:g} s is more than max_deadline, {config.max_deadline:g} s"
        problems.append(Problem(path=("deadline",), text=text, involves=(("max_deadline",),)))
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
