"""What a connection tells whoever drives it, about the one request that is in turn."""

from __future__ import annotations

from typing import TypeAlias

from penstock.protocols.heads import RequestHead


class Http1Head:
    """A request has begun.

    Attributes:
        head: the request's.
        ended: there is no body, and no ``Http1Data`` follows.
    """

    __slots__ = ("ended", "head")

    def __init__(self, head: RequestHead, ended: bool) -> None:
        self.head = head
        self.ended = ended

    def __repr__(self) -> str:
        return f"Http1Head({self.head!r}, ended={self.ended})"


class Http1Data:
    """A piece of the body; the last one has ``ended``, and may be empty."""

    __slots__ = ("data", "ended")

    def __init__(self, data: bytes, ended: bool) -> None:
        self.data = data
        self.ended = ended

    def __repr__(self) -> str:
        return f"Http1Data({len(self.data)} bytes, ended={self.ended})"


class Http1Failed:
    """A rule of the protocol or a limit is broken: answer with this status, then close.

    Attributes:
        status: the answer's.
        text: says what is wrong; may be told to the client.
        answered: an answer to this request has been begun already, so there is none to give: close.
        abuse: what there was too much of, where that is why and the status does not say it.
    """

    __slots__ = ("abuse", "answered", "status", "text")

    def __init__(self, status: int, text: str, answered: bool, abuse: str = "") -> None:
        self.status = status
        self.text = text
        self.answered = answered
        self.abuse = abuse

    def __repr__(self) -> str:
        return f"Http1Failed({self.status}, {self.text!r}, answered={self.answered})"


Event: TypeAlias = Http1Head | Http1Data | Http1Failed
