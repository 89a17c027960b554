"""Reads ``config.pbtxt``, Triton's configuration of a model.

The file is the protobuf text form of the message ``ModelConfig``. The schema here
(``protocols/pb/inference/inference.proto``) has the fields that Penstock honours. Every other field
is refused, if the model would give other answers without it, or ignored with a warning, if it only
changes speed or belongs to a library that is not used. All problems of a file are reported at once,
with their lines.

Source: Triton's model configuration; the Protocol Buffers text format specification.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import prod
from typing import Any, Final, Literal

from google.protobuf import json_format

from penstock.errors import ModelError
from penstock.protocols import text_form
from penstock.protocols.standard_messages import ModelConfig as Message
from penstock.repository import policy
from penstock.repository.policy import VersionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One input or output.

    Attributes:
        name: its name.
        datatype: of the Open Inference Protocol, such as FP32.
        dims: its dimensions, -1 for those that vary; without the batch axis if ``max_batch_size``
            is above 0.
        reshape: the dimensions that the model itself has; None if they are ``dims``.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """Workers of a model.

    Attributes:
        count: their number, on each of its GPUs if there are any.
        kind: where they run; ``auto`` is on GPUs if there are any.
        gpus: ids of GPUs; empty for all.
    """

    count: int = 1
    kind: Literal["auto", "gpu", "cpu", "model"] = "auto"
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How long requests may wait.

    Attributes:
        timeout: in seconds; None for no limit.
        action: what happens then.
        max_size: most requests that wait; None for no limit.
    """

    timeout: float | None = None
    action: Literal["reject", "delay"] = "reject"
    max_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """``dynamic_batching``.

    Attributes:
        preferred: preferred sizes of batches, in rows.
        delay: seconds for which a batch may wait to be filled.
        levels: the number of priorities; 0 for none.
        level: the default priority; 0 if there are none.
        queue: the policy of all priorities but those in ``queues``.
        queues: by priority.
    """

    preferred: tuple[int, ...] = ()
    delay: float = 0.0
    levels: int = 0
    level: int = 0
    queue: QueuePolicy = QueuePolicy()
    queues: Mapping[int, QueuePolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupInput:
    """An input of a request for warm-up.

    Attributes:
        datatype: as of ``Tensor``.
        dims: all sizes, without the batch axis.
        data: ``zero``, ``random``, or the name of a file in the folder ``warmup``.
    """

    datatype: str
    dims: tuple[int, ...]
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """A request that runs before a model is ready.

    Attributes:
        name: its name.
        batch_size: its rows; at least 1.
        count: how often it runs; at least 1.
        inputs: by name.
    """

    name: str
    batch_size: int
    count: int
    inputs: Mapping[str, WarmupInput]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One model of an ensemble.

    Attributes:
        model: its name.
        version: its version; None for the default one.
        inputs: the model's input -> the ensemble's tensor.
        outputs: the model's output -> the ensemble's tensor.
    """

    model: str
    version: str | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A model's configuration.

    Attributes:
        name: the model's; empty if the file does not say.
        backend: the library that the file asks for, by Triton's name, such as ``onnxruntime``;
            empty if the files of the model decide.
        max_batch_size: most rows of a batch; 0 if the model has no batch axis.
        inputs, outputs: its tensors; empty if the model itself says.
        policy: which versions are served; None if the file does not say.
        groups: its workers; empty if the file does not say.
        batching: how requests are batched; None if they are not.
        warmups: requests that run before the model is ready.
        steps: those of an ensemble; empty for a model.
        filename: the model's file in the folder of a version; empty for the usual one.
        parameters: further options, by name.
        plain: the whole configuration as plain values, as of ``of_plain``.
        warnings: what has no effect, each with its line.
    """

    name: str = ""
    backend: str = ""
    max_batch_size: int = 0
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    policy: VersionPolicy | None = None
    groups: tuple[InstanceGroup, ...] = ()
    batching: Batching | None = None
    warmups: tuple[Warmup, ...] = ()
    steps: tuple[Step, ...] = ()
    filename: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    plain: Mapping[str, Any] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_ensemble(self) -> bool:
        """Whether it is an ensemble, which has no files of its own."""
        return bool(self.steps)


def parse(text: str, source: str = "config.pbtxt") -> Config:
    """Read the text of a file.

    Args:
        text: of the file.
        source: the name of the file, for messages.

    Raises:
        ModelError: with every problem found, each with its line.
    """
    problems: list[str] = []
    message = Message()
    try:
        lines, known = _scanned(text)
        problems, warnings = _judged(lines, source)
        text_form.parse(known, message)
    except text_form.PROBLEMS as error:
        problems.append(f"{text_form.problem_of(error, source)}{_hint(str(error))}")
    else:
        return _config(message, lines, source, problems, warnings)
    raise ModelError("\n".join(problems))


def of_plain(
    plain: Mapping[str, Any], source: str = "config", *, lines: Mapping[str, int] | None = None
) -> Config:
    """Read plain values, as of JSON.

    Args:
        plain: the fields by their names in the file, or in lower camel case.
        source: where they come from, for messages.
        lines: of the fields, as of ``parse``; for messages.

    Raises:
        ModelError: with every problem found.
    """
    message = Message()
    found = dict.fromkeys(_paths(plain), 0)
    problems, warnings = _judged(found, source)
    shapes = [f"{source}: {each}" for each in _without_object(plain, Message.DESCRIPTOR, "")]
    if shapes:
        raise ModelError("\n".join([*problems, *shapes]))
    try:
        json_format.ParseDict(dict(plain), message, ignore_unknown_fields=True)
    except json_format.ParseError as error:
        problems.append(f"{source}: {str(error)[:_MAX_ERROR_TEXT]}{_hint(str(error))}")
        raise ModelError("\n".join(problems)) from None
    return _config(message, lines or found, source, problems, warnings)


def _hint(error: str) -> str:
    """What to do about an error of protobuf that many users make; empty if nothing is known."""
    if "$" in error:
        return "; a template's ${...} must be filled in first"
    if "DataType" in error:
        return "; types are TYPE_FP32, TYPE_INT64, TYPE_STRING, ..."
    return ""


_MAX_ERROR_TEXT: Final = 300  # characters; protobuf may repeat the whole line

_REFUSED: Final = {
    "sequence_batching": "sequences are not supported",
    "model_repository_agents": "agents of repositories are not supported",
    "model_operations": "libraries of custom operations are not supported",
    "batch_input": "inputs that the batcher makes are not supported",
    "batch_output": "outputs that the batcher divides are not supported",
    "input.allow_ragged_batch": "ragged batches are not supported",
    "input.is_shape_tensor": "shape tensors are of TensorRT, which is not available here",
    "output.is_shape_tensor": "shape tensors are of TensorRT, which is not available here",
    "ensemble_scheduling.step.model_namespace": "models have no namespaces here",
}
"""Fields without which the model would give other answers, and why they are refused."""

_NO_EFFECT: Final = {
    "optimization": "the library decides how it optimises a model",
    "cc_model_filenames": "files by compute capability are of TensorRT",
    "metric_tags": "metrics have no tags",
    "model_metrics": "the metrics of all models have the same buckets",
    "response_cache": "every request is computed",
    "runtime": "the files of the model decide",
    "input.optional": "requests have all inputs of a model",
    "output.label_filename": "the classification extension is not supported",
    "input.is_non_linear_format_io": "it is of TensorRT",
    "output.is_non_linear_format_io": "it is of TensorRT",
    "instance_group.rate_limiter": "workers are not limited between models",
    "instance_group.profile": "profiles are of TensorRT",
    "instance_group.passive": "all workers get requests",
    "instance_group.host_policy": "see cpu_affinity",
    "instance_group.secondary_devices": "secondary devices are not supported",
    "ensemble_scheduling.max_inflight_requests": "see worker_num",
}
"""Fields that are ignored with a warning, and the reason."""

_FALSE_IS_DEFAULT: Final = frozenset(
    {
        "input.allow_ragged_batch",
        "input.optional",
        "input.is_shape_tensor",
        "output.is_shape_tensor",
        "input.is_non_linear_format_io",
        "output.is_non_linear_format_io",
        "instance_group.passive",
    }
)
"""Of those, switches; ``false`` is what happens anyway."""

_TOKEN: Final = re.compile(
    r"#[^\n]*|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'"
    r"|[A-Za-z_][A-Za-z0-9_]*|[0-9+-][A-Za-z0-9_.+-]*|\S",
)
_NAME: Final = re.compile("[A-Za-z_]")
_MAX_DEPTH: Final = 64
_OPENING: Final = frozenset("{<[")
_CLOSING: Final = frozenset("}>]")


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    line: int
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def _tokens(text: str) -> list[_Token]:
    found = []
    line, at = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        if not match[0].startswith("#"):
            found.append(_Token(match[0], line, at))
    return found


def _scanned(text: str) -> tuple[dict[str, int], str]:
    """The path of each field in the text, such as ``input.dims``, with its first line, except
    switches that are off; and the text without those that the schema lacks.

    protobuf's parser tells no lines. It refuses what is no text form, for which this is not asked.

    Raises:
        ValueError: messages are nested too deeply for any configuration.
    """
    found: dict[str, int] = {}
    kept: list[str] = []
    at = 0
    unknown: dict[str, bool] = {}
    path: list[str] = []
    lists: list[str | None] = []  # of each bracket the field, if it opened a list
    name = ""
    tokens = _tokens(text)
    for index, token in enumerate(tokens):
        after = [each.text for each in tokens[index + 1 : index + 3]]
        if token.text in _OPENING:
            is_list = token.text == "["
            if not is_list:
                path.append((lists[-1] if lists else None) or name)
            lists.append(name if is_list else None)
            if len(lists) > _MAX_DEPTH:
                raise ValueError(f"line {token.line} is nested too deeply")
        elif token.text in _CLOSING:
            lists = lists[:-1]
            if token.text != "]":
                path = path[:-1]
        elif _NAME.match(token.text) and after and after[0] in (":", "{", "<", "["):
            name = token.text
            whole = ".".join((*path, name))
            off = after[0] == ":" and after[1:] in (["false"], ["False"], ["f"], ["0"])
            if not (off and whole in _FALSE_IS_DEFAULT):
                found.setdefault(whole, token.line)
            if whole not in unknown:
                unknown[whole] = _field(whole) is None
            if unknown[whole] and token.start >= at:
                end = _end_of_field(tokens, index)
                kept += [text[at : token.start], re.sub(r"[^\n]", " ", text[token.start : end])]
                at = end
    return found, "".join(kept) + text[at:]


def _end_of_field(tokens: Sequence[_Token], index: int) -> int:
    """The place in the text after a field and its value.

    Args:
        tokens: of the text.
        index: of the field's name.
    """
    at, last = index + 1, len(tokens) - 1
    if tokens[at].text == ":":
        at = min(at + 1, last)
    depth = 0
    while at < last:
        depth += (tokens[at].text in _OPENING) - (tokens[at].text in _CLOSING)
        if depth <= 0 and not (tokens[at].text[0] in "\"'" and tokens[at + 1].text[0] in "\"'"):
            break
        at += 1
    if at < last and tokens[at + 1].text in (",", ";"):
        at += 1
    return tokens[at].end


def _paths(plain: Any, above: str = "") -> Iterator[str]:
    """The paths of the fields of plain values."""
    if isinstance(plain, list | tuple):
        for each in plain:
            yield from _paths(each, above)
    elif isinstance(plain, Mapping):
        in_map = _field(above) is not None and _is_map(_field(above))
        for key, value in plain.items():
            if in_map:
                yield from _paths(value, f"{above}.value")
                continue
            path = f"{above}.{_snake(str(key))}".lstrip(".")
            if value is not False or path not in _FALSE_IS_DEFAULT:
                yield path
                yield from _paths(value, path)


def _without_object(plain: Mapping[str, Any], of: Any, above: str) -> Iterator[str]:
    """Where an object is missing: protobuf takes a text in its place for one without members."""
    for key, value in plain.items():
        found = of.fields_by_name.get(_snake(str(key)))
        if found is None or found.message_type is None or value is None:
            continue
        path, inner, example = f"{above}{key}", found.message_type, ""
        items = {path: value}.items()
        if _is_map(found):
            inner = inner.fields_by_name["value"].message_type
            if inner is None:
                continue
            if isinstance(value, Mapping):
                items = {f"{path}.{name}": each for name, each in value.items()}.items()
            else:
                example = '"NAME": '
        for where, given in items:
            for each in given if found.is_repeated and isinstance(given, list) else [given]:
                if isinstance(each, Mapping):
                    yield from _without_object(each, inner, f"{where}.")
                else:
                    wanted = f'{{"{next(iter(inner.fields_by_name))}": ...}}'
                    shown = f"{{{example}{wanted}}}" if example else wanted
                    yield f"{where}: must be an object, such as {shown}"


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda found: "_" + found[0].lower(), name)


