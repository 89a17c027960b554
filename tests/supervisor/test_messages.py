from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from penstock.executors.executor import OpSource
from penstock.executors.processes.spawner import Exited
from penstock.supervisor.messages import (
    MOST_BYTES,
    Abort,
    Answer,
    Answers,
    Ask,
    Asked,
    AskPast,
    Change,
    Changed,
    Commit,
    Committed,
    Failed,
    Fork,
    Forked,
    Held,
    Hold,
    Keep,
    Leave,
    Leaving,
    Loaded,
    Message,
    Prepare,
    Prepared,
    Ready,
    Refused,
    Reload,
    Reloaded,
    Restore,
    Restored,
    Retire,
    Retired,
    Serve,
    Spawn,
    Stale,
    Stop,
    decode,
    encode,
    receive,
    send,
)


@pytest.mark.parametrize(
    "message",
    [
        Ready(),
        Failed("no such model"),
        Leaving(),
        Keep(7, b'[7,{"a":"\n"}]'),
        AskPast(1, 7),
        Serve(),
        Leave(),
        Stop(False),
        Stop(True),
        Spawn.of(1, OpSource(op="détecter\n", label="ocr/détecter"), 3),
        Spawn.of(1, OpSource(graph="a", version="2", op="b", description={"path": ["x"]}), 0),
        Change(1, 7, {"name": None, "versions": {"2": {"path": ["x"]}}}, True),
        Changed(1, None),
        Stale(1, 7, None),
        Change(1, 7, {"name": None, "versions": {}}, False, ["2"]),
        Hold(1, None, ["2"]),
        Held(1),
        Restore(1),
        Restored(1, "no such file"),
        Prepare(1, {"name": "a", "versions": {}}),
        Prepared(1, "no such file"),
        Commit(1),
        Committed(1),
        Abort(1),
        Retire(1),
        Retired(1),
        Forked(1, 4711),
        Refused(2, "no room"),
        Exited(4711, 9, 1 << 40),
        Ask(3, '["trace", 1]', 0.5, False),
        Asked(4, '["trace", 1]'),
        Answer(4, True, b'"\n"'),
        Answers(3, b"[]"),
        Reload(5),
        Reloaded(5, "no such file"),
        Loaded({"host": "::"}, [], None, 30.0, None, True),
        Fork(6, {"engine_id": {"index": 1}}, [{"name": "a"}], ["http_port"]),
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
    prepared = decode(encode(Prepared(1, endless)))
    assert isinstance(prepared, Prepared)
    assert 100 < len(prepared.problem or "") < MOST_BYTES


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("length", [1, MOST_BYTES, 1 << 20])
def test_a_message_arrives_whole_with_its_descriptors_whatever_its_length(
    length: int, line: tuple[socket.socket, socket.socket]
) -> None:
    before = os.listdir("/proc/self/fd")
    with open(os.devnull) as file:
        send(line[0], Answers(7, b"\n" * length), [file.fileno()])
        received = receive(line[1])
        assert received is not None
        assert (received.message, received.lost) == (Answers(7, b"\n" * length), False)
        (descriptor,) = received.fds
        assert os.path.samestat(os.fstat(descriptor), os.fstat(file.fileno()))
        os.close(descriptor)
    assert os.listdir("/proc/self/fd") == before
    line[0].close()
    assert receive(line[1]) is None


def test_a_long_message_without_a_free_descriptor_is_lost_and_the_next_one_arrives(
    line: tuple[socket.socket, socket.socket],
) -> None:
    send(line[0], Answers(7, b"x" * MOST_BYTES))
    send(line[0], Serve())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        received = receive(line[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert received is not None
    assert (received.message, received.fds, received.lost) == (None, [], True)
    following = receive(line[1])
    assert following is not None
    assert following.message == Serve()
