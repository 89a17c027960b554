"""The flags of ``penstock serve``, which include those of the original's model server.

They are parsed by argparse: options of typer, as of the other commands, take no lists of values.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from penstock.batching.rows import FIRST
from penstock.config.load import from_environment
from penstock.errors import ConfigError
from penstock.ops.short import model_name
from penstock.service.model_places import THREADS, places
from penstock.service.model_server import (
    DEFAULT_PORT,
    ModelServer,
    Node,
    Workflow,
    check_path,
    configured,
)

_METRICS_PORT: Final = 19393
_BATCH: Final = 32

_ON_CPU: Final = "-1"

_INFER: Final = "GeneralInferOp"
_IMPLICIT: Final = ("GeneralReaderOp", "GeneralResponseOp", "GeneralCopyOp")
"""Ops of the original that are implicit in every graph here, or have no effect."""

_OCR: Final = "ocr_det_model"

_DISTRIBUTED: Final = "serving one model by several servers"
_UNSUPPORTED: Final[dict[str, tuple[str, Any]]] = {
    "use_dist_model": (_DISTRIBUTED, False),
    "dist_master_serving": (_DISTRIBUTED, False),
    "dist_carrier_id": (_DISTRIBUTED, ""),
    "dist_cfg_file": (_DISTRIBUTED, ""),
    "dist_endpoints": (_DISTRIBUTED, "+"),
    "dist_nranks": (_DISTRIBUTED, 0),
    "dist_subgraph_index": (_DISTRIBUTED, -1),
    "dist_worker_serving_endpoints": (_DISTRIBUTED, None),
    # Of its first releases:
    "name": ("a web service without a graph (--model NAME=PATH names the model)", "None"),
    "use_multilang": ("the protocol of MultiLangClient", False),
}
"""Unsupported flags of the original: the feature, and the value that leaves it off."""

_HARDWARE: Final = {
    "use_xpu": "Kunlun XPU",
    "use_ascend_cl": "Ascend",
    "use_ipu": "Graphcore IPU",
}
"""Flags of the original for hardware that is not supported."""

_ONLY_SPEED: Final[dict[str, tuple[str, Any]]] = {
    "use_lite": ("Paddle Lite is not used", False),
    "gpu_multi_stream": ("the library decides how it uses a GPU", False),
    "request_cache_size": ("every request is computed", 0),
}
"""Flags of the original that change no answer and have no effect here: the reason, and the value
that leaves it off."""

_NO_EFFECT: Final = (
    *("device", "workdir", "product_name", "container_id", "encryption_rpc_port"),
    *("gpu_memory_mb", "trt_workspace_size"),
)
"""Flags of the original with a value and no effect here; some had no effect there either."""

_AT_LEAST: Final = {
    "thread": 1,
    "runtime_thread_num": 0,
    "batch_infer_size": 1,
    "cpu_math_thread_num": 1,
    "max_body_size": 1,
}

_SERVICE_KEYS: Final = (
    *("host", "log_level", "log_format"),
    *("model_repository", "model_control_mode", "repository_poll_secs", "load_model"),
    *("model_load_thread_count", "model_cache", "model_cache_limit_mib", "model_public_key"),
    "swap",
)
"""Flags that are also keys of a service."""

_PER_MODEL: Final = ("runtime_thread_num", "batch_infer_size", "gpu_ids", "min_subgraph_size")
"""Flags with a value for each model."""

_REPLACEMENTS: Final = {
    "stop": "end the service with SIGTERM, or Ctrl-C",
    "kill": "end the service with SIGKILL",
    "check": "start the service and request /readyz",
    "status": "use penstock status",
}
"""Subcommands of the original, and their replacements here."""


class _Parser(argparse.ArgumentParser):
    """Raises our errors for invalid arguments."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError([message])

    def add_switch(self, flag: str, help: str) -> None:
        """Add a flag that is off without it, and may have a value: ``--ir_optim true``."""
        self.add_argument(
            f"--{flag}",
            nargs="?",
            const=True,
            default=False,
            type=_boolean,
            metavar="true|false",
            help=help,
        )


def _boolean(text: str) -> bool:
    value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if value is None:
        raise argparse.ArgumentTypeError(f"write true, false or nothing after it, got {text!r}")
    return value


