from __future__ import annotations

import pytest

from penstock.executors.processes.control import (
    MOST_BYTES,
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
def test_a_message_is_decoded_to_the_encoded_one(message: Message) -> None:
    assert decode(encode(message)) == message


def test_a_very_long_reason_is_cut() -> None:
    endless = "\U0001f4a5" * 100_000
    failed = decode(encode(Failed(endless)))
    assert isinstance(failed, Failed)
    assert 100 < len(failed.reason) < MOST_BYTES
    refused = decode(encode(Refused(1, endless)))
    assert isinstance(refused, Refused)
    assert 100 < len(refused.reason) < MOST_BYTES
