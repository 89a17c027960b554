"""The Paddle pipeline protocol: requests and replies, independent of the encoding.

``paddle_message`` and ``paddle_json`` decode bytes to a ``Call`` and encode a ``Reply``. This
module converts a call to a feed dict, and an op's result to a reply. Calls and replies have the
fields of ``pb.Request`` and ``pb.Response``, whose creation costs several times more and is rarely
needed. Nothing that a caller sends is ever evaluated.

Source: ``docs/compatibility.md``. Pure; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from sys import getsizeof
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message

from penstock.errors import InputMismatch, PackageError, RequestError
from penstock.protocols import tensors
from penstock.protocols.array_text import format_value, text_width
from penstock.protocols.pb import Request, Tensor
from penstock.protocols.status import CustomExceptionCode
from penstock.protocols.tensors import WireTensor
from penstock.request import Feed
from penstock.tensor import LOD_SUFFIX

PROFILE_KEY = "pipeline.profile"
"""The name of the pair that requests a profile."""
_ASKS = (PROFILE_KEY, "1")
MAX_MEMBERS = 10_000
"""Maximum pairs or tensors of one request."""
MAX_CLIENT_IP = 64
"""Maximum characters of ``clientip``: it is only logged, and callers can send anything."""

_MAX_NAME = 256
_NUMBERED = "iuf"
"""Kinds of numeric dtypes; an array of one that tensors do not support is an error."""


OwnFields: TypeAlias = Callable[[str], Container[str]]
"""The names of the fields that the service of this name has added to ``Request``."""


def no_fields(name: str, /) -> Container[str]:
    """``OwnFields`` of services that add none."""
    return ()


class TakesLong(Exception):
    """Decoding the request would block other requests for too long."""


class Call:
    """One decoded request, with the attributes of ``pb.Request``.

    Attributes:
        tensors: received tensors, not validated.
        name: the service's name; empty means any.
        method: unused by default.
        logid: the caller's trace id (int64).
        clientip: the caller's address as sent, at most 64 characters.
        nbytes: the size of the encoded request.
        own: the encoded fields that its service has added to ``Request``; in JSON a dict.
        feed: the feed of the graph, if it was made during decoding; the handler of the call may
            take and change it.
        problem: the error of making a feed, if that failed.
    """

    __slots__ = (
        *("_key", "_value", "clientip", "feed", "logid"),
        *("method", "name", "nbytes", "own", "problem", "tensors"),
    )

    def __init__(
        self,
        key: list[str],
        value: list[str],
        tensors: Sequence[WireTensor],
        name: str = "",
        method: str = "",
        logid: int = 0,
        clientip: str = "",
        nbytes: int = 0,
    ) -> None:
        self._key = key
        self._value = value
        self.tensors = tensors
        self.name = name
        self.method = method
        self.logid = logid
        self.clientip = clientip
        self.nbytes = nbytes
        self.own: bytes | dict[str, Any] = b""
        self.feed: Feed | None = None
        self.problem: RequestError | None = None

    @property
    def key(self) -> list[str]:
        """Names, paired by index with ``value``."""
        return self._key

    @property
    def value(self) -> list[str]:
        """Texts."""
        return self._value

    @property
    def typed(self) -> bool:
        """Whether it has tensors; its reply then has tensors too."""
        return bool(self.tensors)

    def decoded_bytes(self) -> int:
        """Memory of its texts and of its tensors' elements, in bytes."""
        texts = sum(map(getsizeof, chain(self.key, self.value)))
        return texts + len(self.own) + sum(tensor.decoded_bytes for tensor in self.tensors)

    def message(self, kind: type[Message] = Request) -> Any:
        """Make a message with the same fields, for user code.

        Args:
            kind: its class: ``pb.Request``, or one with further fields.

        Raises:
            PackageError: a further field is invalid.
        """
        made = Request(
            key=self.key,
            value=self.value,
            tensors=[tensor.message() for tensor in self.tensors],
            name=self.name,
            method=self.method,
            logid=self.logid,
            clientip=self.clientip,
        )
        if kind is Request:
            return made
        try:
            if isinstance(self.own, dict):
                own = kind.FromString(made.SerializeToString())
                return ParseDict(self.own, own, ignore_unknown_fields=True)
            return kind.FromString(made.SerializeToString() + self.own)
        except (DecodeError, ParseError) as error:
            raise PackageError(f"a field of the request is invalid: {error}") from None

    def __repr__(self) -> str:
        return (
            f"<Call {self.name}/{self.method} log_id={self.logid} "
            f"pairs={len(self.key)} tensors={len(self.tensors)} bytes={self.nbytes}>"
        )


