"""The keys of one op.

Times are milliseconds in YAML (fields ending in ``_ms``) and seconds in the properties beside them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, WithJsonSchema

from penstock.batching.rows import FIRST
from penstock.client.endpoints import parse_endpoints
from penstock.config.machines import RayConfig
from penstock.config.section import (
    MAX_INT32,
    Count,
    Names,
    OffFloat,
    OffInt,
    Seconds,
    Section,
    Text,
    Workers,
    listed,
    lower,
)
from penstock.errors import ConfigError
from penstock.executors.kinds import kind_named
from penstock.executors.probing import PROBE_SECONDS
from penstock.repository.policy import LATEST_WORD as LATEST
from penstock.repository.policy import canonical

MAX_CPU = 8191
"""Highest number of a CPU: Linux can be built for 8192."""
_CPUS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def _device_ids(value: str) -> str:
    if value.strip() and not all(
        re.fullmatch(r"[0-9]+", part.strip()) for part in value.split(",")
    ):
        raise ValueError('must be card numbers in quotes, such as "0" or "0,1"; "" is no card')
    return value


def parse_cpus(text: str) -> frozenset[int]:
    """``"0-1,3"`` -> 0, 1 and 3.

    Raises:
        ValueError: the text is invalid.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        match = _CPUS.fullmatch(part.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not low <= high <= MAX_CPU:
            raise ValueError('must be numbers of CPUs and ranges of them, such as "0-1,3"')
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def _cpu_set(value: object) -> str:
    text = str(value) if type(value) is int else value  # YAML reads a single CPU as a number
    if not isinstance(text, str):
        raise ValueError('must be text such as "0-1,3", or a list of such texts')
    parse_cpus(text)
    return text


def _cpu_sets(value: object) -> str | tuple[str, ...]:
    if isinstance(value, list) and value:
        return tuple(map(_cpu_set, value))
    return _cpu_set(value)


def _endpoint(value: str) -> str:
    try:
        parse_endpoints([value])
    except ValueError:
        raise ValueError("must be host:port, such as 127.0.0.1:9393 or [::1]:9393") from None
    return value


def _dimension(value: Any) -> str | int:
    if type(value) is int or (isinstance(value, str) and value):
        return value
    raise ValueError("must be the name of an axis, or its size")


def _sizes(value: Any) -> int | tuple[int, ...] | None:
    numbers = value if isinstance(value, list) else [value]
    for each in numbers:
        if type(each) is not int or not 1 <= each <= MAX_INT32:
            raise ValueError("must be a number of 1 or more, or a list of such numbers")
    if not numbers or numbers != sorted({*numbers}):
        raise ValueError("must be ascending numbers, such as [128, 256, 512]")
    return tuple(value) if isinstance(value, list) else value


def _executor(value: str) -> str:
    try:
        return kind_named(value).name
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _model_version(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("must be latest, or the number of a version")
    text = str(value).strip()
    version = canonical(text)
    if text != LATEST and version is None:
        raise ValueError("must be latest, or the number of a version")
    return version or text


def _row_axes(value: object) -> object:
    if value is None or value == FIRST:
        return value
    if not isinstance(value, dict) or not value:
        raise ValueError("must be first, or row axes by name, such as {x: 0, threshold: none}")
    axes = {name: None if axis == "none" else axis for name, axis in value.items()}
    for name, axis in axes.items():
        if axis is not None and (type(axis) is not int or axis < 0):
            raise ValueError(f"must be numbers of axes, or none; that of {name} is {axis!r}")
    return axes


_ROWS_SCHEMA = {
    "anyOf": [
        {"const": FIRST},
        {
            "type": "object",
            "additionalProperties": {
                "anyOf": [{"type": "integer", "minimum": 0}, {"const": "none"}, {"type": "null"}]
            },
        },
        {"type": "null"},
    ]
}
RowAxes: TypeAlias = Annotated[Any, AfterValidator(_row_axes), WithJsonSchema(_ROWS_SCHEMA)]
EndpointList: TypeAlias = Annotated[
    tuple[Annotated[Text, AfterValidator(_endpoint)], ...], BeforeValidator(listed)
]
Cards: TypeAlias = Annotated[str, AfterValidator(_device_ids)]
CpuSets: TypeAlias = Annotated[str | tuple[str, ...], BeforeValidator(_cpu_sets)]
Precision: TypeAlias = Annotated[Literal["fp32", "fp16", "int8", "bf16"], BeforeValidator(lower)]
ExecutorName: TypeAlias = Annotated[
    str, AfterValidator(_executor), WithJsonSchema({"type": "string"})
]
ModelVersion: TypeAlias = Annotated[
    str,
    BeforeValidator(_model_version),
    WithJsonSchema({"anyOf": [{"const": LATEST}, {"type": "integer"}]}),
]


class LocalServiceConfig(Section):
    """``op.<name>.local_service_conf``: the op's model, in this process."""

    never_blank = frozenset({"model_config", "mkldnn_op_list", "mkldnn_bf16_op_list"})

    path: Text | None = Field(
        default=None,
        alias="model_config",
        description="Folder or file of the model, relative to the working directory. Without it"
        " the op has no model, and the default `process` is skipped.",
    )
    client_type: Literal["local_predictor", "brpc", "grpc"] | None = Field(
        default=None,
        description="`local_predictor` (the default) runs the model in this process. `grpc`, or"
        " `brpc`, starts a model server for the op, which calls it; see"
        " [guide.md](guide.md#models-in-other-servers). `thread_num` is then the number of"
        " requests that this server runs at once.",
    )
    fetch_list: Names | None = Field(
        default=None,
        description="Outputs to fetch, by alias or real name; without the key, or with an empty"
        " list, all.",
    )
    workdir: str = Field(
        default="", description="Folder of a started model server's files; no effect."
    )
    thread_num: Workers | None = Field(
        default=None,
        description="CPU threads of one run of the model. Without the key: 2, but no more than"
        " the number of CPUs, which worker processes of an op share; at least 1. With"
        " `executor: ray` the whole part of `ray.num_cpus`, or 1.",
    )
    device_type: Annotated[int, Field(ge=-1, le=6)] = Field(
        default=-1,
        description="-1: `devices` decides; 0 CPU; 1 GPU; 2 GPU with TensorRT; 3 ARM CPU, 4"
        " Kunlun XPU, 5 Ascend 310 and 6 Ascend 910 are not available.",
    )
    devices: Cards = Field(
        default="",
        description='GPU ids in quotes, such as "0" or "0,1"; "" is the CPU. Workers in threads'
        " share one model, on the first GPU; worker processes use one GPU each, in turn.",
    )
    mem_optim: bool = Field(default=True, description="Reuse the memory of intermediate values.")
    ir_optim: bool | None = Field(
        default=None,
        description="Optimise the model's graph; `false` runs it as it is in the file. By default"
        " the library decides (and optimises).",
    )
    precision: Precision = Field(
        default="fp32",
        description="Precision of the run, case-insensitive. An unsupported precision is an"
        " error; ONNX Runtime supports only `fp32`. See [runtimes.md](runtimes.md) for this key"
        " and those below.",
    )
    use_calib: bool = Field(
        default=False,
        description="Calibrate for int8 while running; TensorRT only.",
    )
    use_mkldnn: bool = Field(
        default=False,
        description="Use oneDNN kernels on the CPU, with Paddle. With other libraries this key,"
        " the three below and `min_subgraph_size` have no effect, and cause a warning.",
    )
    mkldnn_cache_capacity: Annotated[int, Field(ge=0, le=MAX_INT32)] = Field(
        default=0, description="Shapes in oneDNN's cache; 0 is the library's default."
    )
    mkldnn_op_list: Names | None = Field(
        default=None, description="Operator types that use oneDNN."
    )
    mkldnn_bf16_op_list: Names | None = Field(
        default=None, description="Operator types that use bf16, with `precision: bf16`."
    )
    min_subgraph_size: Count = Field(
        default=3, description="Smallest subgraph that TensorRT runs, in operators."
    )

    @property
    def device_ids(self) -> tuple[str, ...]:
        """``devices`` as a list."""
        return tuple(part.strip() for part in self.devices.split(",") if part.strip())


Dimension: TypeAlias = Annotated[
    Any, AfterValidator(_dimension), WithJsonSchema({"type": ["string", "integer"]})
]
Dimensions: TypeAlias = Annotated[tuple[Dimension, ...], BeforeValidator(listed)]
_SIZES_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
        {"type": "null"},
    ]
}


