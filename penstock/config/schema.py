"""Every key of ``config.yml``: its type, range, default and one sentence of meaning, written once.

The checks, ``docs/configuration.md`` and the JSON Schema all come from these models. They are
strict: a boolean is no integer, a text is no number; an integer may stand for a float. Times of ops
are milliseconds in YAML (fields ending in ``_ms``) and seconds in the properties beside them.
Values that the original spells -1 or 0 for "off" become None here, and nowhere else.

Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import isclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from penstock.client.endpoints import parse_endpoints
from penstock.errors import ConfigError
from penstock.executors.kinds import kind_named

MAX_INT32 = (1 << 31) - 1
"""Upper bound of counts and milliseconds: what the original's 32-bit fields could hold."""
MAX_WORKERS = 1024
"""Most workers of one op, and most threads of one run of a model. Each is a thread or a call under
way; the default of ``max_requests`` lets no more requests in, and a number beyond it is a slip or
starves the machine."""
MAX_CPU = 8191
"""Highest number of a CPU: Linux can be built for 8192."""
MAX_SECONDS = 31_536_000.0
"""Upper bound of every time in seconds: a year, a guess that no timer overflows on."""


_CPUS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def _port(value: int) -> int:
    if value != 0 and not 1024 <= value <= 65535:
        raise ValueError("must be 0 (any free port) or between 1024 and 65535")
    return value


def _host(value: str) -> str:
    if value.startswith("[") and value.endswith("]"):
        raise ValueError(f"must be an address without brackets, such as {value[1:-1] or '::1'}")
    return value


def _unless_positive_off(value: Any) -> Any:
    return value if value is not None and value > 0 else None


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _device_ids(value: str) -> str:
    if value.strip() and not all(
        re.fullmatch(r"[0-9]+", part.strip()) for part in value.split(",")
    ):
        raise ValueError('must be card numbers in quotes, such as "0" or "0,1"; "" is no card')
    return value


