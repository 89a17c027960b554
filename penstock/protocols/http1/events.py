"""The events of a connection, about its current request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.protocols.heads import RequestHead


@dataclass(slots=True)
class Http1Head:
    """A request has begun.

    Attributes:
        head: the request's.
        ended: there is no body, and no ``Http1Data`` follows.
    """

    head: RequestHead
    ended: bool


@dataclass(slots=True)
class Http1Data:
    """A piece of the body; the last one has ``ended``, and may be empty."""

    data: bytes
    ended: bool


@dataclass(slots=True)
class Http1Failed:
    """A rule of the protocol or a limit is broken: answer with this status, then close.

    Attributes:
        status: the answer's.
        text: says what is wrong; may be told to the client.
        answered: an answer to this request has been begun already, so there is none to give: close.
        abuse: what there was too much of, where that is why and the status does not say it.
    """

    status: int
    text: str
    answered: bool
    abuse: str = ""


Event: TypeAlias = Http1Head | Http1Data | Http1Failed
