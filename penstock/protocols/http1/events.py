"""The events of a connection, about its current request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.protocols.heads import RequestHead


@dataclass(slots=True)
class Http1Head:
    """The head of a request.

    Attributes:
        head: the head.
        ended: the request has no body, and no ``Http1Data`` follows.
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
    """The client broke the protocol or a limit: answer with this status, then close.

    Attributes:
        status: the status of the answer.
        text: the reason; may be sent to the client.
        answered: an answer to this request has begun: close without another answer.
        abuse: the kind of abuse, if the status does not determine it.
    """

    status: int
    text: str
    answered: bool
    abuse: str = ""


Event: TypeAlias = Http1Head | Http1Data | Http1Failed
