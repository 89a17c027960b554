"""Problems of an op's keys ``executor: ray`` and ``ray``, without importing Ray."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from penstock.config.problems import Problem
from penstock.config.resolve import OpOptions
from penstock.config.schema import ServiceConfig
from penstock.executors.ray.options import USUAL


def problems_of_ray(options: OpOptions, config: ServiceConfig) -> Iterator[Problem]:
    """Problems of an op's keys ``ray`` and ``executor``."""
    path, name = ("op", options.name), options.executor.name
    if name != "ray":
        if options.ray != USUAL:
            text = f"is for ops with executor: ray, and this one has {name}: leave it out"
            yield Problem(path=(*path, "ray"), text=text)
        return
    if find_spec("ray") is None:
        text = "ray needs the package ray: pip install 'penstock-serving[ray]'"
        yield Problem(path=(*path, "executor"), text=text)
    if options.ray.address is None and config.engines > 1:
        text = (
            "must be set with several engines, each of which would start a cluster of this"
            " machine: auto, after `ray start --head`"
        )
        yield Problem(path=(*path, "ray", "address"), text=text)
