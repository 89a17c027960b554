"""Every key of ``config.yml``: type, range, default and description, written once.

The checks, ``docs/configuration.md`` and the JSON Schema all come from these models. They are
strict: a boolean is not an integer, a text is not a number; an integer is accepted as a float.
Times of ops are milliseconds in YAML (fields ending in ``_ms``) and seconds in the properties
beside them.
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

from penstock.batching.rows import FIRST
from penstock.client.endpoints import parse_endpoints
from penstock.errors import ConfigError
from penstock.executors.external_store.rules import parse_address
from penstock.executors.kinds import kind_named
from penstock.executors.probing import PROBE_SECONDS
from penstock.repository.policy import LATEST_WORD as LATEST
from penstock.repository.policy import canonical
from penstock.security.tokens import Algorithm

MAX_INT32 = (1 << 31) - 1
"""Upper bound of counts and milliseconds: what the original's 32-bit fields could hold."""
MAX_WORKERS = 1024
"""Most workers of one op, and most threads of one run of a model. Each is a thread or a call in
flight; the default of ``max_requests`` admits no more requests, and a larger number is a typo or
overloads the machine."""
MAX_CPU = 8191
"""Highest number of a CPU: Linux can be built for 8192."""
MAX_SECONDS = 31_536_000.0
"""Upper bound of every time in seconds: a year, a guess that prevents overflows of timers."""


_HOST_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*|(?=.*:.*:)[0-9A-Fa-f:.]+")
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])"
    r"(?::(\*|[0-9]{1,5}))?"
)
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CPUS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def _port(value: int) -> int:
    if value != 0 and not 1024 <= value <= 65535:
        raise ValueError("must be 0 (any free port) or between 1024 and 65535")
    return value


def _host(value: str) -> str:
    if value.startswith("[") and value.endswith("]"):
        raise ValueError(f"must be an address without brackets, such as {value[1:-1] or '::1'}")
    return value


def _token(value: str) -> str:
    if not re.fullmatch("[!-~]{16,}", value):
        raise ValueError("must be at least 16 characters of ASCII without spaces")
    return value


def _unless_positive_off(value: Any) -> Any:
    return value if value is not None and value > 0 else None


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else _listed(value)


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


def _url_segment(value: str) -> str:
    if not value or "/" in value or not value.isprintable():
        raise ValueError("must be text without '/' and control characters: it is part of the URL")
    return value


def _host_name(value: str) -> str:
    if value != "*" and not _HOST_NAME.fullmatch(value):
        raise ValueError("must be a host without a port, such as example.org or *.example.org")
    return value


def _website(value: str) -> str:
    origin = value.lower()
    found = _ORIGIN.fullmatch(origin)
    if found is None and origin not in ("*", "null"):
        raise ValueError(
            "must be an origin, a scheme and a host without a path, such as https://app.example,"
            " https://*.app.example or http://localhost:*; or null; or * for every website"
        )
    # Browsers leave out the default port.
    default = found and {"http": "80", "https": "443"}.get(found[1])
    return origin.removesuffix(f":{default}") if found and found[2] == default else origin


def _method(value: str) -> str:
    if not value.isascii() or not value.isalpha() or not value.isupper():
        raise ValueError("must be a method of HTTP in upper case, such as POST")
    return value


def _field_name(value: str) -> str:
    if not _FIELD_NAME.fullmatch(value):
        raise ValueError("must be the name of a header field, such as Authorization; or * for all")
    return value


def _executor(value: str) -> str:
    try:
        return kind_named(value).name
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _ray_address(value: str) -> str:
    if value.startswith("ray://"):
        raise ValueError(
            "must be auto or host:port: the service's machine is a node of the cluster, and does"
            " not use Ray's client (ray://)"
        )
    host, _, port = value.rpartition(":")
    if value != "auto" and not (host and port.isascii() and port.isdecimal()):
        raise ValueError("must be auto, or host:port of the cluster's head")
    return value


def _store_url(value: str) -> str:
    parse_address(value)
    return value


def _importable(value: str) -> str:
    module, _, name = value.partition(":")
    if not all(part.isidentifier() for part in module.split(".")) or not name.isidentifier():
        raise ValueError("must name a module and what to call in it, such as package.module:Class")
    return value