def parser() -> argparse.ArgumentParser:
    """The flags of ``penstock serve``, including all of the original."""
    made = _Parser(
        prog="penstock serve",
        description="Serve saved models over HTTP and gRPC.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = made.add_argument
    switch = made.add_switch
    add(
        "models",
        nargs="*",
        metavar="[NAME=]PATH",
        help="A model's folder or file, like --model PATH. The word start before it has no effect.",
    )
    add(
        "--model",
        nargs="+",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="A model's folder or file. Several paths after one flag run as a sequence, each with"
        " the outputs of the one before as inputs; repeat the flag for another model.",
    )
    add(
        "--op",
        nargs="+",
        default=[],
        help=f"The ops, in order: {_INFER} once for each model; {', '.join(_IMPLICIT)} have no"
        " effect.",
    )
    add(
        "--model-repository",
        "--model-store",
        action="append",
        metavar="FOLDER",
        help="A folder with models, as of Triton (NAME/config.pbtxt, NAME/1/model.onnx), TensorFlow"
        " Serving (NAME/1/...) or Paddle Serving, or its URL, such as s3://bucket/models; may be"
        " given several times.",
    )
    add(
        "--model-control-mode",
        choices=("none", "poll", "explicit"),
        help="When the models of repositories are loaded: none is at the start, all of them; poll,"
        " whenever a repository has another version; explicit, when an operator says so.",
    )
    add(
        "--repository-poll-secs",
        type=float,
        metavar="SECONDS",
        help="With poll: the time between two looks at a repository; by default 15.",
    )
    add(
        "--load-model",
        action="append",
        metavar="NAME",
        help="With explicit: a model to load at the start; * for all; may be given several times.",
    )
    add(
        "--model-load-thread-count",
        type=int,
        metavar="COUNT",
        help="Most models that are loaded at the same time; by default 4.",
    )
    add(
        "--model-cache",
        metavar="FOLDER",
        help="Where copies of the models' files are, of stores and of models that change.",
    )
    add("--model-cache-limit-mib", type=int, metavar="MIB", help="Most mebibytes of this folder.")
    add(
        "--swap",
        choices=("availability", "resource"),
        help="How a version takes the place of the one before: with availability both are open"
        " until it serves, which is the default; with resource the one before ends first.",
    )
    add(
        "--model-public-key",
        metavar="FILE",
        help="A PEM file with keys of which one must have signed each version of the repositories.",
    )
    add("--config", metavar="FILE", help="A YAML file with models, workflows and services.")
    add(
        "--port",
        "--http-port",
        type=int,
        help=f"The port, for every protocol; by default {DEFAULT_PORT}.",
    )
    add(
        "--grpc_port",
        "--grpc-port",
        "--rpc-port",
        type=int,
        help="A second port, for gRPC; by default there is none.",
    )
    add("--host", help="The address to listen on; by default this machine only.")
    add(
        "--strict",
        action="store_true",
        help="Fail if strangers on other machines may call, instead of warning.",
    )
    add(
        "--thread",
        type=int,
        default=THREADS,
        help="Workers that run one request at a time each.",
    )
    add(
        "--runtime_thread_num",
        "--op_num",  # the name in the first releases, as below
        type=int,
        nargs="+",
        default=[0],
        help="Workers that run batches; above 0 requests are batched.",
    )
    add(
        "--batch_infer_size",
        "--op_max_batch",
        type=int,
        nargs="+",
        help=f"With --runtime_thread_num: the most rows of a batch, {_BATCH} without it; a request"
        " that has more runs in pieces.",
    )
    add(
        "--rows",
        nargs="+",
        default=[],
        metavar="AXES",
        help="The row axes of each model's inputs and outputs, if the model does not tell them:"
        " x=0,scale=none,y=0; or first, axis 0 of all.",
    )
    add(
        "--shared_outputs",
        nargs="+",
        default=[],
        metavar="NAME",
        help="Outputs without a row axis that each request of a batch gets whole.",
    )
    add(
        "--policy",
        choices=("fifo", "learned"),
        default="learned",
        help="Which waiting requests run as a batch in the asynchronous mode: the oldest, or as"
        " many as make a request cheapest by what batches have cost.",
    )
    add(
        "--verify_batches",
        choices=("auto", "strict", "off"),
        default="auto",
        help="What to do with a model whose answers differ in batches: run its requests one at a"
        " time, fail the start, or nothing, without a comparison.",
    )
    add(
        "--examples",
        nargs="+",
        default=[],
        metavar="FILE",
        help="Inputs for that comparison, an .npz file for each request; by default they are"
        " generated.",
    )
    switch(
        "pad",
        help="Pad requests of different shapes with zeros, so that they can share batches, if that"
        " leaves the model's answers alone.",
    )
    switch("no_pad", help="Do not pad; the default.")
    switch(
        "hot_loading",
        help="Take a model anew from its folder, without a restart, when fluid_time_file or"
        " fluid_time_stamp in it is touched.",
    )
    add(
        "--precision",
        type=str.lower,
        choices=("fp32", "fp16", "bf16", "int8"),
        default="fp32",
        help="Precision, if the runtime supports it.",
    )
    switch("use_calib", help="Calibrate for int8 (TensorRT).")
    switch(
        "mem_optim_off",
        help="Do not reuse the memory of intermediate values.",
    )
    switch("ir_optim", help="Optimise the model's graph.")
    switch("use_mkl", help="Use oneDNN kernels, if the runtime has them.")
    switch("use_trt", help="Use TensorRT; needs a GPU.")
    add(
        "--gpu_ids",
        nargs="+",
        type=lambda text: text.strip() or _ON_CPU,
        default=[],
        help="GPU ids for each model: 0 or 0,1; -1 is the CPU.",
    )
    add(
        "--min_subgraph_size",
        nargs="+",
        default=[],
        help="Smallest subgraph for TensorRT, by model.",
    )
    add("--max_body_size", type=int, help="Most bytes of a request.")
    add("--cpu_math_thread_num", type=int, default=1, help="CPU threads of one run of a model.")
    switch("use_encryption_model", help="The models are encrypted.")
    add(
        "--encryption_key",
        metavar="FILE",
        help="For encrypted models: the file with their key, or env:NAME, a variable with it in"
        " base64.",
    )
    switch(
        "enable_prometheus",
        help="Also serve metrics with the original's names, on a separate port.",
    )
    add("--prometheus_port", type=int, default=_METRICS_PORT, help="Port of these metrics.")
    add("--log-level", "--log_level", help="Lowest level that is logged.")
    add("--log-format", "--log_format", help="Format of log lines: text or json.")
    for flag in _NO_EFFECT:
        add(f"--{flag}", help="No effect.")
    switch("trt_use_static", help="No effect.")
    for flag in _HARDWARE:
        switch(flag, help=argparse.SUPPRESS)
    for flag, (_, off) in (*_UNSUPPORTED.items(), *_ONLY_SPEED.items()):
        if off is False:
            switch(flag, help=argparse.SUPPRESS)
        else:
            kind = int if isinstance(off, int) else str
            add(f"--{flag}", type=kind, default=off, help=argparse.SUPPRESS)
    return made


def parse(
    arguments: Sequence[str], defaults: Mapping[str, object] | None = None
) -> tuple[ModelServer, dict[str, Any]]:
    """The server for the arguments of ``penstock serve``, and the configuration keys that they set,
    which take precedence over the environment.

    Args:
        arguments: the arguments.
        defaults: top-level configuration keys, where they differ from Penstock's defaults. With
            ``missing_device: cpu`` flags for hardware that is not supported have no effect.

    Raises:
        StartupError: a flag is invalid or unsupported.
    """
    given = parser().parse_intermixed_args([*arguments])
    _take_models(given)
    own = dict(defaults or {})
    gives_way = own.get("missing_device") == "cpu"
    hardware = [*_problems_of_hardware(given)]
    problems = [*_problems_of_flags(given), *([] if gives_way else hardware)]
    repository = given.model_repository or "model_repository" in from_environment(os.environ)
    if not (given.config or given.model or repository) and given.command == "start":
        problems.append("You must specify your serving model: --model PATH")
    if given.config is not None and (given.model or given.op):
        problems.append("--config defines what is served: leave out --model and --op")
    problems += _problems_of_ops(given)
    if gives_way:
        problems += _problems_of_ocr(given)
    if problems:
        raise ConfigError(problems)
    keys: dict[str, Any] = {"http_port": given.port, "rpc_port": given.grpc_port}
    keys |= {key: getattr(given, key) for key in _SERVICE_KEYS}
    keys["max_message_bytes"] = given.max_body_size
    keys["strict"] = given.strict or None
    if given.enable_prometheus:
        keys |= {"dag.enable_prometheus": True, "dag.prometheus_port": given.prometheus_port}
    keys = {key: each for key, each in keys.items() if each is not None}
    if given.config is not None:
        return configured(Path(given.config), own, hot_loading=given.hot_loading), keys
    workflows: list[Workflow] = []
    index = 0
    for listed in given.model:
        name, paths = _named(listed)
        nodes: list[Node] = []
        for path in paths:
            called = name if len(paths) == 1 else f"{name}_{len(nodes)}"
            before = nodes[-1].name if nodes else None
            options = _op_options(given, index, path)
            nodes.append(
                Node(
                    name=called,
                    path=path,
                    reads=before,
                    options=options,
                    flags=_flags_of_keys(given, index),
                    batch_gives_way=given.batch_infer_size is None,
                )
            )
            index += 1
        workflows.append(Workflow(name=name, nodes=tuple(nodes)))
    without_effect = (f"{each}; it has no effect" for each in hardware)
    warnings = [*_warnings(given, index), *without_effect]
    config: dict[str, Any] = {"http_port": DEFAULT_PORT, **own}
    hot = given.hot_loading
    return ModelServer(workflows, warnings=warnings, hot_loading=hot, **config), keys


def _problems_of_flags(given: argparse.Namespace) -> Iterator[str]:
    """Problems of flags, independent of the models."""
    if given.command != "start":
        instead = _REPLACEMENTS[given.command]
        yield f"{given.command}: penstock serve has no such command: {instead}"
    for flag, (what, off) in _UNSUPPORTED.items():
        if getattr(given, flag) != off:
            yield f"--{flag}: {what} is not available here"
    for flag, least in _AT_LEAST.items():
        values = getattr(given, flag)
        for value in values if isinstance(values, list) else [values]:
            if value is not None and value < least:
                yield f"--{flag}: must be at least {least}, got {value}"
    models = sum(map(len, given.model))
    for flag in _PER_MODEL:
        values = len(getattr(given, flag) or ())
        if values > models > 0:
            yield f"--{flag} has {values} values, but there {_are(models)}"
    for cards in given.gpu_ids:
        ids = [each.strip() for each in cards.split(",")]
        if ids != [_ON_CPU] and not all(each.isascii() and each.isdigit() for each in ids):
            yield f"--gpu_ids {cards}: write ids of cards such as 0 or 0,1; or -1 alone, the CPU"
    if given.use_encryption_model and given.encryption_key is None:
        yield "--use_encryption_model: give --encryption_key, the place of the key"


def _problems_of_hardware(given: argparse.Namespace) -> Iterator[str]:
    """Problems of flags for hardware that is not supported, or not given."""
    for flag, what in _HARDWARE.items():
        if getattr(given, flag):
            yield f"--{flag}: {what} is not available here"
    if given.use_trt and all(each == _ON_CPU for each in given.gpu_ids):
        yield "--use_trt: TensorRT needs a card: give --gpu_ids"


def _warnings(given: argparse.Namespace, models: int) -> Iterator[str]:
    """Warnings about flags without an effect."""
    for flag, (why, off) in _ONLY_SPEED.items():
        if getattr(given, flag) != off:
            yield f"--{flag} has no effect: {why}"
    if given.batch_infer_size and not any(_is_async(given, index) for index in range(models)):
        yield "--batch_infer_size has no effect without --runtime_thread_num: nothing is batched"


def _problems_of_ops(given: argparse.Namespace) -> Iterator[str]:
    """Problems of ``--op``, which must describe the same graph as without it."""
    if not given.op:
        return
    for each in given.op:
        name = each.removesuffix(":0")
        if name not in (_INFER, *_IMPLICIT):
            there = ", ".join((_INFER, *_IMPLICIT))
            yield f"--op {each} is not available here: the ops are {there}"
    engines = sum(each.removesuffix(":0") == _INFER for each in given.op)
    if len(given.model) > 1:
        yield "--op describes one --model: give that flag once, with all models"
    elif given.model and engines != len(given.model[0]):
        times = f"{engines} time{'s' * (engines != 1)}"
        yield f"--op has {_INFER} {times}, but there {_are(len(given.model[0]))}"


def _problems_of_ocr(given: argparse.Namespace) -> Iterator[str]:
    """The original puts an op of its own between two models if the first has this name."""
    for listed in given.model:
        if not given.op and len(listed) == 2 and Path(listed[0]).name == _OCR:
            yield (
                f"--model {' '.join(listed)}: the original crops the texts of {_OCR} with its"
                " GeneralDetectionOp, which is not available here: write a pipeline of two ops,"
                " with OCRReader and DBPostProcess of paddle_serving_app.reader"
            )


def _are(models: int) -> str:
    return "is 1 model" if models == 1 else f"are {models} models"


def _op_options(given: argparse.Namespace, index: int, path: str) -> dict[str, Any]:
    batched = _is_async(given, index)
    return {
        **places(path, _workers(given, index)),
        "use_encryption_model": given.use_encryption_model,
        "encryption_key": given.encryption_key,
        "batch_size": _nth(given.batch_infer_size or [_BATCH], index) if batched else 1,
        "batch_rows": batched,
        "policy": given.policy,
        "pad": {"enabled": batched and given.pad and not given.no_pad},
        "rows": _rows(_nth(given.rows, index)) if given.rows else None,
        "shared_outputs": given.shared_outputs,
        "verify_batches": given.verify_batches,
        "examples": given.examples,
        "local_service_conf": _options(given, index),
    }


def _rows(text: str) -> str | dict[str, Any]:
    """The axes of ``--rows``, as of the key ``rows``."""
    if text == FIRST:
        return text
    axes = (each.partition("=") for each in text.split(","))
    return {name: int(axis) if axis.isdecimal() else axis for name, _, axis in axes}


def _take_models(given: argparse.Namespace) -> None:
    """Take the arguments without a flag: the original's command, or models."""
    first, *others = given.models or ["start"]
    given.command = first if first in ("start", *_REPLACEMENTS) else "start"
    models = others if first == given.command else [first, *others]
    given.model = [*([each] for each in models), *given.model]


def _named(listed: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The name of a model, or of a sequence of models, and their paths."""
    name, equals, path = listed[0].partition("=")
    paths = (path if equals else listed[0], *listed[1:])
    for each in paths:
        check_path(f"--model {each}", each)
    return name if equals else model_name(Path(paths[-1]).resolve()), paths


def _nth(values: Sequence[Any], index: int) -> Any:
    """The value of a flag for a model; a flag with fewer values than models repeats them."""
    return values[index % len(values)]


def _is_async(given: argparse.Namespace, index: int) -> bool:
    return _nth(given.runtime_thread_num, index) > 0  # type: ignore[no-any-return]


def _workers(given: argparse.Namespace, index: int) -> int:
    threads: int = _nth(given.runtime_thread_num, index)
    return threads if threads > 0 else given.thread


def _options(given: argparse.Namespace, index: int) -> dict[str, Any]:
    cards = _nth(given.gpu_ids, index) if given.gpu_ids else _ON_CPU
    on_cpu = cards == _ON_CPU
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


def _flags_of_keys(given: argparse.Namespace, index: int) -> dict[tuple[str, ...], str]:
    """The flag that sets a key of an op, for messages."""
    conf = "local_service_conf"
    cards = f"--gpu_ids {_nth(given.gpu_ids, index)}" if given.gpu_ids else "--gpu_ids"
    return {
        ("encryption_key",): "--encryption_key",
        (conf, "devices"): cards,
        (conf, "device_type"): "--use_trt" if given.use_trt else cards,
        (conf, "precision"): f"--precision {given.precision}",
        (conf, "use_calib"): "--use_calib",
        (conf, "thread_num"): "--cpu_math_thread_num",
    }
