"""The part of a read that is handled in a connection's turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.door import http2
from penstock.door.http2 import Http2Session
from penstock.protocols.http2 import Event, Http2Connection
from tests.protocols.http2 import peers

CALLS = 100
SLICE = http2._SLICE


def read(session: Any, data: bytes) -> list[Event]:
    """One turn."""
    events = session.core.receive(data, SLICE)
    assert len(events) >= SLICE
    return list(Http2Session._turn(session, events))


def next_part(session: Any) -> list[Event]:
    events: list[Event] = session.core.go_on(Http2Session._slice.fget(session))  # type: ignore[attr-defined]
    return events


@pytest.fixture
def session() -> Any:
    core: Http2Connection = peers.server()
    return SimpleNamespace(core=core, closing=False)


def calls(count: int = CALLS) -> bytes:
    return b"".join(peers.headers(2 * n + 1, end=True) for n in range(count))


def resets(count: int = CALLS) -> bytes:
    return b"".join(peers.headers(2 * n + 1) + peers.rst(2 * n + 1) for n in range(count))


def test_a_read_of_many_calls_is_handled_in_one_turn_within_the_time_limit(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "_TURN", 60.0)
    assert len(read(session, calls())) == CALLS
    assert not session.core.behind


def test_a_turn_ends_at_its_time_limit(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "_TURN", 0.0)
    events = read(session, calls())
    rest = session.core.go_on()
    assert len(rest) > 0
    assert len(events) + len(rest) == CALLS


def test_a_connection_that_abuses_the_protocol_has_short_turns(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "_TURN", 60.0)
    events = read(session, resets())
    assert session.core.is_abused
    assert len(events) <= SLICE + 1
    further = next_part(session)
    assert 0 < len(further) < SLICE // 2, "and shorter ones from then on"
    assert len(events) + len(further) + len(session.core.go_on()) == 2 * CALLS


def test_a_connection_without_abuse_has_normal_turns(session: Any) -> None:
    session.core.receive(calls(), SLICE)
    assert len(next_part(session)) > SLICE // 2


def test_no_calls_are_begun_on_a_closing_connection(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "_TURN", 60.0)
    session.closing = True
    assert len(read(session, calls())) < CALLS
