"""All attacks, with what each must be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tests.attacks import floods, slow
from tests.attacks.floods import flood
from tests.attacks.peer import CALM
from tests.attacks.site import MIB, Attack

Run: TypeAlias = Callable[[int, float], Counter[str]]

HASTY: Final = {"header_timeout": 1, "body_timeout": 1, "write_timeout": 1, "max_connections": 900}
NARROW: Final = {**HASTY, "max_inflight_bytes": 96 * MIB, "door": {"max_unsent": 8 * MIB}}
BUDGET: Final = 96 * MIB * 6 // 5 + 64 * MIB
SHED: Final = ("RST_STREAM CANCEL", "RST_STREAM ENHANCE_YOUR_CALM")
ROOMY: Final = {"max_connections": 12_000, "header_timeout": 2, "keep_alive": 2}
SCARCE: Final = ("prlimit", "--nofile=256:256")
CLOSED: Final = ("closed", "cut off")

_FLOODS: Final = (
    ("rapid reset", floods.rapid_reset, (CALM,)),
    ("resets made by the server", floods.made_reset, (CALM,)),
    ("continuation, large", floods.continuations(16000), (CALM,)),
    ("continuation, bytes", floods.continuations(1), (CALM,)),
    ("continuation, empty", floods.continuations(0), (CALM,)),
    ("empty data", floods.empty_data, (CALM,)),
    ("data of a byte", floods.tiny_data, (CALM,)),
    ("empty headers", floods.empty_headers, (CALM,)),
    ("hpack bomb", floods.bomb, ("431", CALM)),
    ("ping", floods.pings, (CALM,)),
    ("settings", floods.many_settings, (CALM,)),
    ("window update", floods.window_updates, (CALM,)),
    ("priority", floods.priorities, (CALM,)),
    ("unknown frames", floods.unknown, (CALM,)),
)

_SELDOM: Final = ("continuation, empty", "window update", "priority", "unknown frames")


def slowly(name: str, run: Run, told: tuple[str, ...], *, sampled: bool = True) -> Attack:
    """An attack that a service must end by its time limits, which are short here."""
    return Attack(name=name, run=run, told=told, config=HASTY, sampled=sampled)


def unread(name: str, run: Run, told: tuple[str, ...], *, sampled: bool = True) -> Attack:
    """An attack that uses up the budget of bytes, within which the memory must stay."""
    rest: dict[str, Any] = {"growth": BUDGET, "crowds": True, "sampled": sampled}
    return Attack(name=name, run=run, told=told, config=NARROW, **rest)


ATTACKS: Final = (
    *(
        Attack(name=name, run=flood(make), told=told, sampled=name not in _SELDOM)
        for name, make, told in _FLOODS
    ),
    Attack(name="request line without end", run=slow.endless_line, told=("414",)),
    Attack(name="headers without end", run=slow.endless_head, told=("431",)),
    Attack(name="header field without end", run=slow.endless_field, told=("431",), sampled=False),
    Attack(name="chunk extension without end", run=slow.endless_extension, told=("400",)),
    Attack(
        name="trailers without end", run=slow.endless_trailers, told=("431", "400"), sampled=False
    ),
    Attack(name="chunks without end", run=slow.tiny_chunks, told=("413", "400")),
    slowly("slow request line", slow.slow_line, ("408",), sampled=False),
    slowly("slow headers", slow.slow_head, ("408",)),
    slowly("silence", slow.silent, CLOSED, sampled=False),
    slowly("slow body", slow.slow_body, ("408",)),
    slowly("slow chunks", slow.slow_chunks, ("408",), sampled=False),
    slowly("http2: slow header block", slow.slow_block, (CALM,)),
    slowly("http2: slow frame", slow.slow_frame, (CALM,)),
    slowly("http2: preface and silence", slow.mute_http2, CLOSED),
    slowly("http2: slow call", slow.slow_call, ("grpc-status 4",)),
    slowly("half-open calls", slow.half_open, ("grpc-status 4",)),
    unread("window 0", slow.unread_calls(0), SHED),
    unread("window byte by byte", slow.unread_calls(1, 50), (CALM,), sampled=False),
    unread("window trickle", slow.unread_calls(1, 1), SHED, sampled=False),
    unread("windows open, socket unread", slow.unread_calls(1 << 30, room=4096), CLOSED),
    unread("answers unread", slow.unread, CLOSED),
    Attack(
        name="10,000 idle connections", run=slow.idle(10_000, slow.AFTER), told=CLOSED, config=ROOMY
    ),
    Attack(name="idle connections beyond the cap", run=slow.idle(2000, 0.5), told=("503",)),
    Attack(name="descriptors run out", run=slow.idle(400, 0.5), told=("503",), command=SCARCE),
)