def parse_cpus(text: str) -> frozenset[int]:
    """``"0-1,3"`` -> 0, 1 and 3.

    Raises:
        ValueError: it is anything else.
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
            raise ValueError("must be a number of 1 or more, or a list of such")
    if not numbers or numbers != sorted({*numbers}):
        raise ValueError("must be numbers that rise, such as [128, 256, 512]")
    return tuple(value) if isinstance(value, list) else value


def _url_segment(value: str) -> str:
    if not value or "/" in value or not value.isprintable():
        raise ValueError("must be text without '/' and control characters: it is part of the URL")
    return value


def _executor(value: str) -> str:
    try:
        return kind_named(value).name
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _importable(value: str) -> str:
    module, _, name = value.partition(":")
    if not all(part.isidentifier() for part in module.split(".")) or not name.isidentifier():
        raise ValueError("must name a module and what to call in it, such as package.module:Class")
    return value


def _entry_point(value: str) -> str:
    file, _, name = value.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise ValueError("must name a file and what it defines, such as service.py:OcrService")
    return value


_PORT_SCHEMA = {
    "anyOf": [{"const": 0}, {"type": "integer", "minimum": 1024, "maximum": 65535}],
    "type": "integer",
}

Port: TypeAlias = Annotated[int, AfterValidator(_port), WithJsonSchema(_PORT_SCHEMA)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INT32)]
Workers: TypeAlias = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Pause: TypeAlias = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Host: TypeAlias = Annotated[Text, AfterValidator(_host)]
Importables: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_importable)], ...], BeforeValidator(_listed)
]
Names: TypeAlias = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
EndpointList: TypeAlias = Annotated[
    tuple[Annotated[Text, AfterValidator(_endpoint)], ...], BeforeValidator(_listed)
]
OffInt: TypeAlias = Annotated[int | None, Field(le=MAX_INT32), AfterValidator(_unless_positive_off)]
OffFloat: TypeAlias = Annotated[
    float | None, Field(le=float(MAX_INT32)), AfterValidator(_unless_positive_off)
]

OffCount: TypeAlias = Annotated[
    int | None, Field(ge=0, le=MAX_INT32), AfterValidator(_unless_positive_off)
]
Cards: TypeAlias = Annotated[str, AfterValidator(_device_ids)]
CpuSets: TypeAlias = Annotated[str | tuple[str, ...], BeforeValidator(_cpu_sets)]
LogLevel: TypeAlias = Annotated[
    Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_lower)
]
LogFormat: TypeAlias = Annotated[Literal["text", "json"], BeforeValidator(_lower)]
Precision: TypeAlias = Annotated[Literal["fp32", "fp16", "int8", "bf16"], BeforeValidator(_lower)]
UrlSegment: TypeAlias = Annotated[str, AfterValidator(_url_segment)]
ExecutorName: TypeAlias = Annotated[
    str, AfterValidator(_executor), WithJsonSchema({"type": "string"})
]
EntryPoint: TypeAlias = Annotated[str, AfterValidator(_entry_point)]


BLANK = object()
"""What a key is given, and refuses, that may be left out but not blank."""


class Section(BaseModel):
    """A mapping of ``config.yml``. A key left blank is its default, but for ``never_blank``."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
    never_blank: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _blank_is_default(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        has_default = keys_of(cls).keys() - cls.never_blank
        return {
            key: BLANK if value is None and key in cls.never_blank else value
            for key, value in given.items()
            if value is not None or key not in has_default
        }


def keys_of(section: type[Section]) -> dict[str, Any]:
    """Key as written in YAML -> type annotation, in the order of the schema."""
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


class TracerConfig(Section):
    """``dag.tracer``: the periodic report."""

    interval_s: OffInt = Field(
        default=None,
        description="Seconds between two reports of the tracer, with the times of each op, the rate"
        " and latency of requests, and what waits; below 1 is off. See tracing.md.",
    )


class DagConfig(Section):
    """``dag``: what holds for the whole graph."""

    retry: Count = Field(
        default=1,
        description="Attempts of the whole graph for one request, in all;"
        " repeated only after a timeout, within the request's deadline.",
    )
    client_type: Literal["brpc", "grpc"] = Field(
        default="brpc", description="Accepted for old files; no effect. What counts is an op's own."
    )
    use_profile: bool = Field(
        default=False,
        description="Write profile lines of all requests to standard error; see tracing.md.",
    )
    channel_size: OffCount = Field(
        default=None, description="Most samples that wait for one op; 0 sets no limit of its own."
    )
    is_thread_op: bool = Field(
        default=True,
        description="Run ops in threads (true) or in processes of their own (false);"
        " `executor` says it for one op.",
    )
    tracer: TracerConfig = Field(default=TracerConfig(), description="The periodic report.")
    channel_recv_frist_arrive: bool = Field(
        default=False,
        description="An op with several inputs runs on the first that arrives"
        " instead of waiting for all. The spelling is the original's.",
    )
    enable_prometheus: bool = Field(
        default=False,
        description="Serve metrics by the original's names as well; see metrics.md.",
    )
    prometheus_port: Port | None = Field(
        default=None,
        description="A further port, which has the metrics alone, if `enable_prometheus` is true.",
    )


class TlsConfig(Section):
    """``door.tls``: certificates. Both ports speak TLS when it is set."""

    never_blank = frozenset({"certificate", "key"})

    certificate: Text | None = Field(
        default=None,
        description="PEM file of the server's certificate and the chain behind it.",
    )
    key: Text | None = Field(
        default=None,
        description="PEM file of its private key; without it the certificate's file holds both.",
    )


class DoorConfig(Section):
    """``door``: limits of connections, whichever protocol they speak, and TLS."""

    never_blank = frozenset({"unix_socket"})

    tls: TlsConfig = Field(default=TlsConfig(), description="Certificates; without them no TLS.")
    unix_socket: Text | None = Field(
        default=None,
        description="Path of a Unix socket that is served as well, by every protocol."
        " A socket file there that nobody serves any more is replaced; only the service's own user"
        " may connect.",
    )
    body_pace: Count = Field(
        default=64 << 10,
        description="Bytes a second; what arrives of a body makes `body_timeout` longer at this"
        " pace, and what is read of an answer `write_timeout`.",
    )
    http2_idle: Seconds = Field(
        default=300.0,
        description="Seconds a connection of HTTP/2 (gRPC too) without open streams is kept open,"
        " or one of baidu_std without open calls.",
    )
    tls_timeout: Seconds = Field(
        default=10.0, description="Seconds within which a TLS handshake must be over."
    )
    max_unsent: Count = Field(
        default=64 << 20,
        description="Most bytes of answers that wait for one connection's reader; beyond it no"
        " further request of it is begun.",
    )
    busy_poll: Annotated[float, Field(ge=0, le=0.01)] = Field(
        default=0.001,
        description="Seconds that the loop looks for the next request before it sleeps, when none"
        " is open and the last ones came as quickly. It answers them sooner, and takes what is left"
        " of its core from about a thousand requests a second on; 0 turns it off.",
    )
    half_close_probe: bool = Field(
        default=False,
        description="Whether a client of HTTP/1.1 that has closed its half of the connection, while"
        " a request is open, is asked by `100 Continue` if it is still there; the request of one"
        " that has left is then cancelled. Otherwise it is answered as if the client were there.",
    )
    max_request_line: Count = Field(
        default=8 << 10, description="Most bytes of the first line of a request in HTTP/1.1."
    )
    max_header_bytes: Count = Field(
        default=16 << 10,
        description="Most bytes of a request's headers; in HTTP/2 each field counts 32 more.",
    )
    max_header_fields: Count = Field(default=100, description="Most headers of a request.")
    max_header_field: Count = Field(default=8 << 10, description="Most bytes of one header.")
    max_streams: Count = Field(
        default=128, description="Most requests at once on one connection of HTTP/2 or baidu_std."
    )
    stream_window: Annotated[int, Field(ge=65_535, le=MAX_INT32)] = Field(
        default=1 << 20,
        description="Bytes that a client may send ahead on one stream of HTTP/2.",
    )
    connection_window: Annotated[int, Field(ge=65_535, le=MAX_INT32)] = Field(
        default=4 << 20, description="The same for all streams of a connection together."
    )
    resets: Count = Field(
        default=200, description="Streams that a client of HTTP/2 may reset, each second."
    )


MIB = 1 << 20


class LocalServiceConfig(Section):
    """``op.<name>.local_service_conf``: the op's model, in this process."""

    never_blank = frozenset({"model_config", "mkldnn_op_list", "mkldnn_bf16_op_list"})

    path: Text | None = Field(
        default=None,
        alias="model_config",
        description="Folder or file of the model, relative to the working directory."
        " Without it the op has no model and its default `process` is skipped.",
    )
    client_type: Literal["local_predictor", "brpc", "grpc"] | None = Field(
        default=None,
        description="`local_predictor` runs the model in this process and is what holds without"
        " the key. `grpc`, or `brpc`, starts a model server for the op, which calls it; see"
        " [guide.md](guide.md#models-in-other-servers). `thread_num` is then how many requests that"
        " server runs at once.",
    )
    fetch_list: Names | None = Field(
        default=None,
        description="Outputs to fetch, by alias or real name; none or an empty list is all.",
    )
    workdir: str = Field(
        default="", description="Folder of a started model server's files; no effect."
    )
    thread_num: Workers | None = Field(
        default=None,
        description="CPU threads that one run of the model may use. Without the key: 2, but no more"
        " than the CPUs, which worker processes of an op divide among them; at least 1.",
    )
    device_type: Annotated[int, Field(ge=-1, le=6)] = Field(
        default=-1,
        description="-1 is decided by `devices`; 0 CPU; 1 GPU; 2 GPU with TensorRT;"
        " 3 ARM CPU, 4 Kunlun XPU, 5 Ascend 310 and 6 Ascend 910 are not available.",
    )
    devices: Cards = Field(
        default="",
        description='Card ids in quotes, such as "0" or "0,1"; "" is the CPU.'
        " Workers in threads share one model, on the first of them;"
        " worker processes take turns, and each sees its own card only.",
    )
    mem_optim: bool = Field(default=True, description="Reuse the memory of intermediate values.")
    ir_optim: bool | None = Field(
        default=None,
        description="Optimise the graph of the model; `false` runs it as it is in the file."
        " Without the key the library decides, which optimises it.",
    )
    precision: Precision = Field(
        default="fp32",
        description="Precision of the run, in any case of letters. What the model's library cannot"
        " do is an error; ONNX Runtime runs a model as it is, so that all but `fp32` is. See"
        " [runtimes.md](runtimes.md) for this key and those below.",
    )
    use_calib: bool = Field(
        default=False,
        description="Calibrate for int8 while running, which only TensorRT does.",
    )
    use_mkldnn: bool = Field(
        default=False,
        description="Use oneDNN kernels on the CPU, with Paddle. With other libraries this key, the"
        " three below and `min_subgraph_size` have no effect and are answered with a warning.",
    )
    mkldnn_cache_capacity: Annotated[int, Field(ge=0, le=MAX_INT32)] = Field(
        default=0, description="Shapes kept in the cache of oneDNN; 0 is the library's default."
    )
    mkldnn_op_list: Names | None = Field(
        default=None, description="Kinds of operators that shall use oneDNN."
    )
    mkldnn_bf16_op_list: Names | None = Field(
        default=None, description="Kinds of operators that shall use bf16, with `precision: bf16`."
    )
    min_subgraph_size: Count = Field(default=3, description="Smallest subgraph handed to TensorRT.")

    @property
    def device_ids(self) -> tuple[str, ...]:
        """``devices`` cut at its commas."""
        return tuple(part.strip() for part in self.devices.split(",") if part.strip())


Dimension: TypeAlias = Annotated[
    Any, AfterValidator(_dimension), WithJsonSchema({"type": ["string", "integer"]})
]
Dimensions: TypeAlias = Annotated[tuple[Dimension, ...], BeforeValidator(_listed)]
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
        description="Pad requests of different sizes to a common one, so that they can share a"
        " batch. What is filled in takes part in what the op computes."
        " Without the key: true if another key of `pad` is set.",
    )
    inputs: dict[str, Dimensions] = Field(
        default={},
        description="For each input the names of its axes, the first included, such as"
        " `[batch, 3, height, width]`. An axis with a name may be padded, one with a number not;"
        " axes of one name have one size in a request. Inputs that are not named are not padded."
        " Without the key: the axes that the op's model leaves open, as it names them itself;"
        " without a model all axes of all inputs.",
    )
    outputs: dict[str, Dimensions] = Field(
        default={},
        description="The same of outputs: an axis that has the name of an input's axis is cut back"
        " to the request's own size. Without the key: as the op's model names its axes.",
    )
    values: dict[str, float] = Field(
        default={}, description="What is filled in, for each input; 0 without an entry."
    )
    sizes: Annotated[Any, AfterValidator(_sizes), WithJsonSchema(_SIZES_SCHEMA)] = Field(
        default=None,
        description="Round each size up to a multiple of this number, or to the next of a list of"
        " rising numbers; sizes beyond the last stay as they are.",
    )
    max_elements: Annotated[int, Field(ge=0, le=MAX_INT32)] = Field(
        default=1024,
        description="Requests may share a batch if padding adds at most so many elements to a row"
        " of any of them,",
    )
    min_similarity: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5,
        description="or if a row of each is at least this part of a padded one.",
    )

    @property
    def on(self) -> bool:
        """Whether there is padding."""
        return bool(self.model_fields_set) if self.enabled is None else self.enabled


