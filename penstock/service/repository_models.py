"""Makes a service of a version's description: a model of a repository, or an ensemble of some.

The description is plain data (see ``repository/description.py``); every process of a service makes
the same graph of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.batching.queue_policy import QueuePolicy
from penstock.config.load import typed
from penstock.errors import ModelError, RequestError
from penstock.ops.ends import RequestOp
from penstock.ops.ensemble import Selection
from penstock.ops.op import Op
from penstock.ops.short import Model
from penstock.protocols import oip
from penstock.protocols.tensors import DecodeBudget
from penstock.repository import pbtxt
from penstock.repository.layout import CONFIG
from penstock.repository.parameters import OF_VERSIONS, OWN, ROLLOUT, THREAD_KEYS
from penstock.repository.pbtxt import Config, Tensor, Warmup
from penstock.request import Feed
from penstock.service.blueprint import MakeApplication
from penstock.service.model_places import THREADS, places
from penstock.service.models import version_examples
from penstock.service.server import Service
from penstock.tensor import DeclaredTensor, DeclaredTensors, Signature

Description = Mapping[str, Any]

_BACKENDS: Final = frozenset({"", "onnxruntime", "pytorch", "openvino", "paddle"})
"""Triton's names of the libraries that are runtimes here; the files decide which one it is."""

_FILES: Final = ("model.onnx", "model.pt", "model.pt2", "model.xml")
"""The usual names of a model's file, of which a folder may have others too."""

_MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What a repository's models have if their configurations do not say.

    Attributes:
        changing: whether they are loaded and unloaded while the service runs: then they run in
            worker processes, whose memory is free once they have ended.
        config: top-level configuration keys.
        applications: of the service.
    """

    changing: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    applications: Sequence[MakeApplication] = ()


def service_of(description: Description, usual: Usual) -> Service:
    """The service of a version.

    Raises:
        ModelError: the configuration asks for what is not there.
    """
    config = pbtxt.of_plain(description["config"], _source(description))
    name = description["name"]
    options: dict[str, dict[str, Any]] = {}
    places: dict[tuple[str | int, ...], str] = {}
    signature = None
    if config.is_ensemble:
        last = _ensemble(description, config, usual, options, places)
        signature = Signature(
            inputs={each.name: (each.datatype, _shape(each, config)) for each in config.inputs},
            outputs={each.name: (each.datatype, _shape(each, config)) for each in config.outputs},
        )
    else:
        last = _model(description, config, name, None, usual, options, places)
    keys = {**usual.config, "op": options}
    if config.batching is not None and (most := config.batching.queue.max_size) is not None:
        keys["dag"] = {**keys.get("dag", {}), "channel_size": most}
    made = Service(name, last, applications=usual.applications, signature=signature, **keys)
    made.places = places
    made.version = description["version"]
    made.configuration = config.plain
    made.queue = _queue(config)
    return made


def _queue(config: Config) -> dict[int, QueuePolicy] | None:
    """How long requests may wait, by priority, and by 0 for others; None if the configuration does
    not limit it.
    """
    batching = config.batching
    if batching is None:
        return None
    given = {0: batching.queue, **batching.queues}
    if not any(each.timeout for each in given.values()):
        return None
    return {
        level: QueuePolicy(timeout=each.timeout, delay=each.action == "delay")
        for level, each in given.items()
    }


def priorities_of(configs: Mapping[str, Config]) -> dict[str, Any] | None:
    """The key ``priority`` of a service whose models have priorities; None if none has.

    Args:
        configs: of the models, by name.
    """
    levels = {name: each.batching for name, each in configs.items() if each.batching is not None}
    of = {name: each.level for name, each in levels.items() if each.levels > 1}
    if not of:
        return None
    most = max(each.levels for each in levels.values())
    return {"levels": most, "routes": of, "header": True}


def _source(description: Description) -> str:
    return f"{description['name']}/{CONFIG}"


def _ensemble(
    description: Description,
    config: Config,
    usual: Usual,
    options: dict[str, dict[str, Any]],
    places: dict[tuple[str | int, ...], str],
) -> Op:
    """The last op of an ensemble."""
    request = RequestOp()
    tensors: dict[str, tuple[Op, str]] = {each.name: (request, each.name) for each in config.inputs}
    return _steps(description, config, "", tensors, usual, options, places)


def _steps(
    description: Description,
    config: Config,
    prefix: str,
    tensors: dict[str, tuple[Op, str]],
    usual: Usual,
    options: dict[str, dict[str, Any]],
    places: dict[tuple[str | int, ...], str],
) -> Op:
    """The ops of an ensemble's steps; returns the one that gives its outputs.

    Args:
        description: of the ensemble.
        config: its configuration.
        prefix: of the ops' names: an ensemble may be a step of another one.
        tensors: where its inputs are, by name; the outputs of the steps are added.
        usual: see ``service_of``.
        options: of the ops; completed.
        places: as ``options``.
    """

    def selected(sources: Mapping[str, tuple[Op, str]], name: str) -> Op:
        name = _free(name, options)
        options[name] = {"executor": "inline"}
        return Selection(sources, name)

    for step, of_step in zip(config.steps, description["steps"], strict=True):
        inner = pbtxt.of_plain(of_step["config"], _source(of_step))
        name = _free(f"{prefix}{step.model}", options)
        sources = {own: tensors[tensor] for own, tensor in step.inputs.items()}
        if inner.is_ensemble:
            op = _steps(of_step, inner, f"{name}.", dict(sources), usual, options, places)
        else:
            before = selected(sources, f"{name}/inputs")
            op = _model(of_step, inner, name, before, usual, options, places)
        tensors |= {tensor: (op, own) for own, tensor in step.outputs.items()}
    outputs = {each.name: tensors[each.name] for each in config.outputs}
    return selected(outputs, f"{prefix or description['name'] + '/'}outputs")


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or with a number if a step before it has it."""
    number = 1
    found = name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def _model(
    description: Description,
    config: Config,
    name: str,
    before: Op | None,
    usual: Usual,
    options: dict[str, dict[str, Any]],
    places: dict[tuple[str | int, ...], str],
) -> Op:
    """The op of one model."""
    source = _source(description)
    if config.backend not in _BACKENDS:
        raise ModelError(
            f"{source}: the backend {config.backend!r} is not available here: a model's file is"
            " ONNX, PyTorch, OpenVINO or Paddle; Python code is an op, or an App of its own"
        )
    path = Path(description["path"])
    made = Model(_file_of(path, config), before, name=name)
    made.tensors = _tensors(config, source)
    made.warmups = [
        feed
        for each in config.warmups
        for feed in [_feed(each, config, Path(description["folder"]), source)] * each.count
    ] + version_examples(path)
    made.examples = made.warmups
    given = {"executor": "process"} if usual.changing else _in_place(path)
    keys, written = _keys(config, given, source)
    options[name] = keys
    places |= {("op", name, *key): f"{source}: {field}" for key, field in written.items()}
    return made


