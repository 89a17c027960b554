"""Which values go to the external store, under which keys, in which chunks, and for how long. Pure.

A key belongs to one op's run of one request; its values are fields of it, so that one deletion, or
one expiry, removes all of them.

    penstock:<service>:<data id>:<op>:<nonce>     fields <number of the value>.<number of the chunk>
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from penstock.graph.dag import Plan

CHUNK_BYTES: Final = 64 << 20
"""Most bytes of one field: a command with more would hold up other users of the store."""
MARGIN: Final = 30.0
"""Seconds that a key outlives its request's deadline, if nobody deletes it: clocks of machines, and
the last command, take time."""
PAUSE: Final = 5.0
"""Seconds after a failure for which values are sent directly, without asking the store: each
attempt may take its time limit."""
SCHEMES: Final = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
"""Schemes of our own, and whether they use TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a store is.

    Attributes:
        scheme: selects the kind of store.
        host: its name or address.
        port: None: that of the kind.
        user: None: that of the kind.
        password: None for none, or one that is kept elsewhere.
        path: without the leading slash; for Redis the number of the database.
    """

    scheme: str
    host: str
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str = ""

    def __str__(self) -> str:
        """The address for messages, without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path and f'/{self.path}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """The external store of a service.

    Attributes:
        service: the first part of its keys.
        address: where it is.
        password: the place of the password, see ``token_at``; None: that of the address, if any.
        min_bytes: the size from which on a value goes to the store.
        timeout: seconds for one command.
        ca_file: authorities of its certificate; None: those of the system.
        cert_file: our certificate for it; None: none.
        key_file: the key of that; None: it is in ``cert_file``.
        secret: the place of the secret that this service and others share, which it calls or which
            call it, see ``token_at``; None: no others use the store with it.
    """

    service: str
    address: Address
    password: str | None = None
    min_bytes: int = 1 << 20
    timeout: float = 5.0
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    secret: str | None = None


def parse_address(url: str) -> Address:
    """Read the URL of a store.

    Raises:
        ValueError: it is none; the text does not contain it, since it may have a password.
    """
    form = "must be a URL such as redis://store.example:6379/0"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(form) from None
    if not parts.scheme or not parts.hostname:
        raise ValueError(form)
    if parts.query or parts.fragment:
        raise ValueError(f"{form}, without a query: the options of the store are keys")
    path = parts.path.removeprefix("/")
    if parts.scheme in SCHEMES and path and not (path.isascii() and path.isdecimal()):
        raise ValueError(f"{form}: what follows the host is the number of a database")
    return Address(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port,
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        path=path,
    )


def key_of(service: str, data_id: int, op: str, nonce: str) -> str:
    """The key of one op's run of one request.

    Args:
        service: the service's name.
        data_id: the request's id, which is unique in its engine only.
        op: the op's label.
        nonce: makes it unique, and cannot be guessed.
    """
    return f"penstock:{quote(service, safe='')}:{data_id}:{quote(op, safe='')}:{nonce}"


def chunks_of(number: int, nbytes: int) -> Iterator[tuple[str, int, int]]:
    """The fields of a value: name, first byte, and end of each."""
    for index, start in enumerate(range(0, nbytes, CHUNK_BYTES)):
        yield f"{number}.{index}", start, min(start + CHUNK_BYTES, nbytes)


def seconds_to_live(deadline: float, now: float) -> float:
    """How long a key lives from now on; both are monotonic seconds."""
    return max(0.0, deadline - now) + MARGIN


def kept_away(
    plan: Plan, makers: Collection[int], readers: Collection[int] | None = None
) -> frozenset[int]:
    """The ops whose outputs may go to the store: those that only ops elsewhere read.

    A value that this machine needs, or that it has, goes over the connection to its worker: the way
    through the store would be longer.

    Args:
        plan: the graph.
        makers: the ops whose outputs are made elsewhere, where the store is used.
        readers: the ops whose inputs are read elsewhere, where the store is used; None: the same.
    """
    everywhere = {*(makers if readers is None else readers)}
    return frozenset(
        op
        for op in {*makers}
        if op != plan.last
        and not plan.jump_to[op]
        and plan.consumers[op]
        and everywhere.issuperset(plan.consumers[op])
    )


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with ``change`` applied to everything in it that is no dict, list or tuple.

    Containers in which nothing changes are the same objects afterwards; none is modified.
    """
    kind = type(value)
    if kind is dict:
        items = {key: changed(each, change) for key, each in value.items()}
        return items if any(items[key] is not value[key] for key in items) else value
    if kind is list or kind is tuple:
        parts = [changed(each, change) for each in value]
        if all(one is other for one, other in zip(parts, value, strict=True)):
            return value
        return parts if kind is list else tuple(parts)
    return change(value)