def _model_version(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("must be latest, or the number of a version")
    text = str(value).strip()
    version = canonical(text)
    if text != LATEST and version is None:
        raise ValueError("must be latest, or the number of a version")
    return version or text


def _entry_point(value: str) -> str:
    file, _, name = value.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise ValueError("must name a file and what it defines, such as service.py:OcrService")
    return value


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
HostNames: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_host_name)], ...], BeforeValidator(_listed)
]
Websites: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_website)], ...], BeforeValidator(_listed)
]
Methods: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_method)], ...], BeforeValidator(_listed)
]
FieldNames: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_field_name)], ...], BeforeValidator(_listed)
]
Names: TypeAlias = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
OneOrMore: TypeAlias = Annotated[tuple[Text, ...], BeforeValidator(_one_or_more)]
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
ModelVersion: TypeAlias = Annotated[
    str,
    BeforeValidator(_model_version),
    WithJsonSchema({"anyOf": [{"const": LATEST}, {"type": "integer"}]}),
]


Token: TypeAlias = Annotated[str, AfterValidator(_token)]
"""A secret that an ``Authorization: Bearer`` field can hold."""


BLANK = object()
"""The value of a blank key that must not be blank; the schema refuses it."""


class Section(BaseModel):
    """A mapping of ``config.yml``. A blank key means its default, except those in
    ``never_blank``. Messages do not repeat the values of ``secret`` keys.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
    never_blank: ClassVar[frozenset[str]] = frozenset()
    secret: ClassVar[frozenset[str]] = frozenset()

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
        description="Seconds between two reports of the tracer, with the times of each op, the"
        " rate and latency of requests, and queue lengths; below 1 is off. See tracing.md. Needs"
        " `penstock-paddle`.",
    )


class ExternalStoreConfig(Section):
    """``dag.external_store_options``: how the external store is used."""

    never_blank = frozenset({"password", "ca_file", "cert_file", "key_file"})

    min_bytes: Count = Field(
        default=1 << 20, description="Size from which on an array, or bytes, goes to the store."
    )
    timeout: Seconds = Field(
        default=5.0,
        description="Seconds within which the store must answer a command, which carries at most"
        " 64 MiB.",
    )
    password: Text | None = Field(
        default=None,
        description="Where the password is, if it is not in the URL: a file, or `env:NAME`. Without"
        " spaces.",
    )
    ca_file: Text | None = Field(
        default=None,
        description="PEM file of the authorities of the store's certificate (`rediss`); by default"
        " those of the system.",
    )
    cert_file: Text | None = Field(
        default=None, description="PEM file of our certificate, if the store asks for one."
    )
    key_file: Text | None = Field(
        default=None, description="PEM file of its key, if `cert_file` does not contain it."
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
    external_store: Annotated[str, AfterValidator(_store_url)] | None = Field(
        default=None,
        repr=False,
        description="A Redis or Valkey, `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, or"
        " `rediss` with TLS, for large values between ops on other machines; see"
        " [many-machines.md](many-machines.md#large-values-between-ops).",
    )
    external_store_options: ExternalStoreConfig = Field(
        default=ExternalStoreConfig(), description="How the external store is used."
    )


class TlsConfig(Section):
    """``door.tls``: certificates. Both ports use TLS if it is set."""

    never_blank = frozenset({"certificate", "key", "client_ca"})

    certificate: Text | None = Field(
        default=None,
        description="PEM file of the server's certificate and its chain.",
    )
    key: Text | None = Field(
        default=None,
        description="PEM file of the private key; by default the certificate's file contains both.",
    )
    client_ca: Text | None = Field(
        default=None,
        description="PEM file of the authorities of client certificates. A client may send one;"
        " an invalid one ends the handshake. `security.certificates` says who they are.",
    )


class JwtConfig(Section):
    """``security.jwt``: JSON Web Tokens of one issuer."""

    issuer: Text = Field(description="The claim `iss` of its tokens.")
    audience: Names = Field(
        min_length=1, description="The claim `aud` must contain one of these: names of the service."
    )
    keys: Text = Field(
        description="The issuer's public keys, a JSON Web Key Set: a URL (`https`; `http` only on"
        " this machine), or a file. Read again every `refresh` seconds, and when a token names an"
        " unknown key, at most every 30 seconds.",
    )
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "ES256"),
        min_length=1,
        strict=False,
        description="Algorithms of signatures that are accepted; only those with a public key.",
    )
    leeway: Pause = Field(default=30.0, description="Seconds by which clocks may differ.")
    refresh: Seconds = Field(default=300.0, description="Seconds after which keys are read again.")
    name: Text = Field(default="sub", description="The claim with the caller's name.")


class SecurityConfig(Section):
    """``security``: who may call. A key that would admit more callers if it were blank may not."""

    never_blank = frozenset({"keys", "keys_env", "jwt", "certificates", "scopes"})

    keys: Text | None = Field(
        default=None,
        description="File of API keys: their names, digests and scopes, as `penstock key` prints"
        " them. Read again when it changes.",
    )
    keys_env: Text | None = Field(
        default=None, description="Name of an environment variable with the same lines."
    )
    jwt: JwtConfig | None = Field(default=None, description="JSON Web Tokens.")
    certificates: dict[str, Names] = Field(
        default={},
        description="Client certificates (`door.tls.client_ca`): scopes by a name in the"
        " certificate; `*` for all other certificates of that authority.",
    )
    scopes: dict[str, Text] = Field(
        default={},
        description="The scope that a route, gRPC method or graph needs, by its path as the route"
        " has it, or its name.",
    )
    admin_scope: Text = Field(
        default="admin",
        description="The scope that status, metrics, live page, traces and detailed health need.",
    )
    open: Names = Field(
        default=(),
        description="Paths of routes that need no key, as the routes have them. Probes need none.",
    )
    failures_per_minute: Count = Field(
        default=60, description="Failed attempts of one address; further ones get 429."
    )

    @property
    def enabled(self) -> bool:
        """Whether callers must say who they are."""
        return bool(self.keys or self.keys_env or self.jwt or self.certificates)


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


class CorsConfig(Section):
    """``cors``: pages of other websites in browsers."""

    origins: Websites = Field(
        default=(),
        description="Origins whose pages may call the service over HTTP and read its answers:"
        " `https://app.example`, `https://*.app.example` for the hosts below it,"
        " `http://localhost:*` for any port, `null` for files and sandboxed pages, or `*` for every"
        " website. Pages for operators, such as `/ui` and `/status`, remain closed to them.",
    )
    methods: Methods = Field(
        default=(), description="Methods that pages may call. By default those of each route."
    )
    headers: FieldNames = Field(
        default=("*",),
        description="Header fields that pages may send; `*` is all, `Authorization` included.",
    )
    exposed_headers: FieldNames = Field(
        default=(
            "Retry-After",
            "WWW-Authenticate",
            "RateLimit",
            "RateLimit-Policy",
            "ETag",
            "Location",
            "Content-Disposition",
            "Inference-Header-Content-Length",
        ),
        description="Header fields of answers that pages may read, besides those that browsers"
        " always show, such as `Content-Type`; `*` is all.",
    )
    credentials: bool = Field(
        default=False,
        description="Whether pages may send cookies and client certificates. Tokens in"
        " `Authorization`, which a page adds itself, do not need it.",
    )
    max_age: Annotated[int, Field(ge=0, le=86_400)] = Field(
        default=600,
        description="Seconds for which a browser may remember what a page may send.",
    )


Level: TypeAlias = Annotated[int, Field(ge=1, le=16)]


def _level_name(name: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]?", name):
        raise ValueError('must be a priority, such as "2"')
    return name


class QueuePolicyConfig(Section):
    """``queue.levels.<priority>``: how long requests of one priority may wait."""

    timeout: Seconds | None = Field(
        default=None,
        description="Seconds that a request may wait in the queue of each op. A request of the Open"
        " Inference Protocol can ask for less by its parameter `timeout`, which then does not limit"
        " the whole request.",
    )
    timeout_action: Literal["reject", "delay"] = Field(
        default="reject",
        description="What happens then: `reject` answers it as busy; with `delay` it goes behind"
        " all others of its priority that are not late.",
    )


class QueueConfig(QueuePolicyConfig):
    """``queue``: how long requests may wait in the queues of ops."""

    levels: dict[Annotated[str, AfterValidator(_level_name)], QueuePolicyConfig] = Field(
        default={},
        description='Other values of these keys, by priority, in quotes: `"1"` is the highest.',
    )

    @property
    def is_set(self) -> bool:
        """Whether anything is limited, or a caller's limit counts."""
        return bool(self.model_fields_set)

    def of(self, priority: int) -> QueuePolicyConfig:
        """The policy of one priority: its own keys, and the general ones for the others."""
        own = self.levels.get(str(priority))
        if own is None:
            return self
        others = QueuePolicyConfig.model_fields.keys() - own.model_fields_set
        return own.model_copy(update={key: getattr(self, key) for key in others})