class OpConfig(Section):
    """``op.<name>``: one op. An op without an entry has every default and no model."""

    never_blank = frozenset({"server_endpoints", "client_config", "fetch_list"})

    concurrency: Workers = Field(default=1, description="Workers of this op.")
    timeout_ms: OffInt = Field(
        default=None,
        alias="timeout",
        description="Milliseconds one call of `process` may take; 0 or less is no limit.",
    )
    on_timeout: Literal["abandon", "kill"] = Field(
        default="abandon",
        description="What becomes of a call beyond `timeout`, whose callers are answered at once:"
        " it is left to return (`abandon`), or its worker is ended, with its stack in the log,"
        " and replaced (`kill`), which only ops in processes can do.",
    )
    retry: Count = Field(
        default=1, description="Attempts of `process` in all; repeated after a timeout."
    )
    batch_size: Count = Field(
        default=1,
        description="Most requests joined into one batch; with `batch_rows`: most rows.",
    )
    batch_rows: bool = Field(
        default=False,
        description="Count a batch in rows, axis 0 of its arrays (with a lod: sequences), not in"
        " requests. For ops without a `preprocess` of their own that have one input.",
    )
    allow_split_request: bool = Field(
        default=True,
        description="With `batch_rows`, run a request of more than `batch_size` rows in pieces, in"
        " any workers, and put their results together; false runs it whole, alone.",
    )
    enable_overrun: bool = Field(
        default=False,
        description="With `batch_rows`, let a batch that is not full take the next request whole,"
        " even beyond `batch_size` rows; requests are not split then.",
    )
    auto_batching_timeout_ms: OffFloat = Field(
        default=None,
        alias="auto_batching_timeout",
        description="Milliseconds the first request of a batch waits for company while a worker is"
        " free; 0 or less is not at all: a batch is what is waiting already.",
    )
    client_type: Literal["brpc", "grpc", "local_predictor", "pipeline_grpc"] | None = Field(
        default=None,
        description="What `process` calls. `local_predictor` is the model of `local_service_conf`;"
        " `grpc`, which holds with `server_endpoints` if the key is left out, is a model server,"
        " called by the Open Inference Protocol; so is `brpc`. `pipeline_grpc` is another"
        " pipeline.",
    )
    server_endpoints: EndpointList | None = Field(
        default=None,
        description="`host:port` list of the servers that `process` calls; they take turns."
        " Comes before `local_service_conf`.",
    )
    model_name: Text | None = Field(
        default=None,
        description="Name of the model at `server_endpoints`; of the service with `pipeline_grpc`."
        " Without it a model is called by the op's name, or is the server's only one; a pipeline by"
        " none.",
    )
    client_config: Text | None = Field(
        default=None,
        description="Aliases of the remote model: `serving_client_conf.prototxt`, or its folder.",
    )
    fetch_list: Names | None = Field(
        default=None,
        description="Outputs to fetch; none or an empty list is all."
        " That of `local_service_conf` comes first.",
    )
    use_encryption_model: bool = Field(
        default=False, description="The remote server holds an encrypted model. Not available."
    )
    encryption_key: Text | None = Field(
        default=None, description="File of the key for `use_encryption_model`."
    )
    executor: ExecutorName | None = Field(
        default=None,
        description="Where the op runs: `inline`, on the event loop (for very short work),"
        " in a `thread`, in a `process`, in `external` workers that connect to `socket`, or by a"
        " kind that a package has added."
        " Without the key `dag.is_thread_op` decides; coroutines run on the loop.",
    )
    socket: Text | None = Field(
        default=None,
        description="Path of the Unix socket that workers of an op with `executor: external`"
        " connect to; only this user may.",
    )
    socket_format: Literal["json", "msgpack"] = Field(
        default="json", description="How bodies on `socket` are written, both ways."
    )
    memory_limit_mib: Count | None = Field(
        default=None,
        description="MiB of resident memory, for ops in processes: a worker that has more after a"
        " batch is replaced, one after the other; one that has half as much again is ended at once,"
        " with its batch. What workers share with the service counts as well.",
    )
    max_batches: Count | None = Field(
        default=None,
        description="Batches after which a worker process is replaced, one after the other; an op"
        " with one worker waits for the new one.",
    )
    isolate_errors: bool = Field(
        default=True,
        description="When `process` fails for a batch, run its halves again until only the"
        " culprit has the error; false gives every sample of the batch the error.",
    )
    retry_on_crash: bool = Field(
        default=False,
        description="When a worker process dies, run the requests of its batch once more, one by"
        " one, within their deadlines; false gives all of them the error 9000. For ops that may"
        " run twice for one request.",
    )
    cpu_affinity: CpuSets | None = Field(
        default=None,
        description='CPUs that the op\'s worker processes run on, such as "0-1,3". In a list each'
        " worker has an entry, in turn. Without the key they may use all that the service may.",
    )
    local_service_conf: LocalServiceConfig = Field(
        default=LocalServiceConfig(), description="The model of this op."
    )
    pad: PadConfig = Field(
        default=PadConfig(), description="Requests of different sizes in one batch."
    )

    _forced: frozenset[str] = PrivateAttr(frozenset())

    @property
    def timeout(self) -> float | None:
        """Seconds one call of ``process`` may take."""
        return None if self.timeout_ms is None else self.timeout_ms / 1000

    @property
    def window(self) -> float | None:
        """Seconds the first sample of a batch waits for company."""
        ms = self.auto_batching_timeout_ms
        return None if ms is None else ms / 1000

    @property
    def cpus(self) -> tuple[frozenset[int], ...]:
        """``cpu_affinity``, one set for each worker, in turn; empty without the key."""
        sets = self.cpu_affinity or ()
        return tuple(map(parse_cpus, (sets,) if isinstance(sets, str) else sets))

    @property
    def forced(self) -> frozenset[str]:
        """Keys, dotted below this op, that a flag set: they outrank even the op's constructor."""
        return self._forced

    def forcing(self, keys: frozenset[str]) -> OpConfig:
        """The same entry, remembering that ``keys`` were set by flags."""
        copy = self.model_copy()
        copy._forced = keys
        return copy


