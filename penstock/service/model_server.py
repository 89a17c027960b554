"""Saved models as services, with no code: what ``penstock serve`` runs.

Each model is a graph of one op, called by the model's name; several in a row are a graph of as many
ops, each fed with what the one before it answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from penstock.api.general_model import GeneralModelApplication
from penstock.errors import ConfigError, StartupError
from penstock.ops.op import Op
from penstock.ops.short import Model
from penstock.service.server import Service, Several, WebService, run

DEFAULT_PORT: Final = 9393
_THREADS: Final = 4
_BATCH: Final = 32

_WITHOUT: Final = {
    "use_lite": "Paddle Lite",
    "use_xpu": "Kunlun XPU",
    "use_ascend_cl": "Ascend",
    "use_dist_model": "serving one model by several servers",
    "dist_master_serving": "serving one model by several servers",
    "gpu_multi_stream": "a GPU stream for each engine",
    "use_encryption_model": "encrypted models",
    "request_cache_size": "a cache of requests",
    "enable_prometheus": "metrics for Prometheus",
}
"""Flags of the original, and what they would switch on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelService:
    """One model, or several in a row, and how they run.

    Attributes:
        name: what requests call it by.
        paths: of the models, in the order in which they run.
        workers: of each; those of a model share it.
        batch: the most rows that run together; 1: requests never share a run.
        options: of each model, as ``local_service_conf`` has them.
        rows: for each model, whether its batches are counted in rows: not where requests never
            share a run.
        pads: whether requests of different sizes are padded to share one.
    """

    name: str
    paths: tuple[str, ...]
    workers: tuple[int, ...]
    batch: tuple[int, ...]
    options: tuple[dict[str, Any], ...]
    rows: tuple[bool, ...]
    pads: bool = True

    def service(self, config: dict[str, Any]) -> WebService:
        """The graph behind this name."""
        last: Op | None = None
        ops: dict[str, Any] = {}
        for index, path in enumerate(self.paths):
            name = self.name if len(self.paths) == 1 else f"{self.name}_{index}"
            last = Model(path, last, name=name)
            ops[name] = {
                "concurrency": self.workers[index],
                "batch_size": self.batch[index],
                "batch_rows": self.rows[index],
                "pad": {"enabled": self.rows[index] and self.pads},
                "local_service_conf": self.options[index],
            }
        assert last is not None
        return Service(self.name, last, applications=[GeneralModelApplication], op=ops, **config)


class ModelServer(Several):
    """Several models behind one door.

    Args:
        models: at least one, with names of their own.
        config: top-level configuration keys, such as ``http_port=8000``.
    """

    def __init__(self, models: Sequence[ModelService], **config: Any) -> None:
        self.models = list(models)
        self._config = config

    @property
    def services(self) -> list[WebService]:
        """One for each model.

        Raises:
            StartupError: two models have one name.
        """
        names = [each.name for each in self.models]
        for name in names:
            if names.count(name) > 1:
                raise StartupError(f"two models are called {name!r}: write --model NAME=PATH")
        return [each.service(self._config) for each in self.models]

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            StartupError: the service cannot start.
        """
        run(self)


class _Parser(argparse.ArgumentParser):
    """Mistakes become our errors."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError([message])