def _field(path: str) -> Any:
    """The schema's field at a path; None if there is none."""
    of, found = Message.DESCRIPTOR, None
    for name in path.split("."):
        found = None if of is None else of.fields_by_name.get(name)
        if found is None:
            return None
        of = found.message_type
    return found


def _is_map(found: Any) -> bool:
    return found.message_type is not None and found.message_type.GetOptions().map_entry


def _judged(lines: Mapping[str, int], source: str) -> tuple[list[str], list[str]]:
    """The problems of fields that are refused or unknown, and warnings of those without effect.

    Args:
        lines: the paths of the fields; a line of 0 is unknown.
        source: the name of the file.
    """
    problems, warnings = [], []
    for path, line in lines.items():
        where = f"{source}:{line}: {path}" if line else f"{source}: {path}"
        if path in _REFUSED:
            problems.append(f"{where}: {_REFUSED[path]}")
        elif path in _NO_EFFECT:
            warnings.append(f"{where} has no effect: {_NO_EFFECT[path]}")
        elif _field(path) is None and not _is_below(path):
            above, _, name = path.rpartition(".")
            of = _field(above).message_type if above else Message.DESCRIPTOR
            known = [] if of is None else [*of.fields_by_name]
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            problems.append(f"{where}: is not a known field{hint}")
    return problems, warnings