class OnePair(Call):
    """A call of one pair of texts only, as most are; its feed is that pair.

    The decoder sets every attribute: that takes half the time of calling ``Call``, and the lists
    are rarely used.
    """

    __slots__ = ()

    __init__ = object.__init__
    feed: Feed
    own = b""
    problem = None
    tensors = ()

    @property
    def key(self) -> list[str]:
        """The pair's name, until the feed is taken."""
        return [*self.feed]

    @property
    def value(self) -> list[str]:
        """The pair's text, until the feed is taken."""
        return [*self.feed.values()]


@dataclass(slots=True)
class Reply:
    """One reply, with the attributes of ``pb.Response``.

    Attributes:
        err_no: 0 or an error number (int32).
        err_msg: empty on success.
        key: names, paired by index with ``value``.
        value: texts.
        tensors: typed results.
    """

    err_no: int = 0
    err_msg: str = ""
    key: list[str] = field(default_factory=list)
    value: list[str] = field(default_factory=list)
    tensors: list[WireTensor] = field(default_factory=list)

    def __repr__(self) -> str:
        return (
            f"<Reply err_no={self.err_no} {self.err_msg!r} "
            f"pairs={len(self.key)} tensors={len(self.tensors)}>"
        )


def unpack(request: Call | Request) -> tuple[Feed, bool]:
    """Convert a request's pairs and tensors to a feed; also return whether it requests a profile.

    Texts stay texts. A tensor's lod is under ``<name>.lod``. Of two entries with one name the last
    wins, and a tensor wins over a text.

    Raises:
        PackageError: there are fewer values than keys, or a tensor is inconsistent.
        InputMismatch: a tensor's name is empty or over 256 characters.
    """
    if isinstance(request, Call) and request.problem is not None:
        raise request.problem
    key, value = request.key, request.value
    if len(value) < len(key):
        raise PackageError(f"there are {len(key)} keys, but only {len(value)} values")
    feed: Feed
    if len(key) == 1:  # the usual case; the general code takes four times as long
        feed = {key[0]: value[0]}
    else:
        feed = dict(zip(key, value))  # noqa: B905 - there may be more values
    if request.tensors:
        _add_tensors(feed, request.tensors)
    if PROFILE_KEY not in feed:
        return feed, False
    flag: Any = feed.pop(PROFILE_KEY)
    return feed, isinstance(flag, str) and flag == "1"


def wants_profile(call: Call) -> bool:
    """Whether a call requests its profile."""
    if isinstance(call, OnePair):
        return False
    return any(pair == _ASKS for pair in zip(call.key, call.value, strict=False))


def prepare(call: Call) -> None:
    """Make the feed of a call in advance, in the thread that decoded it."""
    try:
        call.feed, _ = unpack(call)
    except RequestError as error:
        error.forget_origin()
        call.problem = error


def _add_tensors(feed: Feed, given: Iterable[Tensor | WireTensor]) -> None:
    for tensor in given:
        name = tensor.name
        if not 0 < len(name) <= _MAX_NAME:
            raise InputMismatch(
                f"a tensor's name has 1 to {_MAX_NAME} characters, got one of {len(name)}"
                f"{tensors.unknown_members(tensor)}"
            )
        feed[name], lod = tensors.decode(tensor)
        if lod is not None:
            feed[name + LOD_SUFFIX] = lod


