"""Decodes bodies and messages: on the loop, or in a thread if that may take long."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar

from penstock.api.body import SMALL
from penstock.api.call import Call
from penstock.api.threads import run_aside
from penstock.engine.engine import Engine
from penstock.errors import RequestError

Decoded = TypeVar("Decoded")


def decode_body(
    call: Call,
    size: int,
    decode: Callable[[], Decoded],
    submit: Callable[[Decoded, float | None], None],
    failed: Callable[[Any, RequestError], None],
    *,
    engine: Engine,
    aside: bool,
) -> None:
    """Decode a body or a message, and submit its request.

    Args:
        call: its call.
        size: its bytes. Beyond ``SMALL`` the decoded form is counted as well.
        decode: returns the request.
        submit: called with the request, and the rest of the caller's timeout.
        failed: answers undecodable bodies.
        engine: gets the request.
        aside: decode in a thread.
    """
    if aside:
        call.aside(_decode_aside(call, size, decode, submit, failed, engine))
        return
    try:
        if size > SMALL:
            call.exchange.decode(size)
        found = decode()
    except RequestError as error:
        call.count_refusal(error)
        failed(call, error)
    else:
        submit(found, call.timeout)


async def _decode_aside(
    call: Call,
    size: int,
    decode: Callable[[], Decoded],
    submit: Callable[[Decoded, float | None], None],
    failed: Callable[[Any, RequestError], None],
    engine: Engine,
) -> None:
    begun = monotonic()
    with engine.arriving():
        try:
            call.exchange.decode(size)
            found = await run_aside(call.shared.threads, decode)
        except RequestError as error:
            call.count_refusal(error)
            failed(call, error)
        else:
            submit(found, what_is_left(call.timeout, begun))


def what_is_left(timeout: float | None, begun: float) -> float | None:
    """The rest of a caller's timeout, in seconds, after decoding."""
    return None if timeout is None else max(0.0, timeout - (monotonic() - begun))