def _is_below(path: str) -> bool:
    """Whether a path is below one that is judged as a whole, or below an unknown one."""
    parts = path.split(".")
    above = [".".join(parts[:count]) for count in range(1, len(parts))]
    return any(each in _REFUSED or each in _NO_EFFECT or _field(each) is None for each in above)


_BACKENDS: Final = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "caffe2_netdef": "caffe2",
}
"""Platforms, and their backends."""


def _config(
    message: Any,
    lines: Mapping[str, int],
    source: str,
    problems: list[str],
    warnings: Sequence[str],
) -> Config:
    """The configuration in a message.

    Raises:
        ModelError: with the given problems and those of the values.
    """

    def problem(path: str, text: str) -> None:
        # Something that is missing has no line: that of what lacks it.
        line = lines.get(path) or lines.get(path.rpartition(".")[0], 0)
        problems.append(f"{source}:{line}: {text}" if line else f"{source}: {text}")

    batched = message.max_batch_size > 0
    if message.max_batch_size < 0:
        problem("max_batch_size", f"max_batch_size: must be 0 or more: {message.max_batch_size}")
    if message.model_transaction_policy.decoupled:
        path = "model_transaction_policy.decoupled"
        problem(path, f"{path}: a model answers each request once: write a function that yields")
    sides = {}
    for side in ("input", "output"):
        tensors = []
        for each in getattr(message, side):
            tensor, wrong = _tensor(each, batched=batched)
            tensors.append(tensor)
            for path, text in wrong:
                problem(f"{side}{path}", f"{side} {each.name!r}: {text}")
        names = [each.name for each in tensors]
        for name in {each for each in names if names.count(each) > 1}:
            problem(f"{side}.name", f"two {side}s are called {name!r}")
        sides[side] = tuple(tensors)
    made = Config(
        name=message.name,
        backend=_BACKENDS.get(message.platform, message.platform)
        if not message.backend
        else message.backend,
        max_batch_size=max(0, message.max_batch_size),
        inputs=sides["input"],
        outputs=sides["output"],
        policy=_policy(message, problem),
        groups=_groups(message, problem),
        batching=_batching(message, problem),
        warmups=_warmups(message, problem),
        steps=_steps(message, problem),
        filename=message.default_model_filename,
        parameters={key: each.string_value for key, each in sorted(message.parameters.items())},
        plain=_plain(message),
        warnings=tuple(warnings),
    )
    if made.filename and ({*made.filename.split("/")} & {"", ".", ".."} or "\\" in made.filename):
        path = "default_model_filename"
        problem(path, f"{path}: must be a path in the folder of a version: {made.filename!r}")
    if problems:
        raise ModelError("\n".join(problems))
    if made.batching is not None and not batched:
        line = lines.get("dynamic_batching", 0)
        where = f"{source}:{line}" if line else source
        text = f"{where}: dynamic_batching batches nothing: max_batch_size is 0"
        made = replace(made, warnings=(*made.warnings, text))
    return made