def pack(value: Feed, *, typed: bool, keep_text: bool, op: str = "") -> Reply:
    """Convert an op's result to a reply.

    If all values are arrays or lists of texts, they are formatted by numpy's ``repr``. Otherwise
    every value must be a text; the first other value makes the reply an error 7000, with the pairs
    before it.

    Args:
        value: names to values; only read.
        typed: send arrays as tensors. Texts stay pairs, and so do arrays of unsupported dtypes;
            unsupported integers and floats are an error 7000 if no text is sent.
        keep_text: also send the text of arrays that are sent as tensors.
        op: the op's name, for error texts.

    Raises:
        PackageError: a name is not a text.
    """
    for name, item in value.items():
        if type(name) is not str or type(item) is not str:
            break
    else:
        return Reply(0, "", [*value], [*value.values()])
    for name in value:
        if not isinstance(name, str):
            raise PackageError(f"the names of a result must be texts, got {type(name).__name__}")
    sent: dict[str, WireTensor] = {}
    if typed:
        for name, item in value.items():
            if isinstance(item, np.ndarray) and not _is_lod(name, value):
                try:
                    sent[name] = tensors.encode(name, item, lod=value.get(f"{name}{LOD_SUFFIX}"))
                except TypeError as error:
                    if not keep_text and item.dtype.kind in _NUMBERED:
                        return _not_sendable(Reply(), f"{error}.", name, op)
    reply = Reply(tensors=[*sent.values()])
    as_repr = all(map(_is_array, value.values()))
    for name, item in value.items():
        if not keep_text and _is_sent(name, sent):
            continue
        if as_repr:
            text = format_value(item)
        elif isinstance(item, str):
            text = item
        else:
            reply.tensors = []
            return _not_sendable(reply, *_refusal(name, item, value), op)
        reply.key.append(name)
        reply.value.append(text)
    return reply


def join(pieces: Sequence[Feed]) -> Feed:
    """Join the results that are the pieces of an answer: under each name the list of its values;
    numbers, and arrays of one dtype and shape, become an array with a first axis of pieces.

    Raises:
        InputMismatch: the pieces differ in their names, or in dtype or shape of their arrays.
    """
    first = pieces[0] if pieces else {}
    for each in pieces:
        if each.keys() != first.keys():
            raise InputMismatch(
                f"the pieces of the answer have different names, {[*first]} and {[*each]}:"
                f" {_ONE_BY_ONE}"
            )
    return {name: _joined(name, [each[name] for each in pieces]) for name in first}


_ONE_BY_ONE = "ask for them one by one"


def _joined(name: str, values: list[Any]) -> Any:
    if all(isinstance(each, bool | int | float | np.number | np.bool_) for each in values):
        return np.array(values)
    if not any(isinstance(each, np.ndarray) for each in values):
        return values
    kinds = {str((each.dtype, each.shape)) for each in map(np.asarray, values)}
    if len(kinds) > 1:
        raise InputMismatch(f"the pieces of {name!r} are not one array: {_ONE_BY_ONE}")
    return np.stack(values)


def reply_size(value: Feed, *, typed: bool, keep_text: bool) -> int:
    """Estimate the bytes of the reply with this result; rather too many than too few."""
    size = 0
    for item in value.values():
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, np.ndarray):
            wire = item.itemsize if item.dtype.kind == "f" else 10
            size += item.size * (typed * wire + keep_text * (text_width(item.dtype) + 2))
    return size


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded.

    User code makes such texts, mostly from file names; a reply must be sent nevertheless.
    """
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _is_array(item: Any) -> bool:
    return isinstance(item, np.ndarray) or (
        isinstance(item, list) and bool(item) and isinstance(item[0], str)
    )


def _refusal(name: str, item: Any, value: Feed) -> tuple[str, str]:
    """Return the error text for ``item``, and the name of the faulty value.

    Clients know the first sentence. If ``item`` is an array that could be sent with other arrays,
    another value is at fault.
    """
    text = f"@DAGExecutor fetch var type must be str({type(item)})."
    if _is_array(item):
        for other_name, other in value.items():
            if not (isinstance(other, str) or _is_array(other)):
                odd = f"{other_name!r} is neither a text nor an array: {type(other)}."
                return f"{text} {odd}", other_name
    return text, name


def _not_sendable(reply: Reply, text: str, name: str, op: str) -> Reply:
    reply.err_no = CustomExceptionCode.TYPE_ERROR.value
    reply.err_msg = text
    if op:
        reply.err_msg += f" The output {name!r} of op {op!r} cannot be sent."
    return reply


def _is_lod(name: str, among: Feed) -> bool:
    base = name.removesuffix(LOD_SUFFIX)
    return base != name and isinstance(among.get(base), np.ndarray)


def _is_sent(name: str, sent: dict[str, WireTensor]) -> bool:
    base = name.removesuffix(LOD_SUFFIX)
    return name in sent or (base != name and base in sent and bool(sent[base].lod.size))