class PadConfig(Section):
    """``op.<name>.pad``: requests of different sizes in one batch."""

    enabled: bool | None = Field(
        default=None,
        description="Pad requests of different sizes to a common size, so that they can share a"
        " batch. The op computes with the padding. Without the key: true if another key of `pad`"
        " is set.",
    )
    inputs: dict[str, Dimensions] = Field(
        default={},
        description="For each input the names of its axes, including the first, such as `[batch, 3,"
        " height, width]`. An axis with a name may be padded, an axis with a number not; axes"
        " with the same name have the same size in a request. Inputs that are not listed are"
        " not padded. Without the key: the variable axes of the op's model; without a model"
        " all axes of all inputs.",
    )
    outputs: dict[str, Dimensions] = Field(
        default={},
        description="The same for outputs: an axis with the name of an input axis is cropped to the"
        " request's own size. Without the key: the model's names of its axes.",
    )
    values: dict[str, float] = Field(
        default={}, description="Padding value of each input; 0 by default."
    )
    sizes: Annotated[Any, AfterValidator(_sizes), WithJsonSchema(_SIZES_SCHEMA)] = Field(
        default=None,
        description="Round each size up to a multiple of this number, or to the next of a list of"
        " ascending numbers; sizes beyond the last stay unchanged.",
    )
    max_elements: Annotated[int, Field(ge=0, le=MAX_INT32)] = Field(
        default=1024,
        description="Requests may share a batch if padding adds at most this many elements to a"
        " row of any of them,",
    )
    min_similarity: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5,
        description="or if a row of each has at least this share of the elements of a padded row.",
    )

    @property
    def on(self) -> bool:
        """Whether padding is enabled."""
        return bool(self.model_fields_set) if self.enabled is None else self.enabled


