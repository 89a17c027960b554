"""The options of an op whose workers Ray places: its keys ``ray``. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

Placement: TypeAlias = Literal["default", "spread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """See the keys ``op.<name>.ray`` in docs/configuration.md.

    Attributes:
        address: of the cluster; None: one on this machine, which starts and ends with the engine.
        num_cpus: of each worker, as the following.
    """

    address: str | None = None
    namespace: str | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    placement: Placement = "default"
    runtime_env: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cluster(self) -> dict[str, Any]:
        """The arguments of ``ray.init``; ops with equal ones use one cluster together."""
        return {
            "address": self.address,
            "namespace": self.namespace,
            "runtime_env": dict(self.runtime_env),
        }

    @property
    def wants(self) -> dict[str, float]:
        """What a worker takes of its node, by resource."""
        return {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}


USUAL: Final = RayOptions()
"""Those of an op without the keys."""
