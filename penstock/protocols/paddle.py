"""The Paddle pipeline protocol: requests and replies, independent of the encoding.

``paddle_message`` and ``paddle_json`` turn bytes into a ``Call`` and a ``Reply`` into bytes. Here a
call becomes a feed dict, and an op's result becomes a reply. Calls and replies are light records
with the fields of ``pb.Request`` and ``pb.Response``: to build those costs several times more, and
most requests never need them. Nothing a caller sends is ever evaluated.

Source: ``docs/compatibility.md``. Pure; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from sys import getsizeof
from typing import Any

import numpy as np

from penstock.errors import InputMismatch, PackageError, RequestError
from penstock.protocols import tensors
from penstock.protocols.array_text import format_value, text_width
from penstock.protocols.pb import Request, Tensor
from penstock.protocols.status import CustomExceptionCode
from penstock.protocols.tensors import WireTensor
from penstock.request import Feed
from penstock.tensor import LOD_SUFFIX

PROFILE_KEY = "pipeline.profile"
"""The name of a pair that is no input."""
_ASKS = (PROFILE_KEY, "1")
MAX_MEMBERS = 10_000
"""How many pairs or tensors one request may have."""
MAX_CLIENT_IP = 64
"""Characters of ``clientip`` that are kept: it is only logged, and callers may claim anything."""

_AT_ONCE = 4096
"""Numbers that are written in a few milliseconds."""
_MAX_NAME = 256
_NUMBERED = "iuf"
"""Kinds of dtypes that most tensors have: one of them that no tensor can carry is a mistake."""


class TakesLong(Exception):
    """A request takes longer to decode than others should wait for."""


class Call:
    """One decoded request; its attributes are those of ``pb.Request``.

    Attributes:
        tensors: typed inputs as they came, not yet checked.
        name: the service that is meant; empty means any.
        method: never looked at by default.
        logid: the caller's trace id (int64).
        clientip: the caller's address as it claims it, at most 64 characters.
        nbytes: the size of the encoded request.
        feed: what it feeds the graph, if that was made along with it: for whoever answers the call
            to take, and to edit.
        problem: why no feed could be made, if that was tried.
    """

    __slots__ = (
        *("_key", "_value", "clientip", "feed", "logid"),
        *("method", "name", "nbytes", "problem", "tensors"),
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
        """Whether it carried tensors, so that its reply carries them too."""
        return bool(self.tensors)

    def decoded_bytes(self) -> int:
        """Bytes that its texts and the numbers of its tensors take in memory."""
        texts = sum(map(getsizeof, chain(self.key, self.value)))
        return texts + sum(tensor.decoded_bytes for tensor in self.tensors)

    def message(self) -> Request:
        """A new ``pb.Request`` with the same fields, for user code that wants the real message."""
        return Request(
            key=self.key,
            value=self.value,
            tensors=[tensor.message() for tensor in self.tensors],
            name=self.name,
            method=self.method,
            logid=self.logid,
            clientip=self.clientip,
        )

    def __repr__(self) -> str:
        return (
            f"<Call {self.name}/{self.method} log_id={self.logid} "
            f"pairs={len(self.key)} tensors={len(self.tensors)} bytes={self.nbytes}>"
        )


class OnePair(Call):
    """A call of one pair of texts and nothing else, as most are; its feed is that pair.

    The decoder sets every attribute: that takes half the time of calling ``Call``, and the lists
    are hardly ever asked for.
    """

    __slots__ = ()

    __init__ = object.__init__
    feed: Feed
    problem = None
    tensors = ()

    @property
    def key(self) -> list[str]:
        """The pair's name, as long as the feed was not taken."""
        return [*self.feed]

    @property
    def value(self) -> list[str]:
        """The pair's text, as long as the feed was not taken."""
        return [*self.feed.values()]


@dataclass(slots=True)
class Reply:
    """One reply; its attributes are those of ``pb.Response``.

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
    """The feed that a request's pairs and tensors make, and whether it asked for a profile.

    Texts stay texts. A tensor's lod stands beside it as ``<name>.lod``. Of two entries with one
    name the last wins, and a tensor wins over a text.

    Raises:
        PackageError: fewer values than keys, or a tensor that contradicts itself.
        InputMismatch: a tensor's name is empty or over 256 characters.
    """
    if isinstance(request, Call) and request.problem is not None:
        raise request.problem
    key, value = request.key, request.value
    if len(value) < len(key):
        raise PackageError(f"there are {len(key)} keys, but only {len(value)} values")
    feed: Feed
    if len(key) == 1:  # as most have; the general way takes four times as long
        feed = {key[0]: value[0]}
    else:
        feed = dict(zip(key, value))  # noqa: B905 - there may be more values
    if request.tensors:
        _add_tensors(feed, request.tensors)
    if PROFILE_KEY not in feed:
        return feed, False
    asked: Any = feed.pop(PROFILE_KEY)
    return feed, isinstance(asked, str) and asked == "1"


def wants_profile(call: Call) -> bool:
    """Whether a call asks for its profile, beside its inputs."""
    if isinstance(call, OnePair):
        return False
    return any(pair == _ASKS for pair in zip(call.key, call.value, strict=False))


def prepare(call: Call) -> None:
    """Make the feed of a call ahead, in the thread that decoded it."""
    try:
        call.feed, _ = unpack(call)
    except RequestError as error:
        error.__traceback__ = None
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
    """The reply that carries an op's result.

    A result of arrays and of lists of texts is written as numpy's ``repr``. In any other, every
    value must be a text; the first that is not makes the reply an error 7000 that keeps the pairs
    before it.

    Args:
        value: names to values; read, never kept.
        typed: send arrays as tensors. Texts stay pairs, and so do arrays that no tensor carries;
            of those, integers and floats are an error 7000 where there is no text beside them.
        keep_text: of arrays that went into tensors, send the text as well.
        op: whose result it is, for the texts of errors.

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


def takes_long(value: Feed | None) -> bool:
    """Whether it takes long to ``pack`` and encode this: the text of a number takes one or two
    microseconds.
    """
    if type(value) is not dict:  # a user's own kind of dict may do anything
        return False
    size = 0
    for item in value.values():
        if type(item) is np.ndarray:
            size += item.size
        elif type(item) is str:
            size += len(item) >> 6
    return size > _AT_ONCE


def reply_size(value: Feed, *, typed: bool, keep_text: bool) -> int:
    """About how many bytes the reply that carries this takes; more rather than fewer."""
    size = 0
    for item in value.values():
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, np.ndarray):
            wire = item.itemsize if item.dtype.kind == "f" else 10
            size += item.size * (typed * wire + keep_text * (text_width(item.dtype) + 2))
    return size


def replace_surrogates(text: str) -> str:
    """The text with lone surrogates replaced, which no encoding of the wire can carry.

    User code makes such texts, mostly from file names; a reply must go out even so.
    """
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _is_array(item: Any) -> bool:
    return isinstance(item, np.ndarray) or (
        isinstance(item, list) and bool(item) and isinstance(item[0], str)
    )


def _refusal(name: str, item: Any, value: Feed) -> tuple[str, str]:
    """Why ``item`` cannot be sent, and the name of what is wrong with the result.

    Clients know the first sentence. An array that could be sent among arrays is not what is wrong.
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