class PriorityConfig(Section):
    """``priority``: which requests go first."""

    levels: Level = Field(
        default=1, description="The number of priorities: 1 is the highest, this one the lowest."
    )
    default: Level | None = Field(
        default=None,
        description="Priority of requests for which no key below has one. By default the lowest.",
    )
    ageing: Seconds = Field(
        default=5.0,
        description="Seconds by which each priority goes behind the one above it: a request is"
        " overtaken only by those of higher priorities that arrive less than this time after it,"
        " for each step between them.",
    )
    callers: dict[str, Level] = Field(
        default={},
        description="Priorities by the name of the caller, with `jwt:` or `certificate:`"
        " before that of a token or certificate; see security.md.",
    )
    scopes: dict[str, Level] = Field(
        default={},
        description="Priorities by a scope of the caller; the highest of all its scopes counts.",
    )
    routes: dict[str, Level] = Field(
        default={},
        description="Priorities by a route's path as the route has it, by a gRPC method, or by the"
        " name of a graph. Those of callers take precedence.",
    )
    header: bool = Field(
        default=False,
        description="Whether a request may name its priority in the header field"
        " `Penstock-Priority`, or in the metadata of that name over gRPC. If callers or scopes"
        " are listed, it can only lower the priority.",
    )


def _quota_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise ValueError("must be a name of letters, digits, dots, dashes and underscores")
    return name


