"""All attacks, with what each must be told."""

from __future__ import annotations

from typing import Final

from tests.attacks import floods, slow
from tests.attacks.floods import flood
from tests.attacks.peer import CALM
from tests.attacks.site import MIB, Attack

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
    Attack(
        name="slow request line", run=slow.slow_line, told=("408",), config=HASTY, sampled=False
    ),
    Attack(name="slow headers", run=slow.slow_head, told=("408",), config=HASTY),
    Attack(name="silence", run=slow.silent, told=CLOSED, config=HASTY, sampled=False),
    Attack(name="slow body", run=slow.slow_body, told=("408",), config=HASTY),
    Attack(name="slow chunks", run=slow.slow_chunks, told=("408",), config=HASTY, sampled=False),
    Attack(name="http2: slow header block", run=slow.slow_block, told=(CALM,), config=HASTY),
    Attack(name="http2: slow frame", run=slow.slow_frame, told=(CALM,), config=HASTY),
    Attack(name="http2: preface and silence", run=slow.mute_http2, told=CLOSED, config=HASTY),
    Attack(name="http2: slow call", run=slow.slow_call, told=("grpc-status 4",), config=HASTY),
    Attack(name="half-open calls", run=slow.half_open, told=("grpc-status 4",), config=HASTY),
    Attack(
        name="window 0",
        run=slow.unread_calls(0),
        told=SHED,
        config=NARROW,
        growth=BUDGET,
        crowds=True,
    ),
    Attack(
        name="window byte by byte",
        run=slow.unread_calls(1, 50),
        told=(CALM,),
        config=NARROW,
        growth=BUDGET,
        crowds=True,
        sampled=False,
    ),
    Attack(
        name="window trickle",
        run=slow.unread_calls(1, 1),
        told=SHED,
        config=NARROW,
        growth=BUDGET,
        crowds=True,
        sampled=False,
    ),
    Attack(
        name="windows open, socket unread",
        run=slow.unread_calls(1 << 30, room=4096),
        told=CLOSED,
        config=NARROW,
        growth=BUDGET,
        crowds=True,
    ),
    Attack(
        name="answers unread",
        run=slow.unread,
        told=CLOSED,
        config=NARROW,
        growth=BUDGET,
        crowds=True,
    ),
    Attack(
        name="10,000 idle connections", run=slow.idle(10_000, slow.AFTER), told=CLOSED, config=ROOMY
    ),
    Attack(name="idle connections beyond the cap", run=slow.idle(2000, 0.5), told=("503",)),
    Attack(name="descriptors run out", run=slow.idle(400, 0.5), told=("503",), command=SCARCE),
)