def _file_of(path: Path, config: Config) -> Path:
    """The model's file, or the folder that has it."""
    if config.filename:
        return path / config.filename
    for name in _FILES:
        if (path / name).is_dir() or (
            (path / name).is_file() and len([*path.glob(f"*{Path(name).suffix}")]) > 1
        ):
            return path / name
    return path


def _shape(tensor: Tensor, config: Config) -> list[int]:
    return [*([-1] if config.max_batch_size else []), *tensor.dims]


def _tensors(config: Config, source: str) -> DeclaredTensors | None:
    if not config.inputs and not config.outputs:
        return None
    batched = config.max_batch_size > 0

    def declared(tensor: Tensor) -> DeclaredTensor:
        def sized(dims: Sequence[int]) -> tuple[int | None, ...]:
            sizes = [None if each < 0 else each for each in dims]
            return (None, *sizes) if batched else tuple(sizes)

        return DeclaredTensor(
            name=tensor.name,
            dtype=oip.DTYPES[tensor.datatype],
            bf16=tensor.datatype == oip.BF16,
            shape=sized(tensor.dims),
            inside=None if tensor.reshape is None else sized(tensor.reshape),
            batched=batched,
        )

    return DeclaredTensors(
        inputs=tuple(map(declared, config.inputs)),
        outputs=tuple(map(declared, config.outputs)),
        source=source,
    )


def _in_place(path: Path) -> dict[str, Any]:
    """The keys of a model that stays: it runs in threads if its library can."""
    return places(str(path), THREADS)