def _plain(message: Any) -> dict[str, Any]:
    """The fields of a message that are set, with numbers as such: the JSON form of protobuf has
    those of 64 bits as texts.
    """
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    for of, value in message.ListFields():
        if of.message_type is None:
            if of.cpp_type in (of.CPPTYPE_INT64, of.CPPTYPE_UINT64):
                found[of.name] = value if isinstance(value, int) else [*value]
        elif of.message_type.GetOptions().map_entry:
            if of.message_type.fields_by_name["value"].message_type is not None:
                found[of.name] = {str(key): _plain(each) for key, each in value.items()}
        elif hasattr(value, "ListFields"):
            found[of.name] = _plain(value)
        else:
            found[of.name] = [_plain(each) for each in value]
    return found


_INPUT: Final = Message.DESCRIPTOR.fields_by_name["input"].message_type
_DATA_TYPE: Final = _INPUT.fields_by_name["data_type"].enum_type
_KINDS: Final[Mapping[int, Any]] = {0: "auto", 1: "gpu", 2: "cpu", 3: "model"}


def _datatype(number: int) -> str:
    """A datatype of the Open Inference Protocol; empty for none."""
    found = _DATA_TYPE.values_by_number.get(number)
    kind = "INVALID" if found is None else found.name.removeprefix("TYPE_")
    return {"STRING": "BYTES", "INVALID": ""}.get(kind, kind)


