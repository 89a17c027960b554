"""Reads ``predictors.prototxt``, the configuration of Paddle Serving's C++ SDK. Pure.

The file is the protobuf text form of the message ``SDKConf``. protobuf parses it, and its errors
name the line, such as of an unknown field. Every field is honoured, or is in ``NO_EFFECT``.

Source: ``docs/compatibility.md`` (SDK); the Protocol Buffers text format specification.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.client.endpoints import Endpoint, parse_endpoints
from penstock.client.names import SCHEME
from penstock.client.routing import STRATEGIES
from penstock.errors import ModelError
from penstock.protocols import text_form
from penstock.protocols.baidu_std import Compression
from penstock.protocols.standard_messages import GENERAL_MODEL

HTTP_PROTOCOLS: Final = {"http:oip": False, "http:oip_binary": True}
"""Values of ``protocol`` for the Open Inference Protocol over HTTP, and whether tensors are raw
bytes, for servers with the extension ``binary_tensor_data``."""

PROTOCOLS: Final = ("pipeline", "oip", *HTTP_PROTOCOLS, "baidu_std", "h2:grpc")
"""Values of ``protocol``: a pipeline service and a model server of the Open Inference Protocol,
both over gRPC; the latter over HTTP; and as of brpc the service ``service_name``, by baidu_std or
gRPC."""

NO_EFFECT: Final = {
    "max_connection_per_host": "the calls to a server share one connection",
    "connection_type": "the calls to a server share one connection",
    "hedge_fetch_retry_count": "a backup request is sent once, within the budget",
    "cluster_filter_strategy": "it had no effect in Paddle Serving either",
    "package_size": "a request is sent as it is",
    "max_channel_per_request": "a request is sent as it is",
    "variant_router": "it had no effect in Paddle Serving either",
}
"""Fields that are read and have no effect, and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantConf:
    """How a variant is called, under the names of Paddle Serving's SDK.

    Attributes:
        connect_timeout_ms: of one attempt to connect.
        rpc_timeout_ms: of a call as a whole, in milliseconds; 0 and less for none.
        connect_retry_count: attempts after the first one; see ``docs/clients.md`` for which calls.
        hedge_request_timeout_ms: milliseconds after which an idempotent call is sent to a second
            replica as well; below 0: never.
        load_balance_strategy: ``la`` or ``least_requests``, ``rr`` or ``round_robin``, ``random``,
            ``two_choices``, and ``sticky`` or one of brpc's ``c_`` names.
        protocol: one of ``PROTOCOLS``.
        compress_type: of requests by baidu_std: 0 none, 1 snappy, 2 gzip, 3 zlib.

    Raises:
        ValueError: a value is out of its range; the text begins with the field's name.
    """

    connect_timeout_ms: int = 2000
    rpc_timeout_ms: int = 20_000
    connect_retry_count: int = 2
    hedge_request_timeout_ms: int = -1
    load_balance_strategy: str = "la"
    protocol: str = "pipeline"
    compress_type: int = 0

    def __post_init__(self) -> None:
        if self.connect_timeout_ms <= 0:
            raise ValueError(f"connect_timeout_ms must be above 0: {self.connect_timeout_ms}")
        if self.connect_retry_count < 0:
            raise ValueError(
                f"connect_retry_count must not be negative: {self.connect_retry_count}"
            )
        if self.load_balance_strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            given = self.load_balance_strategy
            raise ValueError(f"load_balance_strategy is one of {known}: got {given!r}")
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol is one of {', '.join(PROTOCOLS)}: got {self.protocol!r}")
        if self.compress_type not in (*Compression,):
            raise ValueError(f"compress_type is 0 to 4: got {self.compress_type}")
        if self.compress_type and self.protocol != "baidu_std":
            raise ValueError(f"compress_type is for baidu_std, not for {self.protocol}")