def _keys(
    config: Config, usual: Mapping[str, Any], source: str
) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """The keys of a model's op, and for those that the configuration sets the field, for messages.

    Raises:
        ModelError: a value is none of the key.
    """
    keys = dict(usual)
    local: dict[str, Any] = {}
    written: dict[tuple[str, ...], str] = {}
    if config.groups:
        count, devices = _workers(config, source)
        keys["concurrency"] = count
        written[("concurrency",)] = "instance_group"
        if devices is not None:
            local["devices"] = devices
            written[("local_service_conf", "devices")] = "instance_group"
    if config.max_batch_size > 0:
        keys["rows"] = "first"
        written[("rows",)] = "max_batch_size"
    batching = config.batching
    if batching is not None and config.max_batch_size > 0:
        keys["batch_size"] = max(batching.preferred, default=config.max_batch_size)
        keys["batch_rows"] = True
        written[("batch_size",)] = "dynamic_batching"
        if batching.delay:
            keys["auto_batching_timeout"] = batching.delay * 1000
    for name, text in config.parameters.items():
        if name in THREAD_KEYS and text.strip() not in ("", "0", "-1"):
            local["thread_num"] = typed(("op", "*", "local_service_conf", "thread_num"), text)
            written[("local_service_conf", "thread_num")] = f"parameters: {name}"
        if name.startswith(OWN) and name not in OF_VERSIONS and not name.startswith(ROLLOUT):
            *above, key = name.removeprefix(OWN).split(".")
            place = local if above == ["local_service_conf"] else keys
            if above and place is keys:
                place = keys.setdefault(above[0], {})
            place[key] = typed(("op", "*", *above, key), text)
            written[(*above, key)] = f"parameters: {name}"
    if local:
        keys["local_service_conf"] = local
    return keys, written


def _workers(config: Config, source: str) -> tuple[int, str | None]:
    """The number of workers, and their GPUs as of the key ``devices``; None for those that the
    server has by default.

    Raises:
        ModelError: there are workers on CPUs and on GPUs.
    """
    on_cpu = [each for each in config.groups if each.kind == "cpu"]
    on_gpu = [each for each in config.groups if each.kind == "gpu" or each.gpus]
    if on_cpu and on_gpu:
        raise ModelError(
            f"{source}: instance_group: workers on CPUs and on GPUs in one model are not supported"
        )
    count = 0
    cards: list[int] = []
    for each in config.groups:
        count += each.count * max(1, len(each.gpus))
        cards += [card for card in each.gpus for _ in range(each.count)]
    if on_gpu and not cards:
        return count, "0"
    if cards:
        return count, ",".join(map(str, dict.fromkeys(cards)))
    return count, "" if on_cpu else None


def _feed(warmup: Warmup, config: Config, folder: Path, source: str) -> Feed:
    """The inputs of a request for warm-up.

    Raises:
        ModelError: a file does not fit, or cannot be read.
    """
    rows = [warmup.batch_size] if config.max_batch_size else []
    where = f"{source}: model_warmup {warmup.name!r}"
    if warmup.batch_size > max(1, config.max_batch_size):
        raise ModelError(
            f"{where}: batch_size is {warmup.batch_size}, above max_batch_size, which is"
            f" {config.max_batch_size}"
        )
    feed: Feed = {}
    for name, given in warmup.inputs.items():
        shape = [*rows, *given.dims]
        if given.data in ("zero", "random"):
            feed[name] = _generated(given.datatype, shape, random=given.data == "random")
            continue
        file = folder / given.data
        try:
            raw = file.read_bytes()
            feed[name] = oip.from_raw(
                str(file), given.datatype, shape, raw, DecodeBudget(max(len(raw), _MEBIBYTE))
            )
        except (OSError, RequestError) as error:
            raise ModelError(f"{where}: input {name!r}: {error}") from error
    return feed


def _generated(datatype: str, shape: Sequence[int], *, random: bool) -> NDArray[Any]:
    """Zeros, or random values: floats around 0; 0 and 1, which are valid indices; letters."""
    dtype = oip.DTYPES[datatype]
    if dtype.kind == "O":
        texts = np.empty(shape, object)
        texts[...] = "a" if random else ""
        return texts
    if not random:
        return np.zeros(shape, dtype)
    generator = np.random.default_rng(0)
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)
