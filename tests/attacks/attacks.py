"""All attacks, each with its expected answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tests.attacks import floods, slow
from tests.attacks.floods import flood
from tests.attacks.peer import CALM
from tests.attacks.site import MIB, Attack

Run: TypeAlias = Callable[[int, float], Counter[str]]

SHORT_TIMEOUTS: Final = {
    "header_timeout": 1,
    "body_timeout": 1,
    "write_timeout": 1,
    "max_connections": 900,
}
SMALL_BUDGET: Final = {
    **SHORT_TIMEOUTS,
    "max_inflight_bytes": 96 * MIB,
    "door": {"max_unsent": 8 * MIB},
}
BUDGET: Final = 96 * MIB * 6 // 5 + 64 * MIB
SHED: Final = ("RST_STREAM CANCEL", "RST_STREAM ENHANCE_YOUR_CALM")
MANY_CONNECTIONS: Final = {"max_connections": 12_000, "header_timeout": 2, "keep_alive": 2}
FEW_DESCRIPTORS: Final = ("prlimit", "--nofile=256:256")
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

_LONG_RUN_ONLY: Final = ("continuation, empty", "window update", "priority", "unknown frames")


def slow_attack(name: str, run: Run, expected: tuple[str, ...], *, sampled: bool = True) -> Attack:
    """An attack that a service must end by its timeouts, which are short here."""
    return Attack(name=name, run=run, expected=expected, config=SHORT_TIMEOUTS, sampled=sampled)


def unread(name: str, run: Run, expected: tuple[str, ...], *, sampled: bool = True) -> Attack:
    """An attack that exhausts the budget of bytes; the service's memory must stay within it."""
    rest: dict[str, Any] = {"growth": BUDGET, "refuses_others": True, "sampled": sampled}
    return Attack(name=name, run=run, expected=expected, config=SMALL_BUDGET, **rest)


ATTACKS: Final = (
    *(
        Attack(name=name, run=flood(make), expected=expected, sampled=name not in _LONG_RUN_ONLY)
        for name, make, expected in _FLOODS
    ),
    Attack(name="request line without end", run=slow.endless_line, expected=("414",)),
    Attack(name="headers without end", run=slow.endless_head, expected=("431",)),
    Attack(
        name="header field without end", run=slow.endless_field, expected=("431",), sampled=False
    ),
    Attack(name="chunk extension without end", run=slow.endless_extension, expected=("400",)),
    Attack(
        name="trailers without end",
        run=slow.endless_trailers,
        expected=("431", "400"),
        sampled=False,
    ),
    Attack(name="chunks without end", run=slow.tiny_chunks, expected=("413", "400")),
    slow_attack("slow request line", slow.slow_line, ("408",), sampled=False),
    slow_attack("slow headers", slow.slow_head, ("408",)),
    slow_attack("silence", slow.silent, CLOSED, sampled=False),
    slow_attack("slow body", slow.slow_body, ("408",)),
    slow_attack("slow chunks", slow.slow_chunks, ("408",), sampled=False),
    slow_attack("http2: slow header block", slow.slow_block, (CALM,)),
    slow_attack("http2: slow frame", slow.slow_frame, (CALM,)),
    slow_attack("http2: preface and silence", slow.mute_http2, CLOSED),
    slow_attack("http2: slow call", slow.slow_call, ("grpc-status 4",)),
    slow_attack("half-open calls", slow.half_open, ("grpc-status 4",)),
    unread("window 0", slow.unread_calls(0), SHED),
    unread("window byte by byte", slow.unread_calls(1, 50), (CALM,), sampled=False),
    unread("window trickle", slow.unread_calls(1, 1), SHED, sampled=False),
    unread("windows open, socket unread", slow.unread_calls(1 << 30, room=4096), CLOSED),
    unread("answers unread", slow.unread, CLOSED),
    Attack(
        name="10,000 idle connections",
        run=slow.idle(10_000, slow.AFTER),
        expected=CLOSED,
        config=MANY_CONNECTIONS,
    ),
    Attack(name="idle connections beyond the cap", run=slow.idle(2000, 0.5), expected=("503",)),
    Attack(
        name="descriptors run out",
        run=slow.idle(400, 0.5),
        expected=("503",),
        command=FEW_DESCRIPTORS,
    ),
)
