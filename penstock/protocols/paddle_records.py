"""A decoded call and a reply: light records with the fields of the wire messages.

Ops see them in place of ``pb.Request`` and ``pb.Response``; building those costs several times
more, and most requests never need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from sys import getsizeof

from penstock.errors import RequestError
from penstock.protocols.pb import Request
from penstock.protocols.tensors import WireTensor
from penstock.request import Feed

PROFILE_KEY = "pipeline.profile"
"""The name of a pair that is no input."""

MAX_MEMBERS = 10_000
"""How many pairs or tensors one request may have."""

MAX_CLIENT_IP = 64
"""Characters of ``clientip`` that are kept: it is only logged, and callers may claim anything."""


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
        feed: what it feeds the graph, where that was made along with it: for whoever answers the
            call to take, and to edit.
        problem: why no feed could be made, where that was tried.
    """

    __slots__ = (
        "_key",
        "_value",
        "clientip",
        "feed",
        "logid",
        "method",
        "name",
        "nbytes",
        "problem",
        "tensors",
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
        """Bytes that its texts take, four for each character of one that has a rare one in it, and
        the numbers of its tensors.
        """
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
    """A call that carries one pair of texts and nothing else, as most do; its feed is that pair.

    Whoever makes one sets every attribute.
    """

    __slots__ = ()

    # There is one for each request: setting its attributes in place takes half the time of a call
    # with all of them, and hardly anybody asks for the lists.
    __init__ = object.__init__
    feed: Feed
    problem = None
    tensors = ()

    @property
    def key(self) -> list[str]:
        """Its name, until somebody takes the feed."""
        return [*self.feed]

    @property
    def value(self) -> list[str]:
        """Its text, until somebody takes the feed."""
        return [*self.feed.values()]


class Reply:
    """One reply; its attributes are those of ``pb.Response``.

    Attributes:
        err_no: 0 or an error number (int32).
        err_msg: empty on success.
        key: names, paired by index with ``value``.
        value: texts.
        tensors: typed results.
    """

    __slots__ = ("err_msg", "err_no", "key", "tensors", "value")

    def __init__(
        self,
        err_no: int = 0,
        err_msg: str = "",
        key: list[str] | None = None,
        value: list[str] | None = None,
        tensors: list[WireTensor] | None = None,
    ) -> None:
        self.err_no = err_no
        self.err_msg = err_msg
        self.key = [] if key is None else key
        self.value = [] if value is None else value
        self.tensors = [] if tensors is None else tensors

    def __repr__(self) -> str:
        return (
            f"<Reply err_no={self.err_no} {self.err_msg!r} "
            f"pairs={len(self.key)} tensors={len(self.tensors)}>"
        )


def mended(text: str) -> str:
    """The text with lone surrogates replaced, which no encoding of the wire can carry.

    User code makes such texts, mostly from file names; a reply must go out even so.
    """
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
