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


USUAL: Final = RayOptions()
"""Those of an op without the keys."""
