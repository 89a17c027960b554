"""Every key of ``config.yml``: type, range, default and description, written once.

The checks, ``docs/configuration.md`` and the JSON Schema all come from these models: those here,
and those of an op (``op.py``), of callers (``callers.py``) and of machines (``machines.py``).

Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import isclass
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field

from penstock.config.callers import (
    CorsConfig,
    HostNames,
    PriorityConfig,
    QueueConfig,
    QuotaConfig,
    QuotaName,
    SecurityConfig,
    TlsConfig,
)
from penstock.config.machines import ExternalStoreConfig, StoreUrl
from penstock.config.op import OpConfig
from penstock.config.section import (
    MAX_INT32,
    Count,
    EntryPoint,
    FieldName,
    Host,
    Importables,
    LogFormat,
    LogLevel,
    OffCount,
    OffInt,
    OneOrMore,
    Pause,
    Port,
    Seconds,
    Section,
    Text,
    Token,
    UrlSegment,
    keys_of,
    listed,
)


class TracerConfig(Section):
    """``dag.tracer``: the periodic report."""

    interval_s: OffInt = Field(
        default=None,
        description="Seconds between two reports of the tracer, with the times of each op, the"
        " rate and latency of requests, and queue lengths; below 1 is off. See tracing.md. Needs"
        " `penstock-paddle`.",
    )


class DagConfig(Section):
    """``dag``: keys of the whole graph."""

    never_blank = frozenset({"external_store"})
    secret = frozenset({"external_store"})

    retry: Count = Field(
        default=1,
        description="Attempts of the whole graph for one request, in all; repeated only after a"
        " timeout, or when the external store has lost a value, within the request's deadline.",
    )
    client_type: Literal["brpc", "grpc"] = Field(
        default="brpc", description="Accepted for old files; no effect. The key of each op counts."
    )
    use_profile: bool = Field(
        default=False,
        description="Write profile lines for all requests to standard error; see tracing.md. Needs"
        " `penstock-paddle`.",
    )
    channel_size: OffCount = Field(
        default=None,
        description="Maximum length of each op's queue, in samples; 0 is no separate limit.",
    )
    is_thread_op: bool = Field(
        default=True,
        description="Run ops in threads (true) or in processes (false); `executor` overrides it"
        " for one op.",
    )
    tracer: TracerConfig = Field(default=TracerConfig(), description="The periodic report.")
    channel_recv_frist_arrive: bool = Field(
        default=False,
        description="An op with several inputs runs on the first that arrives instead of waiting"
        " for all. The spelling is the original's.",
    )
    enable_prometheus: bool = Field(
        default=False,
        description="Also serve metrics with the original's names; see metrics.md.",
    )
    prometheus_port: Port | None = Field(
        default=None,
        description="A further port that serves the metrics only, if `enable_prometheus` is true.",
    )
    external_store: StoreUrl | None = Field(
        default=None,
        repr=False,
        description="A Redis or Valkey, `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, or"
        " `rediss` with TLS, for large values between ops on other machines; see"
        " [many-machines.md](many-machines.md#large-values-between-ops).",
    )
    external_store_options: ExternalStoreConfig = Field(
        default=ExternalStoreConfig(), description="How the external store is used."
    )


class DoorConfig(Section):
    """``door``: limits of the connections of all protocols, and TLS."""

    never_blank = frozenset({"unix_socket"})

    tls: TlsConfig = Field(
        default=TlsConfig(), description="Certificates; TLS is off without them."
    )
    unix_socket: Text | None = Field(
        default=None,
        description="Path of a Unix socket that also serves every protocol. A stale socket file"
        " there is replaced; only the service's own user may connect.",
    )
    body_pace: Count = Field(
        default=64 << 10,
        description="Bytes a second; `body_timeout` is extended by the received bytes at this"
        " pace, and `write_timeout` by the bytes of an answer that the client reads.",
    )
    http2_idle: Seconds = Field(
        default=300.0,
        description="Seconds for which a connection of HTTP/2 (also gRPC) without open streams,"
        " or of baidu_std without open calls, is kept open.",
    )
    max_connection_age: Seconds | None = Field(
        default=None,
        description="Seconds after which a connection of HTTP/1.1 or HTTP/2 (also gRPC) is ended"
        " between two requests, a tenth more or less, so that clients connect again and new"
        " replicas get requests; open requests finish. Without effect on baidu_std.",
    )
    tls_timeout: Seconds = Field(
        default=10.0, description="Seconds within which a TLS handshake must complete."
    )
    max_unsent: Count = Field(
        default=64 << 20,
        description="Most unsent bytes of answers of one connection; beyond it no further request"
        " of the connection is started.",
    )
    busy_poll: Annotated[float, Field(ge=0, le=0.01)] = Field(
        default=0.001,
        description="Seconds for which the event loop polls for the next request before it"
        " sleeps, if no request is open and the last ones arrived at intervals below this. It"
        " lowers latency, and uses the rest of its core from about a thousand requests a second"
        " on; 0 turns it off.",
    )
    half_close_probe: bool = Field(
        default=True,
        description="Whether an HTTP/1.1 client that closes its half of the connection while a"
        " request is open is probed with `100 Continue`, which HTTP clients ignore; if it has left,"
        " its request is cancelled. With `false` the request is answered as if the client were"
        " still connected.",
    )
    max_request_line: Count = Field(
        default=8 << 10, description="Most bytes of the first line of a request in HTTP/1.1."
    )
    max_header_bytes: Count = Field(
        default=16 << 10,
        description="Most bytes of a request's headers; HTTP/2 adds 32 for each field.",
    )
    max_header_fields: Count = Field(default=100, description="Most header fields of a request.")
    max_header_field: Count = Field(default=8 << 10, description="Most bytes of one header field.")
    max_streams: Count = Field(
        default=128,
        description="Most concurrent requests on one connection of HTTP/2 or baidu_std.",
    )
    stream_window: Annotated[int, Field(ge=65_535, le=MAX_INT32)] = Field(
        default=1 << 20,
        description="Flow-control window of one HTTP/2 stream, in bytes.",
    )
    connection_window: Annotated[int, Field(ge=65_535, le=MAX_INT32)] = Field(
        default=4 << 20, description="Flow-control window of one HTTP/2 connection, in bytes."
    )
    resets: Count = Field(
        default=200, description="Most streams that an HTTP/2 client may reset in a second."
    )


MIB = 1 << 20


def _model_name(name: str) -> str:
    if not name:
        raise ValueError('must be the name of a model, or "*" for all others')
    return name


def _shares(value: object) -> object:
    if isinstance(value, list) and not all(type(each) is int for each in value):
        raise ValueError("must be whole numbers of percent, such as [5, 25, 50]")
    return listed(value)


class ShadowConfig(Section):
    """``rollout.<model>.shadow``: copies of requests for a new version."""

    share: Annotated[int, Field(ge=0, le=100)] = Field(
        default=0,
        description="Percent of the requests to the stable version that the new version runs as"
        " well, after their answers. Nobody gets the answers to these copies; they are compared.",
    )
    requests: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=8,
        description="Most open copies in each engine; further ones are dropped. They take no place"
        " of `max_requests`.",
    )
    compare: Literal["tolerance", "label"] = Field(
        default="tolerance",
        description="When two answers are the same: `tolerance`, all numbers are close;"
        " `label`, the largest number along the last axis is at the same place.",
    )
    relative: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.001,
        description="Numbers are close if they differ by at most this part of the stable version's"
        " number, plus `absolute`.",
    )
    absolute: Annotated[float, Field(ge=0, le=1e30)] = Field(
        default=1e-05, description="See `relative`."
    )


class RolloutConfig(Section):
    """``rollout.<model>``: how a new version of a model gets the requests."""

    steps: Annotated[tuple[int, ...], BeforeValidator(_shares)] = Field(
        default=(),
        description="The new version's share of the requests at each step, in percent, ascending;"
        " 0 is a step with copies only. After the last step it gets all. By default a new version"
        " gets all requests at once.",
    )
    hold: Pause = Field(default=300.0, description="The fewest seconds that a step lasts.")
    samples: Count = Field(
        default=100,
        description="The fewest answers of the new version with which a step goes on, and the"
        " fewest compared answers if `disagreement` is set.",
    )
    error_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.01,
        description="How much larger the new version's part of failed answers may be than that of"
        " the stable one. Inputs that it refuses are failed answers; requests that no version runs,"
        " such as those of unknown callers, do not count.",
    )
    p99_ratio: Annotated[float, Field(ge=1, le=1e6)] = Field(
        default=1.25,
        description="How many times the stable version's p99 the new version's p99 may be.",
    )
    disagreement: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="Which part of the compared answers may differ from those of the stable"
        " version. By default differences are only shown.",
    )
    sticky: FieldName | None = Field(
        default=None,
        description="A header field, also of gRPC metadata, whose value decides which version a"
        " request gets, so that a caller stays in a version; or `log_id`, that of the pipeline"
        " protocol. Requests without it are drawn by chance. Counts also for weights set by an"
        " operator.",
    )
    shadow: ShadowConfig = Field(
        default=ShadowConfig(), description="Copies of requests for the new version."
    )


class UiConfig(Section):
    """``ui``: the live page."""

    never_blank = frozenset({"token"})
    secret = frozenset({"token"})

    enabled: bool = Field(
        default=True,
        description="Serve a page at `/ui` that shows the graphs at work and slow requests;"
        " without a token only to clients on the same machine.",
    )
    token: Token | None = Field(
        default=None,
        description="Clients with this token see the page, from any machine; those on the same"
        " machine need it as well. At least 16 characters of ASCII without spaces.",
    )


def _entry_name(name: str) -> str:
    if not name.isprintable():
        raise ValueError("has unprintable characters: choose another")
    return name


def _entries(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: {} if entry is None else entry for name, entry in value.items()}


Entries: TypeAlias = Annotated[
    dict[Annotated[str, AfterValidator(_entry_name)], OpConfig], BeforeValidator(_entries)
]


class ServiceConfig(Section):
    """The top-level keys: the service itself."""

    never_blank = frozenset(
        {"rpc_port", "http_port", "grpc_gateway_port", "admin_port", "security"}
    )

    rpc_port: Port | None = Field(
        default=None,
        description="gRPC port, which may be `http_port`; 0 is any free port. By default the next"
        " free port after `http_port`; for an App, a Service without a file, and `penstock serve`,"
        " `http_port`.",
    )
    http_port: Port | None = Field(
        default=None,
        description="HTTP port; 0 is any free port. Without the key there is no HTTP port.",
    )
    admin_port: Port | None = Field(
        default=None,
        description="A further port for operators, to which `/ui`, `/status`, `/trace`, `/metrics`"
        " and `/health/deep` move; 0 is any free port. Probes are answered on all ports. By default"
        " these pages are on the HTTP port.",
    )
    admin_host: Host | None = Field(
        default=None,
        description="Address of `admin_port`, such as 127.0.0.1; by default that of `host`.",
    )
    host: Host = Field(
        default="127.0.0.1",
        description="Address to listen on. 0.0.0.0 makes the service reachable from other"
        " machines.",
    )
    allowed_hosts: HostNames = Field(
        default=(),
        description="Names by which callers, and proxies, request the service in HTTP (`Host`),"
        " besides those of this machine: `example.org`, `*.example.org` for the names below it, or"
        " `*` for any. If other machines can reach the service, only these and addresses are"
        " accepted, or any name without the key. Websites of these names may call the service"
        " (`Origin`); see"
        " [deployment.md](deployment.md#other-websites).",
    )
    strict: bool = Field(
        default=False,
        description="Fail the start, instead of warning, if other machines can reach the service"
        " and callers need not say who they are.",
    )
    cors: CorsConfig = Field(
        default=CorsConfig(), description="Pages of other websites in browsers."
    )
    service: EntryPoint | None = Field(
        default=None, description="What `penstock run config.yml` runs: `file.py:Class`."
    )
    name: UrlSegment | None = Field(
        default=None, description="Name of the service, and first part of its URLs."
    )
    model_repository: OneOrMore = Field(
        default=(),
        description="Of `penstock serve`: a folder with models in the layout of Triton, TensorFlow"
        " Serving or Paddle Serving, or the URL of one (`s3://`, `gs://`, `hf://`, `https://`), or"
        " a list of such; see [model-server.md](model-server.md#model-repositories).",
    )
    model_control_mode: Literal["none", "poll", "explicit"] = Field(
        default="none",
        description="When the models of `model_repository` are loaded: `none`, all of them at the"
        " start, and nothing later; `poll`, whenever a repository has another version; `explicit`,"
        " when an operator says so: see [living-models.md](living-models.md).",
    )
    repository_poll_secs: Seconds = Field(
        default=15.0,
        description="With `model_control_mode: poll`, seconds between two looks at a repository; up"
        " to a tenth earlier or later.",
    )
    load_model: OneOrMore = Field(
        default=(),
        description="Needs `model_control_mode: explicit`: the names of models to load at the"
        " start; `*` for all.",
    )
    model_load_thread_count: Count = Field(
        default=4, description="Most models of repositories that are loaded at the same time."
    )
    model_cache: Text | None = Field(
        default=None,
        description="The folder to which the files of models that change are copied, on a disk of"
        " this machine; by default `penstock/models` in `$XDG_CACHE_HOME`, or in `~/.cache`.",
    )
    model_cache_limit_mib: Count | None = Field(
        default=None,
        description="Most mebibytes of `model_cache`; versions that are in use are never removed"
        " from it. By default there is no limit but the disk.",
    )
    swap: Literal["availability", "resource"] = Field(
        default="availability",
        description="How a new version of a model takes the place of the one before:"
        " `availability`, both are open until it serves; `resource`, for a GPU or a memory that has"
        " no room for both, the one before ends first, and requests wait: see"
        " [living-models.md](living-models.md#without-room-for-two).",
    )
    model_public_key: Text | None = Field(
        default=None,
        description="A PEM file with ed25519 public keys, of which one must have signed the"
        " manifest of each version of the repositories; what has no such signature is not served.",
    )
    worker_num: Count | None = Field(
        default=None,
        description="Most requests inside the graph at once; others wait. By default only"
        " `max_requests` limits them. With `build_dag_each_worker`: the number of engines, at most"
        " 1024, by default one.",
    )
    build_dag_each_worker: bool = Field(
        default=False,
        description="Run `worker_num` engines on the same ports, each a process with its own"
        " graph and models. `max_inflight_bytes` is divided among them; other limits apply to"
        " each.",
    )
    supervised: bool = Field(
        default=False,
        description="Run the service in a process of its own, below one that replaces it if it"
        " dies, and reloads its program. Services with several engines, or with ops in processes,"
        " have this process anyhow.",
    )
    grpc_gateway_port: int | None = Field(
        default=None, description="Accepted for old files; no effect."
    )
    deadline: Seconds = Field(
        default=60.0,
        description="Deadline of a request in seconds. Its caller can set an earlier one, not a"
        " later one.",
    )
    max_deadline: Seconds = Field(
        default=600.0,
        description="Upper bound of `deadline` in seconds. A larger `deadline` is an error; the"
        " default of `deadline` is lowered to it.",
    )
    stream_limit: Seconds = Field(
        default=600.0,
        description="Deadline in seconds of an answer in pieces, from its first piece on; until"
        " then `deadline` holds. The caller can only set an earlier one; see streams.md.",
    )
    max_message_bytes: Annotated[int, Field(ge=1, le=MAX_INT32)] = Field(
        default=64 * MIB,
        description="Most bytes of a request on either port, after decompression.",
    )
    max_inflight_bytes: Annotated[int, Field(ge=1, le=(1 << 63) - 1)] | None = Field(
        default=None,
        description="Most bytes in flight for all requests. By default 2 GiB or a quarter of the"
        " memory, whichever is less.",
    )
    max_requests: Count = Field(
        default=1024,
        description="Most requests admitted at once; further ones are refused as busy (3004).",
    )
    max_calls: Count | None = Field(
        default=None,
        description="Most open requests on all connections, including those whose body has not"
        " arrived; further ones fail with HTTP 503 or gRPC RESOURCE_EXHAUSTED. By default four"
        " times `max_requests`.",
    )
    max_connections: Count | None = Field(
        default=None,
        description="Most open connections. By default 1024, or the descriptor limit minus 128"
        " and minus 22 for each worker process, whichever is less.",
    )
    start_timeout: Pause = Field(
        default=600.0,
        description="Seconds within which a worker process must be ready: its model opened, and its"
        " `init_op` finished. Otherwise it is killed, and the start of the service fails. For"
        " an op without processes, the limit applies to each of the two. 0 is no limit; a slow"
        " start is logged after 30 s.",
    )
    hang_limit: Pause = Field(
        default=60.0,
        description="Seconds for which a call in a worker process may run on after all its"
        " requests have ended; then the worker counts as hanging, and is killed and replaced. So"
        " is a worker that does not begin a batch within this time (at least 1 s, at most 5 s). 0"
        " is no limit for calls.",
    )
    crash_dir: Text | None = Field(
        default=None,
        description="Folder for reports of worker processes that died, readable by the service's"
        " own user only; at most 100 files. The log has a summary in any case.",
    )
    log_level: LogLevel = Field(
        default="info",
        description="Lowest level that is logged to standard error, unless the script configures"
        " logging itself.",
    )
    log_format: LogFormat | None = Field(
        default=None,
        description="`text` for people, with tracebacks on several lines; `json` for programs,"
        " with one object on one line for each event, the start lines included. By default `text`"
        " if standard error is a terminal, or the script imports Paddle Serving's names, and else"
        " `json`.",
    )
    log_dir: Text | None = Field(
        default=None,
        description="Folder in which `PipelineServingLogs` is created, with the original's three"
        " log files, in its formats: `pipeline.log`, `pipeline.log.wf` and `pipeline.tracer`. The"
        " variable `SERVING_LOG_PATH` does the same. By default nothing is written to files. Needs"
        " `penstock-paddle`.",
    )
    missing_device: Literal["error", "cpu"] = Field(
        default="error",
        description="What to do with an op whose `devices` or `device_type` name a GPU, or other"
        " hardware, that does not exist: fail the start (`error`), or run the op on the CPU,"
        " with a warning (`cpu`). With `cpu`, a `precision` or `use_calib` that the op's"
        " library does not support there becomes fp32 as well.",
    )
    strict_status: bool = Field(
        default=False,
        description="On the Paddle routes, answer a busy service with HTTP 429 and gRPC"
        " RESOURCE_EXHAUSTED instead of only `err_no`.",
    )
    drain_delay: Pause = Field(
        default=0.0,
        description="Seconds for which a stopping service still accepts requests while it is not"
        " ready.",
    )
    drain_timeout: Pause = Field(
        default=30.0,
        description="Seconds within which a stopping service ends; admitted requests may run until"
        " shortly before.",
    )
    header_timeout: Seconds = Field(
        default=10.0, description="Seconds within which the headers of a request must arrive."
    )
    body_timeout: Seconds = Field(
        default=30.0, description="Seconds within which the body of a request must arrive."
    )
    write_timeout: Seconds = Field(
        default=30.0,
        description="Seconds within which a client must read a part of its answer.",
    )
    keep_alive: Seconds = Field(
        default=5.0, description="Seconds for which an idle HTTP/1.1 connection is kept open."
    )
    door: DoorConfig = Field(
        default=DoorConfig(), description="Connections of both ports: limits, TLS, Unix socket."
    )
    priority: PriorityConfig = Field(
        default=PriorityConfig(), description="Which requests go first; see limits.md."
    )
    queue: QueueConfig = Field(
        default=QueueConfig(),
        description="How long requests may wait in the queues of ops; see limits.md.",
    )
    quotas: dict[QuotaName, QuotaConfig] = Field(
        default={}, description="Name of a quota: what each caller may do; see limits.md."
    )
    rollout: dict[Annotated[str, AfterValidator(_model_name)], RolloutConfig] = Field(
        default={},
        description='Name of a model, or `"*"` for all others: how its new versions get the'
        " requests; see living-models.md.",
    )
    security: SecurityConfig = Field(
        default=SecurityConfig(), description="Who may call; see security.md."
    )
    docs: bool = Field(
        default=True,
        description="Serve the OpenAPI document of all HTTP routes at `/openapi.json`, and a page"
        " that shows and calls them at `/docs`.",
    )
    ui: UiConfig = Field(default=UiConfig(), description="The live page.")
    log_requests: bool = Field(
        default=False,
        description="Log a line for each request when its answer has been sent, with the times of"
        " its ops.",
    )
    otel: bool = Field(
        default=False,
        description="Export requests as OpenTelemetry spans, configured by the environment"
        " variables `OTEL_…`; see tracing.md. Needs `penstock-serving[otel]`.",
    )
    metrics: bool = Field(
        default=True,
        description="Serve Prometheus metrics at `/metrics`, to every client; see metrics.md.",
    )
    instruments: Importables = Field(
        default=(),
        description="Listeners to events of requests, batches, workers and connections: classes of"
        " instruments, or functions that return one, written `package.module:Class`.",
    )
    applications: Importables = Field(
        default=(),
        description="Further protocols: functions that take the engine and return an object with"
        " `routes`, written `package.module:function`.",
    )
    dag: DagConfig = Field(default=DagConfig(), description="The whole graph.")
    op: Entries = Field(default={}, description="Op name: its entry.")

    @property
    def engines(self) -> int:
        """The number of engines."""
        return (self.worker_num or 1) if self.build_dag_each_worker else 1

    @property
    def most_running(self) -> int | None:
        """Most requests inside one engine's graph."""
        return None if self.build_dag_each_worker else self.worker_num


def section_of(annotation: Any) -> type[Section] | None:
    """The section class of a key's value, if any."""
    return annotation if isclass(annotation) and issubclass(annotation, Section) else None


def entries_of(annotation: Any) -> type[Section] | None:
    """The section class of the entries, if a key's value maps user-defined names to sections."""
    return section_of(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def section_at(path: Sequence[str | int]) -> type[Section] | None:
    """The section class at this path, if any."""
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