def _tensor(given: Any, *, batched: bool) -> tuple[Tensor, list[tuple[str, str]]]:
    """A tensor, and its problems: path below it, and text."""
    problems = []
    if not given.name:
        problems.append((".name", "needs a name"))
    dims = tuple(given.dims)
    shape = tuple(given.reshape.shape) if given.HasField("reshape") else None
    datatype = _datatype(given.data_type)
    if not datatype:
        problems.append((".data_type", "needs a data_type, such as TYPE_FP32"))
    if not dims and shape is None and batched:
        problems.append((".dims", "needs dims; [ 1 ] with `reshape { shape: [] }` is a number"))
    for path, sizes in ((".dims", dims), (".reshape.shape", shape or ())):
        if any(each < -1 or each == 0 for each in sizes):
            problems.append((path, f"a dimension is -1 or 1 and more: {[*sizes]}"))
    if shape is not None:
        open_ends = [each.count(-1) for each in (dims, shape)]
        equal = prod(each for each in dims if each > 0) == prod(each for each in shape if each > 0)
        if open_ends[0] != open_ends[1] or not equal:
            text = f"reshape: {[*shape]} has not as many elements as {[*dims]}"
            problems.append((".reshape.shape", text))
        elif open_ends[0] > 1 and _between(dims) != _between(shape):
            text = f"reshape: which dimensions of {[*dims]} are those of {[*shape]} is ambiguous"
            problems.append((".reshape.shape", text))
    tensor = Tensor(
        name=given.name,
        datatype=datatype,
        dims=dims,
        reshape=shape,
    )
    return tensor, problems


