from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.executors.processes.control import (
    MOST_BYTES,
    ControlError,
    Exited,
    Failed,
    Forked,
    Leave,
    Leaving,
    Message,
    Ready,
    Refused,
    Serve,
    Spawn,
    Stop,
    decode,
    encode,
)


@pytest.mark.parametrize(
    "message",
    [
        Ready(),
        Failed("no such model"),
        Leaving(),
        Serve(),
        Leave(),
        Stop(False),
        Stop(True),
        Spawn(1, "détecter\n", 3),
        Forked(1, 4711),
        Refused(2, "no room"),
        Exited(4711, 9, 1 << 40),
    ],
)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert decode(encode(message)) == message


def test_an_endless_reason_is_cut() -> None:
    endless = "\U0001f4a5" * 100_000
    failed = decode(encode(Failed(endless)))
    assert isinstance(failed, Failed)
    assert 100 < len(failed.reason) < MOST_BYTES
    heard = decode(encode(Refused(1, endless)))
    assert isinstance(heard, Refused)
    assert 100 < len(heard.reason) < MOST_BYTES


def test_an_endless_name_is_refused() -> None:
    with pytest.raises(ControlError, match="bytes"):
        encode(Spawn(1, "x" * MOST_BYTES, 0))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"[[]]",
        b'["unknown"]',
        b'["Ready", 1]',
        b'["Stop", 1]',
        b'["Spawn", 1, "op"]',
        b'["Spawn", true, "op", 0]',
        b'["Exited", 1, 2, 3.0]',
        b'["Exited", 1, 2, 3] x',
        b"[" * MOST_BYTES,
        b"\xff\xfe",
    ],
)
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(ControlError):
        decode(data)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = decode(data)
    except ControlError:
        return
    assert decode(encode(message)) == message