def _entry_name(name: str) -> str:
    if not name.isprintable():
        raise ValueError("has characters that cannot be shown: choose another")
    return name


def _entries(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: {} if entry is None else entry for name, entry in value.items()}


Entries: TypeAlias = Annotated[
    dict[Annotated[str, AfterValidator(_entry_name)], OpConfig], BeforeValidator(_entries)
]


class ServiceConfig(Section):
    """The top of the file: the service itself."""

    never_blank = frozenset({"rpc_port", "http_port", "grpc_gateway_port"})

    rpc_port: Port | None = Field(
        default=None,
        description="gRPC port; 0 takes any free one."
        " Without it: the next free port after `http_port`.",
    )
    http_port: Port | None = Field(
        default=None, description="HTTP port; 0 takes any free one. Without it there is no HTTP."
    )
    host: Host = Field(
        default="127.0.0.1",
        description="Address to listen on. 0.0.0.0 lets other machines reach the service.",
    )
    service: EntryPoint | None = Field(
        default=None, description="What `penstock run config.yml` runs: `file.py:Class`."
    )
    name: UrlSegment | None = Field(
        default=None, description="Name of the service, the first part of its URLs."
    )
    worker_num: Count | None = Field(
        default=None,
        description="Most requests inside the graph at once; others wait."
        " Without it only `max_requests` limits them."
        " With `build_dag_each_worker`: the number of engines, at most 1024, without it one.",
    )
    build_dag_each_worker: bool = Field(
        default=False,
        description="Run `worker_num` engines, processes with a graph and models each,"
        " on the same ports. `max_inflight_bytes` is divided among them;"
        " other limits hold for each.",
    )
    grpc_gateway_port: int | None = Field(
        default=None, description="Accepted for old files; no effect."
    )
    deadline: Seconds = Field(
        default=60.0,
        description="Seconds within which a request is answered, if its caller sets no less."
        " A caller who asks for more gets this.",
    )
    max_deadline: Seconds = Field(
        default=600.0,
        description="Most seconds that any request is given, whatever its caller asks."
        " A `deadline` that is set may not be above it; the default of `deadline` gives way.",
    )
    max_message_bytes: Annotated[int, Field(ge=1, le=MAX_INT32)] = Field(
        default=64 * MIB,
        description="Largest request on either port, after decompression.",
    )
    max_inflight_bytes: Annotated[int, Field(ge=1, le=(1 << 63) - 1)] | None = Field(
        default=None,
        description="Most bytes held for all requests at once."
        " Without it: 2 GiB or a quarter of the memory, whichever is less.",
    )
    max_requests: Count = Field(
        default=1024,
        description="Most requests admitted at once; further ones are refused as busy.",
    )
    max_calls: Count | None = Field(
        default=None,
        description="Most requests open at once on all connections, those included whose body has"
        " not arrived; further ones fail with HTTP 503 or gRPC RESOURCE_EXHAUSTED."
        " Without it: four times `max_requests`.",
    )
    max_connections: Count | None = Field(
        default=None,
        description="Most open connections."
        " Without it: 1024, or the descriptor limit less 128 and 22 for each worker process,"
        " whichever is less.",
    )
    start_timeout: Pause = Field(
        default=600.0,
        description="Seconds within which a worker process must be ready: its model open, and its"
        " `init_op` run. One that is not is ended, and the start of the service fails. Of an op"
        " without processes, each of the two may take so long. 0 lets it take for ever; the log"
        " tells of it from 30 s on.",
    )
    hang_limit: Pause = Field(
        default=60.0,
        description="Seconds that a call in a process of its own may go on after nobody waits for"
        " it any more; then its worker hangs, and is ended and replaced. So is one that does not"
        " begin a batch within this time, 1 s at least and 5 at most. 0 lets calls go on for ever.",
    )
    crash_dir: Text | None = Field(
        default=None,
        description="Folder for a report of each worker process that dies, readable for the"
        " service's own user alone; at most 100 of them. Without it the log has the gist.",
    )
    log_level: LogLevel = Field(
        default="info",
        description="Least level of the lines that are logged to standard error, unless the script"
        " configures logging itself.",
    )
    log_format: LogFormat = Field(
        default="text",
        description="`text` for people, with tracebacks on several lines; `json` for programs, one"
        " object on one line for each event.",
    )
    log_dir: Text | None = Field(
        default=None,
        description="Folder in which `PipelineServingLogs` is made, with the three log files of the"
        " original, in its formats: `pipeline.log`, `pipeline.log.wf` and `pipeline.tracer`. The"
        " variable `SERVING_LOG_PATH` says the same. Without it nothing is written to files.",
    )
    missing_device: Literal["error", "cpu"] = Field(
        default="error",
        description="What becomes of an op whose `devices` or `device_type` name a card, or other"
        " hardware, that is not there: the service does not start (`error`), or the op runs on the"
        " CPU and the log says so (`cpu`). With `cpu`, a `precision` or `use_calib` that the op's"
        " library cannot obey there gives way to fp32 as well.",
    )
    strict_status: bool = Field(
        default=False,
        description="On the Paddle routes, answer a busy service with HTTP 429 and gRPC"
        " RESOURCE_EXHAUSTED instead of only `err_no`.",
    )
    drain_delay: Pause = Field(
        default=0.0,
        description="Seconds a stopping service still accepts requests while not ready.",
    )
    drain_timeout: Pause = Field(
        default=30.0,
        description="Seconds within which a stopping service ends;"
        " admitted requests may finish until shortly before.",
    )
    header_timeout: Seconds = Field(
        default=10.0, description="Seconds within which the headers of a request must arrive."
    )
    body_timeout: Seconds = Field(
        default=30.0, description="Seconds within which the body of a request must arrive."
    )
    write_timeout: Seconds = Field(
        default=30.0,
        description="Seconds within which a client must read some of its answer.",
    )
    keep_alive: Seconds = Field(
        default=5.0, description="Seconds an idle HTTP connection is kept open."
    )
    door: DoorConfig = Field(
        default=DoorConfig(), description="Connections of both ports: limits, TLS, Unix socket."
    )
    docs: bool = Field(
        default=True,
        description="Serve a description of all HTTP routes at `/openapi.json`, and a page that"
        " shows it and tries them at `/docs`.",
    )
    log_requests: bool = Field(
        default=False,
        description="Log a line for each request when its answer has been sent, with the times of"
        " its ops.",
    )
    otel: bool = Field(
        default=False,
        description="Export each request as OpenTelemetry spans. Where to, and which requests, say"
        " the variables `OTEL_…` of the environment; see tracing.md. Needs `penstock[otel]`.",
    )
    metrics: bool = Field(
        default=True,
        description="Serve metrics for Prometheus at `/metrics` of the HTTP port, to whoever"
        " reaches it; see metrics.md.",
    )
    instruments: Importables = Field(
        default=(),
        description="What listens to requests, batches, workers and connections: classes of"
        " instruments, or functions that make one, written `package.module:Class`.",
    )
    applications: Importables = Field(
        default=(),
        description="Further protocols: functions that are called with the engine and give an"
        " object with `routes`, written `package.module:function`.",
    )
    dag: DagConfig = Field(default=DagConfig(), description="The whole graph.")
    op: Entries = Field(default={}, description="Op name: its entry.")

    @property
    def engines(self) -> int:
        """Processes with a graph each."""
        return (self.worker_num or 1) if self.build_dag_each_worker else 1

    @property
    def most_running(self) -> int | None:
        """Most requests inside one engine's graph."""
        return None if self.build_dag_each_worker else self.worker_num


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a key's value is, if it is one."""
    return annotation if isclass(annotation) and issubclass(annotation, Section) else None


def entries_of(annotation: Any) -> type[Section] | None:
    """The section that each entry is, when a key's value maps names of the user's to sections."""
    return section_of(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def section_at(path: Sequence[str | int]) -> type[Section] | None:
    """The section whose keys stand below this path, if there is one."""
    section: type[Section] | None = ServiceConfig
    entries: type[Section] | None = None
    for key in path:
        if entries is not None:
            section, entries = entries, None
        elif section is not None:
            annotation = keys_of(section).get(str(key))
            section, entries = section_of(annotation), entries_of(annotation)
    return section


ENVIRONMENT: dict[str, str] = {
    f"PENSTOCK_{key.upper()}": key
    for key, annotation in keys_of(ServiceConfig).items()
    if section_of(annotation) is None and entries_of(annotation) is None
}
"""Environment variable -> the top-level key it sets."""
