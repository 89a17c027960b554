"""Every key of ``config.yml``: its type, range, default and one sentence of meaning, written once.

The checks, ``docs/configuration.md`` and the JSON Schema all come from these models. They are
strict: a boolean is no integer, a text is no number; an integer may stand for a float. Times of ops
are milliseconds in YAML (fields ending in ``_ms``) and seconds in the properties beside them.

Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

from inspect import isclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import Field, PrivateAttr

from penstock.config.dag import DagConfig
from penstock.config.door import DoorConfig
from penstock.config.section import Section
from penstock.config.values import (
    MAX_INT32,
    Cards,
    Count,
    CpuSets,
    EntryPoint,
    ExecutorName,
    Host,
    Importables,
    LogFormat,
    LogLevel,
    Names,
    OffFloat,
    OffInt,
    Pause,
    Port,
    Precision,
    Seconds,
    Text,
    UrlSegment,
    Workers,
    parse_cpus,
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
        " the key. `brpc` and `grpc`, which start a model server, are not yet available.",
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
        " Without the key the runtime decides: ONNX Runtime optimises all it can.",
    )
    precision: Precision = Field(
        default="fp32",
        description="Precision of the run, in any case of letters."
        " ONNX Runtime runs a model as it is: anything but `fp32` is an error there.",
    )
    use_calib: bool = Field(
        default=False,
        description="Calibrate for int8 while running (TensorRT). An error with ONNX Runtime.",
    )
    use_mkldnn: bool = Field(
        default=False,
        description="Use oneDNN kernels on the CPU. ONNX Runtime has its own: this key, the three"
        " below and `min_subgraph_size` have no effect there and are answered with a warning.",
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
    batch_size: Count = Field(default=1, description="Most requests joined into one batch.")
    auto_batching_timeout_ms: OffFloat = Field(
        default=None,
        alias="auto_batching_timeout",
        description="Milliseconds the first request of a batch waits for company while a worker is"
        " free; 0 or less is not at all: a batch is what is waiting already.",
    )
    client_type: Literal["brpc", "grpc", "local_predictor", "pipeline_grpc"] | None = Field(
        default=None,
        description="What `process` calls. `local_predictor` is the model of `local_service_conf`;"
        " the others are remote and not yet available.",
    )
    server_endpoints: Names | None = Field(
        default=None, description="`host:port` list of a remote model server. Not yet available."
    )
    client_config: Text | None = Field(
        default=None, description="Client configuration of the remote model: a file or its folder."
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
        " in a `thread`, in a `process`, or by a kind that a package has added."
        " Without the key `dag.is_thread_op` decides; coroutines run on the loop.",
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
    instruments: Importables = Field(
        default=(),
        description="What listens to requests, batches, workers and connections: classes of"
        " instruments, or functions that make one, written `package.module:Class`.",
    )
    dag: DagConfig = Field(default=DagConfig(), description="The whole graph.")
    op: dict[str, OpConfig] = Field(default={}, description="Op name: its entry.")

    @property
    def engines(self) -> int:
        """Processes with a graph each."""
        return (self.worker_num or 1) if self.build_dag_each_worker else 1

    @property
    def most_running(self) -> int | None:
        """Most requests inside one engine's graph."""
        return None if self.build_dag_each_worker else self.worker_num


def keys_of(section: type[Section]) -> dict[str, Any]:
    """Key as written in YAML -> type annotation, in the order of the schema."""
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a key's value is, if it is one."""
    return annotation if isclass(annotation) and issubclass(annotation, Section) else None


def entries_of(annotation: Any) -> type[Section] | None:
    """The section that each entry is, when a key's value maps names of the user's to sections."""
    return section_of(get_args(annotation)[1]) if get_origin(annotation) is dict else None


ENVIRONMENT: dict[str, str] = {
    f"PENSTOCK_{key.upper()}": key
    for key, annotation in keys_of(ServiceConfig).items()
    if section_of(annotation) is None and entries_of(annotation) is None
}
"""Environment variable -> the top-level key it sets."""