def parser() -> argparse.ArgumentParser:
    """The flags of ``penstock serve``; those of the original are all there."""
    made = _Parser(
        prog="penstock serve",
        description="Serve saved models over HTTP and gRPC.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = made.add_argument
    add(
        "--model",
        nargs="+",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="A model's folder or file. Several behind one flag run in a row, the output of one"
        " being the input of the next; the flag may be given again, for another model.",
    )
    add("--port", type=int, help=f"Of HTTP, and gRPC too; {DEFAULT_PORT} without it.")
    add("--grpc_port", "--grpc-port", type=int, help="Of gRPC alone; the next free one without it.")
    add("--host", help="The address to listen on; this machine alone by default.")
    add(
        "--thread",
        type=int,
        default=_THREADS,
        help="Requests that run at once, each by itself.",
    )
    add(
        "--runtime_thread_num",
        type=int,
        nargs="+",
        default=[0],
        help="Workers that run batches of requests; above 0 requests are batched.",
    )
    add(
        "--batch_infer_size",
        type=int,
        nargs="+",
        default=[_BATCH],
        help="The most rows of a batch; a request that has more runs in pieces.",
    )
    add(
        "--no_pad",
        action="store_true",
        help="Batch requests of equal sizes only; else those of different sizes are padded with"
        " zeros, if they are batched.",
    )
    add("--precision", default="fp32", help="fp32, fp16, bf16 or int8, if the runtime has it.")
    add("--use_calib", action="store_true", help="Calibrate for int8 (TensorRT).")
    add("--mem_optim_off", action="store_true", help="Keep the memory of intermediate values.")
    add("--ir_optim", action="store_true", help="Optimise the model's graph.")
    add("--use_mkl", action="store_true", help="oneDNN kernels, where the runtime has them.")
    add("--use_trt", action="store_true", help="TensorRT; needs a GPU.")
    add("--gpu_ids", nargs="+", default=[], help="Cards for each model: 0 or 0,1; -1 is the CPU.")
    add("--min_subgraph_size", nargs="+", default=[], help="For TensorRT, by model.")
    add("--max_body_size", type=int, default=536870912, help="The most bytes of a request.")
    add("--cpu_math_thread_num", type=int, default=1, help="CPU threads of one run.")
    add("--log-level", "--log_level", help="Least level of the lines that are logged.")
    add("--log-format", "--log_format", help="text or json.")
    for flag in ("device", "workdir", "product_name", "container_id"):
        add(f"--{flag}", help="No effect.")
    for flag in _WITHOUT:
        if flag == "request_cache_size":
            add(f"--{flag}", type=int, default=0, help=argparse.SUPPRESS)
        else:
            add(f"--{flag}", action="store_true", help=argparse.SUPPRESS)
    return made


def parse(arguments: Sequence[str]) -> tuple[ModelServer, dict[str, Any]]:
    """The server that the arguments of ``penstock serve`` ask for, and configuration keys that they
    set and that come before the environment's.

    Raises:
        StartupError: a flag is wrong, or asks for what is not there.
    """
    given = parser().parse_args([*arguments])
    problems = [
        f"--{flag}: {what} is not available here"
        for flag, what in _WITHOUT.items()
        if getattr(given, flag)
    ]
    if not given.model:
        problems.append("You must specify your serving model: --model PATH")
    if problems:
        raise ConfigError(problems)
    models: list[ModelService] = []
    index = 0
    for listed in given.model:
        name, paths = _named(listed)
        rows = range(index, index + len(paths))
        index += len(paths)
        models.append(
            ModelService(
                name=name,
                paths=paths,
                workers=tuple(_workers(given, each) for each in rows),
                batch=tuple(
                    _nth(given.batch_infer_size, each) if _is_async(given, each) else 1
                    for each in rows
                ),
                options=tuple(_options(given, each) for each in rows),
                rows=tuple(_is_async(given, each) for each in rows),
                pads=not given.no_pad,
            )
        )
    keys: dict[str, Any] = {"http_port": given.port, "rpc_port": given.grpc_port}
    keys |= {key: getattr(given, key) for key in ("host", "log_level", "log_format")}
    keys = {key: each for key, each in keys.items() if each is not None}
    return ModelServer(models, http_port=DEFAULT_PORT), keys


def _named(listed: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The name of a model, or of several in a row, and their paths."""
    name, equals, path = listed[0].partition("=")
    paths = (path if equals else listed[0], *listed[1:])
    for each in paths:
        if not Path(each).exists():
            raise StartupError(f"--model {each}: no such file or folder")
    return name if equals else Path(paths[-1]).resolve().stem, paths


def _nth(values: Sequence[Any], index: int) -> Any:
    """Flags with fewer items than there are models begin again."""
    return values[index % len(values)]


def _is_async(given: argparse.Namespace, index: int) -> bool:
    return _nth(given.runtime_thread_num, index) > 0  # type: ignore[no-any-return]


def _workers(given: argparse.Namespace, index: int) -> int:
    threads: int = _nth(given.runtime_thread_num, index)
    return threads if threads > 0 else given.thread


def _options(given: argparse.Namespace, index: int) -> dict[str, Any]:
    cards = _nth(given.gpu_ids, index) if given.gpu_ids else "-1"
    on_cpu = cards.strip() == "-1"
    sizes = given.min_subgraph_size
    options: dict[str, Any] = {
        "devices": "" if on_cpu else cards,
        "device_type": (2 if given.use_trt else 1) if not on_cpu else 0,
        "thread_num": given.cpu_math_thread_num,
        "precision": given.precision,
        "use_calib": given.use_calib,
        "mem_optim": not given.mem_optim_off,
        "use_mkldnn": given.use_mkl,
    }
    if given.ir_optim:
        options["ir_optim"] = True
    if index < len(sizes) and str(sizes[index]).isdigit():
        options["min_subgraph_size"] = int(sizes[index])
    return options
