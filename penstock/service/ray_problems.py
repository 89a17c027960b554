"""Problems of an op's keys ``executor: ray`` and ``ray``, without importing Ray."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from math import ceil

from penstock.config.problems import Problem
from penstock.config.resolve import OpOptions
from penstock.config.schema import ServiceConfig
from penstock.executors.ray.options import USUAL
from penstock.runtimes.options import CPU


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
    yield from _problems_of_gpus(options)


def _problems_of_gpus(options: OpOptions) -> Iterator[Problem]:
    """Ray shows a worker only the GPUs that it gives it, as 0 and so on, and gives them to others
    if it is told of none.
    """
    model, gpus = options.model, options.ray.num_gpus
    if model is None or not model.devices or model.device_type == CPU:
        return
    path = ("op", options.name)
    if not gpus:
        text = "must be set: the model is on a GPU, which Ray would also give to others"
        yield Problem(path=(*path, "ray", "num_gpus"), text=text)
        return
    seen = ceil(gpus)
    if any(each.isdecimal() and int(each) >= seen for each in model.devices):
        last = "" if seen == 1 else f" to {seen - 1}"
        text = (
            f"a worker sees only the GPUs that Ray gives it (ray.num_gpus is {gpus:g}), with the"
            f" ids 0{last}"
        )
        yield Problem(path=(*path, "local_service_conf", "devices"), text=text)