class QuotaConfig(Section):
    """``quotas.<name>``: what each caller may do."""

    rate: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        default=None,
        description="Requests a second of each caller; further ones get HTTP 429 with"
        " `Retry-After`, and gRPC RESOURCE_EXHAUSTED.",
    )
    burst: Count | None = Field(
        default=None,
        description="Requests that a caller may send at once after a pause. By default those of a"
        " second, and at least one.",
    )
    concurrency: Count | None = Field(
        default=None, description="Open requests of each caller; further ones get the same answers."
    )
    callers: Names = Field(
        default=(),
        description="Names of the callers to which it applies, with `jwt:` or `certificate:` before"
        " those of tokens and certificates. By default all.",
    )
    scopes: Names = Field(
        default=(),
        description="Scopes of the callers to which it applies, besides `callers`. By default all.",
    )
    routes: Names = Field(
        default=(),
        description="Paths of routes as the routes have them, gRPC methods, and names of graphs, to"
        " which it applies; a graph's own path stands for the graph by every protocol."
        " By default all but probes and pages for operators.",
    )


def _model_name(name: str) -> str:
    if not name:
        raise ValueError('must be the name of a model, or "*" for all others')
    return name


def _shares(value: object) -> object:
    if isinstance(value, list) and not all(type(each) is int for each in value):
        raise ValueError("must be whole numbers of percent, such as [5, 25, 50]")
    return _listed(value)


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
    sticky: Annotated[str, AfterValidator(_field_name)] | None = Field(
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
        " the number of CPUs, which worker processes of an op share; at least 1.",
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
Dimensions: TypeAlias = Annotated[tuple[Dimension, ...], BeforeValidator(_listed)]
_SIZES_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
        {"type": "null"},
    ]
}


class RayConfig(Section):
    """``op.<name>.ray``: the cluster that places the op's workers, and what each of them needs."""

    address: Annotated[str, AfterValidator(_ray_address)] | None = Field(
        default=None,
        description="The cluster: `auto`, the one of which this machine is a node, or `host:port`"
        " of its head. Without the key: a cluster of this machine alone, which starts and ends with"
        " the service.",
    )
    namespace: Text | None = Field(
        default=None,
        description="Namespace of the service in the cluster. Without the key: one of its own.",
    )
    num_cpus: Annotated[float, Field(ge=0, le=MAX_INT32)] = Field(
        default=1.0, description="CPUs that a worker takes from its node's."
    )
    num_gpus: Annotated[float, Field(ge=0, le=MAX_INT32)] = Field(
        default=0.0,
        description="GPUs of a worker, maybe a part of one; Ray shows it only these"
        " (`CUDA_VISIBLE_DEVICES`).",
    )
    resources: dict[str, Annotated[float, Field(gt=0, le=MAX_INT32)]] = Field(
        default={},
        description="Further resources of a worker, by their names in the cluster, such as `{tpu:"
        ' 1}`; `{"node:192.0.2.7": 0.001}` places it on that node.',
    )
    placement: Literal["default", "spread"] = Field(
        default="default",
        description="`spread` distributes the workers over the nodes; `default` fills a node by"
        " half first.",
    )
    runtime_env: dict[str, Any] = Field(
        default={},
        description="Ray's environment of the workers, such as `{working_dir: ., env_vars: {A:"
        " b}}`. Without `working_dir` each node must have the program and its models"
        " in the same folder as this machine.",
    )


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
    quotas: dict[Annotated[str, AfterValidator(_quota_name)], QuotaConfig] = Field(
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
