"""HTTP/1.1, the server's side: received bytes to events, answers to bytes. No I/O."""

from penstock.protocols.http1.connection import Http1Connection
from penstock.protocols.http1.events import Event, Http1Data, Http1Failed, Http1Head
from penstock.protocols.http1.head import LineCache
from penstock.protocols.http1.limits import Http1Limits

__all__ = [
    "Event",
    "Http1Connection",
    "Http1Data",
    "Http1Failed",
    "Http1Head",
    "Http1Limits",
    "LineCache",
]