class Replica(NamedTuple):
    """A server of a variant.

    Attributes:
        endpoint: its address.
        tags: those behind its address, by name.
        named: each address of its name is a server.
    """

    endpoint: Endpoint
    tags: dict[str, str]
    named: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Divides a variant's replicas by a value in the call.

    Attributes:
        split_tag_name: the name of the value.
        tag_candidates: the values that have replicas here.
    """

    split_tag_name: str
    tag_candidates: tuple[str, ...]


class VariantDescription(NamedTuple):
    """One variant of the file."""

    tag: str
    cluster: list[str]
    weight: int
    conf: VariantConf
    split: Split | None


class PredictorDescription(NamedTuple):
    """One predictor of the file, from a line on: an endpoint."""

    line: int
    name: str
    service_name: str
    variants: list[VariantDescription]


@dataclass(frozen=True, slots=True)
class Predictors:
    """The contents of the file.

    Attributes:
        predictors: in their order.
        warnings: fields without effect whose value is not the default, each with its line.
    """

    predictors: tuple[PredictorDescription, ...]
    warnings: tuple[str, ...] = field(default=())


def parse_replicas(cluster: object) -> list[Replica]:
    """Read ``host:port`` texts, each with tags ``name:value`` behind it if its variant is split, or
    ``dns:///`` before it if it is the name of several servers.

    Raises:
        TypeError: not a list of texts.
        ValueError: it is empty, or an entry is not such a text.
    """
    if not isinstance(cluster, list | tuple) or not all(isinstance(each, str) for each in cluster):
        raise TypeError(f"a cluster is a list of texts host:port, got {cluster!r}")
    found = []
    for text in cluster:
        where, _, tags = text.strip().partition(" ")
        pairs = [each.partition(":") for each in tags.replace(",", " ").split()]
        if not all(name and colon for name, colon, _ in pairs):
            raise ValueError(f"tags of a server are name:value, got {text!r}")
        named = where.startswith(SCHEME)
        (endpoint,) = parse_endpoints([where.removeprefix(SCHEME)])
        if named and pairs:
            raise ValueError(f"a name of several servers has no tags, got {text!r}")
        found.append(Replica(endpoint, {name: value for name, _, value in pairs}, named))
    if not found:
        raise ValueError("a cluster needs at least one host:port")
    return found


class _Refused(ValueError):
    """A value of the file makes no sense.

    Args:
        field: its name.
        problem: what is wrong.
        variant: the index of its variant, if it is of one.
    """

    def __init__(self, field: str, problem: str, variant: int | None = None) -> None:
        super().__init__(problem)
        self.field = field
        self.variant = variant


def parse_predictors(text: str, source: str = "predictors.prototxt") -> Predictors:
    """Read the text of a file.

    Args:
        text: of the file.
        source: its name, for errors.

    Raises:
        ModelError: the text names ``source`` and the line.
    """
    message: Any = _message_class()()
    try:
        text_form.parse(text, message)
    except text_form.PROBLEMS as error:
        raise ModelError(text_form.problem_of(error, source)) from None
    if not message.predictors:
        raise ModelError(f"{source}: has no predictors")
    places = text_form.places_of(text)
    found: list[PredictorDescription] = []
    for number, given in enumerate(message.predictors):
        line = places.fields["predictors"][number].line
        try:
            if given.name in [each.name for each in found]:
                raise _Refused("name", "there is another one of this name")
            found.append(_predictor(given, message.default_variant_conf, line))
        except _Refused as error:
            where = f"{source}:{_line_of(error, places, number)}"
            raise ModelError(f"{where}: predictor {given.name!r}: {error}") from error
    return Predictors(tuple(found), tuple(_without_effect(text, source)))


def _line_of(refused: _Refused, places: text_form.Place, number: int) -> int:
    """The line of a value of the predictor with this number: its own, or of the default for all
    variants; if it is missing, that of its variant or predictor.
    """
    place = places.fields["predictors"][number]
    if refused.variant is None:
        return place.line_of(refused.field) or place.line
    place = place.fields["variants"][refused.variant]
    line = place.line_of(refused.field)
    if line is None and refused.field != "tag":
        for default in places.fields.get("default_variant_conf", ()):
            line = default.line_of(refused.field)
    return line or place.line


def _predictor(given: Any, default: Any, line: int) -> PredictorDescription:
    router = given.endpoint_router
    if router != "WeightedRandomRender":
        raise _Refused(
            "endpoint_router", f"endpoint_router is WeightedRandomRender: got {router!r}"
        )
    if not given.variants:
        raise _Refused("variants", "needs variants")
    weights = _weights(given.weighted_random_render_conf.variant_weight_list, len(given.variants))
    variants: list[VariantDescription] = []
    for at, (each, weight) in enumerate(zip(given.variants, weights, strict=True)):
        merged: Any = _message_class("VariantConf")()
        merged.CopyFrom(default)
        merged.MergeFrom(each)
        if merged.tag in [variant.tag for variant in variants]:
            raise _Refused("tag", f"two variants have the tag {merged.tag!r}", at)
        try:
            variants.append(_variant(merged, weight))
        except _Refused as error:
            raise _Refused(error.field, f"variant {merged.tag!r}: {error}", at) from error
    return PredictorDescription(line, given.name, given.service_name, variants)


def _weights(text: str, count: int) -> list[int]:
    parts = [each.strip() for each in text.split("|")]
    problem = ""
    if not all(each.isascii() and each.isdigit() and len(each) < 10 for each in parts):
        problem = f"is numbers with | between them: got {text!r}"
    elif len(parts) != count:
        problem = f"has {len(parts)} weights for {count} variants"
    elif not any(map(int, parts)):
        problem = f"has no weight above 0: got {text!r}"
    if problem:
        raise _Refused("variant_weight_list", f"variant_weight_list {problem}")
    return [int(each) for each in parts]


def _variant(given: Any, weight: int) -> VariantDescription:
    connection, naming, rpc = given.connection_conf, given.naming_conf, given.rpc_parameter
    if not given.tag:
        raise _Refused("tag", "needs a tag")
    kind, colon, listed = naming.cluster.rpartition("://")
    if colon and kind != "list":
        raise _Refused("cluster", f"cluster is list://host:port,...: got {naming.cluster!r}")
    if not listed.strip():
        raise _Refused("cluster", "needs a cluster: list://host:port,...")
    cluster = [each.strip() for each in listed.split(",") if each.strip()]
    try:
        parse_replicas(cluster)
    except ValueError as error:
        raise _Refused("cluster", str(error)) from error
    try:
        conf = VariantConf(
            connect_timeout_ms=connection.connect_timeout_ms,
            rpc_timeout_ms=connection.rpc_timeout_ms,
            connect_retry_count=connection.connect_retry_count,
            hedge_request_timeout_ms=connection.hedge_request_timeout_ms,
            load_balance_strategy=naming.load_balance_strategy,
            protocol=rpc.protocol,
            compress_type=rpc.compress_type,
        )
    except ValueError as error:
        raise _Refused(str(error).partition(" ")[0], str(error)) from error
    split = None
    if given.split_conf.split_tag_name and given.split_conf.tag_candidates:
        values = tuple(each.strip() for each in given.split_conf.tag_candidates.split(","))
        name = given.split_conf.split_tag_name
        split = Split(split_tag_name=name, tag_candidates=values)
    return VariantDescription(given.tag, cluster, weight, conf, split)


def _without_effect(text: str, source: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        for found in _FIELD.finditer(line.partition("#")[0]):
            name, value = found.groups()
            if name in NO_EFFECT and value.strip("\"'") != _DEFAULTS.get(name, ""):
                yield f"{source}:{number}: {name} has no effect: {NO_EFFECT[name]}"


_FIELD: Final = re.compile(r"(\w+)\s*:\s*(\"[^\"]*\"|'[^']*'|[\w.+-]+)")

_INT: Final = FieldDescriptorProto.TYPE_INT32
_TEXT: Final = FieldDescriptorProto.TYPE_STRING

_SCHEMA: Final[dict[str, list[tuple[str, int | str, str | None]]]] = {
    "ConnectionConf": [
        ("connect_timeout_ms", _INT, "2000"),
        ("rpc_timeout_ms", _INT, "20000"),
        ("connect_retry_count", _INT, "2"),
        ("max_connection_per_host", _INT, "100"),
        ("hedge_request_timeout_ms", _INT, "-1"),
        ("hedge_fetch_retry_count", _INT, "2"),
        ("connection_type", _TEXT, "pooled"),
    ],
    "NamingConf": [
        ("cluster_filter_strategy", _TEXT, "Default"),
        ("load_balance_strategy", _TEXT, "la"),
        ("cluster", _TEXT, None),
    ],
    "RpcParameter": [
        ("compress_type", _INT, "0"),
        ("package_size", _INT, "20"),
        ("protocol", _TEXT, "baidu_std"),
        ("max_channel_per_request", _INT, "3"),
    ],
    "SplitConf": [("split_tag_name", _TEXT, None), ("tag_candidates", _TEXT, None)],
    "VariantConf": [
        ("tag", _TEXT, None),
        ("connection_conf", "ConnectionConf", None),
        ("naming_conf", "NamingConf", None),
        ("rpc_parameter", "RpcParameter", None),
        ("split_conf", "SplitConf", None),
        ("variant_router", _TEXT, None),
    ],
    "WeightedRandomRenderConf": [("variant_weight_list", _TEXT, "50")],
    "Predictor": [
        ("name", _TEXT, "general_model"),
        ("service_name", _TEXT, GENERAL_MODEL),
        ("endpoint_router", _TEXT, "WeightedRandomRender"),
        ("weighted_random_render_conf", "WeightedRandomRenderConf", None),
        ("variants", "VariantConf", None),
    ],
    "SDKConf": [("default_variant_conf", "VariantConf", None), ("predictors", "Predictor", None)],
}
"""Messages: the fields by number from 1, with their types and defaults."""

_REPEATED: Final = ("variants", "predictors")
_DEFAULTS: Final = {
    name: default for fields in _SCHEMA.values() for name, _, default in fields if default
}


@cache
def _message_class(name: str = "SDKConf") -> type[Message]:
    """Make a message in a separate pool: another package may have the original's."""
    return GetMessageClass(_pool().FindMessageTypeByName(f"penstock.{name}"))


@cache
def _pool() -> DescriptorPool:
    file = FileDescriptorProto(name="penstock_sdk.proto", package="penstock", syntax="proto2")
    for message, fields in _SCHEMA.items():
        made = file.message_type.add(name=message)
        for number, (name, kind, default) in enumerate(fields, start=1):
            label = FieldDescriptorProto.LABEL_OPTIONAL
            if name in _REPEATED:
                label = FieldDescriptorProto.LABEL_REPEATED
            added = made.field.add(name=name, number=number, label=label)
            if default is not None:
                added.default_value = default
            if isinstance(kind, str):
                added.type = FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = f".penstock.{kind}"
            else:
                added.type = kind  # type: ignore[assignment]
    pool = DescriptorPool()
    pool.Add(file)
    return pool