def _between(dims: Sequence[int]) -> list[int]:
    """The elements before, between and after the dimensions that vary."""
    found = [1]
    for each in dims:
        if each == -1:
            found.append(1)
        else:
            found[-1] *= each
    return found


def _policy(message: Any, problem: Any) -> VersionPolicy | None:
    if not message.HasField("version_policy"):
        return None
    given = message.version_policy
    choice = given.WhichOneof("policy_choice")
    if choice == "all":
        return policy.ALL
    if choice == "specific":
        versions = [*given.specific.versions]
        if not versions or min(versions) < 0:
            path = "version_policy.specific"
            problem(path, f"{path}: needs numbers of versions: {versions}")
        return VersionPolicy(specific=tuple(policy.ordered({str(each) for each in versions})))
    return VersionPolicy(latest=given.latest.num_versions or 1)


def _groups(message: Any, problem: Any) -> tuple[InstanceGroup, ...]:
    found = []
    for each in message.instance_group:
        kind = _KINDS.get(each.kind, "auto")
        if each.count < 0:
            problem(
                "instance_group.count", f"instance_group: count must be 1 or more: {each.count}"
            )
        if kind == "cpu" and each.gpus:
            problem("instance_group.gpus", "instance_group: KIND_CPU has no gpus")
        if any(card < 0 for card in each.gpus):
            problem("instance_group.gpus", f"instance_group: gpus are ids: {[*each.gpus]}")
        group = InstanceGroup(count=max(each.count, 1), kind=kind, gpus=tuple(each.gpus))
        found.append(group)
    return tuple(found)


def _batching(message: Any, problem: Any) -> Batching | None:
    if not message.HasField("dynamic_batching"):
        return None
    given = message.dynamic_batching
    preferred = tuple(sorted({*given.preferred_batch_size}))
    most = message.max_batch_size
    if preferred and (preferred[0] < 1 or (most > 0 and preferred[-1] > most)):
        path = "dynamic_batching.preferred_batch_size"
        problem(path, f"{path}: must be between 1 and max_batch_size, which is {most}")
    levels, level = given.priority_levels, given.default_priority_level
    path = "dynamic_batching.default_priority_level"
    if levels and not 1 <= level <= levels:
        problem(path, f"{path}: must be between 1 and priority_levels, which is {levels}")
    queues = {key: _queue(each) for key, each in sorted(given.priority_queue_policy.items())}
    if any(not 1 <= key <= levels for key in queues):
        path = "dynamic_batching.priority_queue_policy"
        problem(path, f"{path}: keys must be between 1 and priority_levels, which is {levels}")
    return Batching(
        preferred=preferred,
        delay=given.max_queue_delay_microseconds / 1e6,
        levels=levels,
        level=level,
        queue=_queue(given.default_queue_policy),
        queues=queues,
    )


def _queue(given: Any) -> QueuePolicy:
    return QueuePolicy(
        timeout=given.default_timeout_microseconds / 1e6 or None,
        action="delay" if given.timeout_action else "reject",
        max_size=given.max_queue_size or None,
    )