class OpConfig(Section):
    """``op.<name>``: one op. An op without an entry has every default and no model."""

    never_blank = frozenset(
        {
            "server_endpoints",
            "server_token",
            "server_ca_file",
            "server_cert_file",
            "server_key_file",
            "client_config",
            "fetch_list",
        }
    )

    concurrency: Workers = Field(default=1, description="Number of workers of this op.")
    timeout_ms: OffInt = Field(
        default=None,
        alias="timeout",
        description="Limit of one call of `process` in milliseconds; 0 or less is no limit.",
    )
    on_timeout: Literal["abandon", "kill"] = Field(
        default="abandon",
        description="What to do with a call that exceeds `timeout`, after its requests have been"
        " answered: let it return (`abandon`), or kill its worker, with its stack in the log,"
        " and replace it (`kill`, for ops in processes only).",
    )
    retry: Count = Field(
        default=1, description="Attempts of `process`, in all; repeated after a timeout."
    )
    batch_size: Count = Field(
        default=1,
        description="Most requests in one batch; with `batch_rows`: most rows.",
    )
    policy: Literal["fifo", "learned"] | None = Field(
        default=None,
        description="Which waiting requests run as a batch. `learned`: as many as make a request"
        " cheapest, of padded requests those of like sizes, by what the op's batches have cost so"
        " far, see [Batches](batches.md#learned-batches). `fifo`: the oldest, as many as may."
        " `batch_size` is the limit of both. Without the key: `learned`, or with"
        " `auto_batching_timeout` `fifo`.",
    )
    batch_rows: bool = Field(
        default=False,
        description="Count a batch in rows, axis 0 of its arrays (with a lod: sequences), not in"
        " requests. For ops with one input and without a `preprocess` method.",
    )
    allow_split_request: bool = Field(
        default=True,
        description="With `batch_rows`, split a request of more than `batch_size` rows into"
        " pieces, which any workers run, and join their results; false runs it whole, alone.",
    )
    rows: RowAxes = Field(
        default=None,
        description="The row axis of each input and output of the op's model, such as `{x: 0,"
        " threshold: none, y: 0}`; or `first`: axis 0 of all of them. An input without a row axis"
        " has one value for a batch. Tensors that are not named are found by the model's signature"
        " or by running it, see [Batches](batches.md).",
    )
    shared_outputs: Names = Field(
        default=(),
        description="Outputs without a row axis that are equal whatever the rows are, such as"
        " class names: each request of a batch gets the whole output.",
    )
    verify_batches: Literal["auto", "strict", "off"] = Field(
        default="auto",
        description="Before the start, run the op's model on small inputs, one by one and in"
        " batches. If the answers differ, `auto` runs the op's requests one at a time, with a"
        " warning, and `strict` fails the start. `off` does not run it: what `rows` and the"
        " model's signature leave open is then assumed to be on the first axes.",
    )
    verify_seconds: Seconds = Field(
        default=PROBE_SECONDS, description="The most seconds that `verify_batches` takes."
    )
    examples: Names = Field(
        default=(),
        description="Files with inputs for `verify_batches`, if generated ones do not fit: a"
        " `.npz` file for each request, with an array for each input.",
    )
    enable_overrun: bool = Field(
        default=False,
        description="With `batch_rows`, let a batch that is not full take the next request whole,"
        " even beyond `batch_size` rows; requests are then not split.",
    )
    auto_batching_timeout_ms: OffFloat = Field(
        default=None,
        alias="auto_batching_timeout",
        description="Milliseconds for which the first request waits for its batch to fill while a"
        " worker is idle; with 0 or less an idle worker takes the waiting requests at once.",
    )
    client_type: Literal["brpc", "grpc", "local_predictor", "pipeline_grpc"] | None = Field(
        default=None,
        description="What `process` calls. `local_predictor`: the model of `local_service_conf`."
        " `grpc`, the default with `server_endpoints`: a model server, over the Open Inference"
        " Protocol. `brpc`: a model server, over the protocol of Paddle Serving's model server."
        " `pipeline_grpc`: another pipeline.",
    )
    server_endpoints: EndpointList | None = Field(
        default=None,
        description="List of `host:port` of the servers that `process` calls in turn. Takes"
        " precedence over `local_service_conf`.",
    )
    server_token: Text | None = Field(
        default=None,
        description="The place of a key or token that is sent to `server_endpoints` by gRPC: a"
        " file, which is read again when it changes, or `env:NAME`, a variable. It is never"
        " logged. Without `server_ca_file` it can be read on the network.",
    )
    server_ca_file: Text | None = Field(
        default=None,
        description="PEM file of the authorities of the certificates of `server_endpoints`: calls"
        " by gRPC use TLS. The host of each endpoint must be a name in its certificate. New"
        " connections use a changed file.",
    )
    server_cert_file: Text | None = Field(
        default=None,
        description="PEM file of the client certificate that is shown to `server_endpoints`; needs"
        " `server_ca_file`. New connections use a changed file.",
    )
    server_key_file: Text | None = Field(
        default=None,
        description="PEM file of its private key, without a passphrase; by default"
        " `server_cert_file` contains both.",
    )
    model_name: Text | None = Field(
        default=None,
        description="Name of the model at `server_endpoints`; with `pipeline_grpc` the name of the"
        " service. By default a model's name is the op's name, or the server's only model; a"
        " pipeline is called without a name.",
    )
    client_config: Text | None = Field(
        default=None,
        description="Aliases of the remote model: `serving_client_conf.prototxt`, or its folder.",
    )
    fetch_list: Names | None = Field(
        default=None,
        description="Outputs to fetch; without the key, or with an empty list, all. That of"
        " `local_service_conf` takes precedence.",
    )
    use_encryption_model: bool = Field(
        default=False,
        description="The op's Paddle model is encrypted; `encryption_key` has its key. With"
        " `server_endpoints` the first endpoint gets the key, and returns the model's port.",
    )
    encryption_key: Text | None = Field(
        default=None,
        description="The place of the key for `use_encryption_model`: a file, which may be a pipe"
        " such as `/dev/fd/3`, or `env:NAME`, a variable with the key in base64. It is read"
        " once, at the start, and never logged.",
    )
    executor: ExecutorName | None = Field(
        default=None,
        description="Where the op runs: `inline`, on the event loop (for very short work), in a"
        " `thread`, in a `process`, in workers that a cluster of [Ray](many-machines.md) places"
        " (`ray`), in `external` workers that connect to `socket`, or in an executor of another"
        " package. By default `dag.is_thread_op` decides; coroutines run on"
        " the event loop.",
    )
    seats: Count | None = Field(
        default=None,
        description="For a class with `join` and `step`: the number of requests that each of its"
        " workers runs at once, see [Seats](seats.md).",
    )
    socket: Text | None = Field(
        default=None,
        description="Path of the Unix socket to which the workers of an op with `executor:"
        " external` connect; only the service's own user may.",
    )
    socket_format: Literal["json", "msgpack"] = Field(
        default="json", description="Encoding of the bodies on `socket`, in both directions."
    )
    memory_limit_mib: Count | None = Field(
        default=None,
        description="Limit of resident memory in MiB, for ops in processes: a worker above it"
        " after a batch is replaced, one worker at a time; a worker above one and a half times the"
        " limit is killed at once, with its batch. Memory shared with the service counts as well.",
    )
    max_batches: Count | None = Field(
        default=None,
        description="Batches after which a worker process is replaced, one worker at a time; an"
        " op with one worker waits for the new one.",
    )
    isolate_errors: bool = Field(
        default=True,
        description="When `process` fails for a batch, run its halves again until only the"
        " requests that cause the error fail; false gives every request of the batch the error.",
    )
    retry_on_crash: bool = Field(
        default=False,
        description="When a worker process dies, run the requests of its batch once more, one by"
        " one, within their deadlines; false answers all of them with error 9000. For ops that may"
        " run twice for one request.",
    )
    cpu_affinity: CpuSets | None = Field(
        default=None,
        description='CPUs on which the op\'s worker processes run, such as "0-1,3". A list has an'
        " entry for each worker, in turn. By default all CPUs of the service.",
    )
    local_service_conf: LocalServiceConfig = Field(
        default=LocalServiceConfig(), description="The model of this op."
    )
    versions: ModelVersion | None = Field(
        default=None,
        description="The op's model is a folder, or the URL of one in a store, with a folder for"
        " each version, such as `rec/1` and `rec/2`. `latest` runs the newest one, and changes to"
        " a newer one while the service runs, as `model_control_mode` says (by default `poll`); a"
        " number runs that version. Such an op runs in a process by default. See"
        " [living-models.md](living-models.md#one-op-of-a-service).",
    )
    pad: PadConfig = Field(
        default=PadConfig(), description="Requests of different sizes in one batch."
    )
    ray: RayConfig = Field(
        default=RayConfig(), description="What a worker needs, with `executor: ray`."
    )

    _forced: frozenset[str] = PrivateAttr(frozenset())

    @property
    def timeout(self) -> float | None:
        """Limit of one call of ``process`` in seconds."""
        return None if self.timeout_ms is None else self.timeout_ms / 1000

    @property
    def window(self) -> float | None:
        """Seconds that the first sample waits for its batch to fill."""
        ms = self.auto_batching_timeout_ms
        return None if ms is None else ms / 1000

    @property
    def cpus(self) -> tuple[frozenset[int], ...]:
        """``cpu_affinity``, one set for each worker, in turn; empty without the key."""
        sets = self.cpu_affinity or ()
        return tuple(map(parse_cpus, (sets,) if isinstance(sets, str) else sets))

    @property
    def forced(self) -> frozenset[str]:
        """Keys, dotted below this op, that a flag set: they take precedence even over the op's
        constructor.
        """
        return self._forced

    def forcing(self, keys: frozenset[str]) -> OpConfig:
        """A copy that records that ``keys`` were set by flags."""
        copy = self.model_copy()
        copy._forced = keys
        return copy
