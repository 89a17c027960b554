"""The keys about callers: who may call, from where, how often, and who goes first."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from penstock.config.section import (
    Count,
    FieldName,
    Names,
    Pause,
    Seconds,
    Section,
    Text,
    listed,
)
from penstock.security.tokens import Algorithm

_HOST_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*|(?=.*:.*:)[0-9A-Fa-f:.]+")
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])"
    r"(?::(\*|[0-9]{1,5}))?"
)


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


HostNames: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_host_name)], ...], BeforeValidator(listed)
]
Websites: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_website)], ...], BeforeValidator(listed)
]
Methods: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_method)], ...], BeforeValidator(listed)
]
FieldNames: TypeAlias = Annotated[tuple[FieldName, ...], BeforeValidator(listed)]


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


QuotaName: TypeAlias = Annotated[str, AfterValidator(_quota_name)]


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