def _warmups(message: Any, problem: Any) -> tuple[Warmup, ...]:
    found = []
    for each in message.model_warmup:
        inputs = {}
        for name, given in sorted(each.inputs.items()):
            choice = given.WhichOneof("input_data_type")
            data = given.input_data_file if choice == "input_data_file" else (choice or "zero_data")
            where, text = "model_warmup.inputs", f"model_warmup {each.name!r}: input {name!r}"
            if not _datatype(given.data_type):
                problem(where, f"{text} needs a data_type, such as TYPE_FP32")
            if any(size < 1 for size in given.dims):
                problem(where, f"{text} needs all sizes: {[*given.dims]}")
            if choice == "input_data_file" and {*data.split("/")} & {"", ".", ".."}:
                problem(where, f"{text}: its file must be in the folder warmup: {data!r}")
            inputs[name] = WarmupInput(
                datatype=_datatype(given.data_type),
                dims=tuple(given.dims),
                data=f"warmup/{data}"
                if choice == "input_data_file"
                else data.removesuffix("_data"),
            )
        found.append(
            Warmup(
                name=each.name,
                batch_size=max(each.batch_size, 1),
                count=max(each.count, 1),
                inputs=inputs,
            )
        )
    return tuple(found)


def _steps(message: Any, problem: Any) -> tuple[Step, ...]:
    if not message.HasField("ensemble_scheduling"):
        if message.platform == "ensemble" or message.backend == "ensemble":
            problem("platform", "platform: an ensemble needs ensemble_scheduling")
        return ()
    where = "ensemble_scheduling"
    if not message.ensemble_scheduling.step:
        problem(where, f"{where}: needs a step")
    for side in ("input", "output"):
        if not getattr(message, side):
            problem(where, f"{where}: an ensemble needs {side}s with names, types and dims")
        if any(each.HasField("reshape") for each in getattr(message, side)):
            problem(f"{side}.reshape", f"{side}: reshape is for models, not for ensembles")
    steps = [
        Step(
            model=each.model_name,
            version=str(each.model_version) if each.model_version > 0 else None,
            inputs=dict(sorted(each.input_map.items())),
            outputs=dict(sorted(each.output_map.items())),
        )
        for each in message.ensemble_scheduling.step
    ]
    made = {each.name: "the request" for each in message.input}
    for number, step in enumerate(steps, start=1):
        called = f"step {number} ({step.model})" if step.model else f"step {number}"
        if not step.model:
            problem(f"{where}.step", f"{where}: {called} needs a model_name")
        if not step.inputs or not step.outputs:
            problem(f"{where}.step", f"{where}: {called} needs an input_map and an output_map")
        for tensor in step.outputs.values():
            if tensor in made:
                text = f"{where}: {called} makes {tensor!r}, as does {made[tensor]}"
                problem(f"{where}.step.output_map", text)
            made[tensor] = called
    for number, step in enumerate(steps, start=1):
        for tensor in step.inputs.values():
            if tensor not in made:
                text = (
                    f"{where}: nothing makes {tensor!r}, which step {number} ({step.model}) takes"
                )
                problem(f"{where}.step.input_map", text)
    for each in message.output:
        if each.name not in made:
            problem("output.name", f"{where}: nothing makes the output {each.name!r}")
    ready = {each.name for each in message.input}
    left = [*steps]
    ordered: list[Step] = []
    while runnable := [each for each in left if {*each.inputs.values()} <= ready]:
        left = [each for each in left if each not in runnable]
        ordered += runnable
        ready |= {tensor for each in runnable for tensor in each.outputs.values()}
    if left and all({*each.inputs.values()} <= {*made} for each in left):
        names = ", ".join(each.model for each in left)
        problem(f"{where}.step", f"{where}: these steps wait for each other: {names}")
    return tuple(ordered)
