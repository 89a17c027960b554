"""Bad gRPC over real sockets gets the documented answer, and the next call a good one."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc
import pytest

from tests.hostile.bad_grpc import GOOD, OK, RESOURCE_EXHAUSTED, Case, cases
from tests.hostile.bad_http import MOST_BYTES
from tests.hostile.grpc_raw import METHOD, Connection, ask, check_good, connected
from tests.hostile.holding import held
from tests.kit.pipeline import decode, encode
from tests.services.process import ServiceProcess

pytestmark = pytest.mark.real

CASES = cases()


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({case.rule for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_bad_call_gets_its_answer(case: Case, rpc_port: int) -> None:
    with connected(rpc_port) as other:
        other.message(other.open(), GOOD)
        assert other.answer().status == OK
        with connected(rpc_port) as connection:
            try:
                case.send(connection)
            except ConnectionError:
                assert None in case.status
            else:
                answer = connection.answer()
                assert answer.status in case.status
                if answer.status is None:
                    assert answer.reset or answer.closed
                elif answer.status == OK:
                    assert decode(answer.messages[0])["err_no"] == 0
                else:
                    assert answer.messages == []
                    assert case.text in answer.text
                    assert "Traceback" not in answer.text
        other.message(other.open(), GOOD)
        assert other.answer().status == OK
    check_good(rpc_port)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(150),
        b"PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n",
        bytes(100),
    ],
    ids=["HTTP/1.1", "a TLS greeting", "a wrong preface", "zeros"],
)
def test_what_is_no_http_2_is_sent_away(data: bytes, rpc_port: int) -> None:
    with socket.create_connection(("127.0.0.1", rpc_port), timeout=5) as other:
        other.sendall(data)
        other.settimeout(5)
        try:
            while other.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass  # an end as well
    check_good(rpc_port)


def test_metadata_over_16_kib_is_refused(rpc_port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{rpc_port}") as channel:
        call = channel.unary_unary(METHOD)
        with pytest.raises(grpc.RpcError) as caught:
            call(GOOD, metadata=[("x", "y" * 17_000)], timeout=5)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ask(channel, GOOD).status == OK


def test_a_message_over_the_limit_is_refused(rpc_port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{rpc_port}") as channel:
        assert ask(channel, bytes(MOST_BYTES + 1)).status == RESOURCE_EXHAUSTED
        assert ask(channel, GOOD).status == OK


def test_a_message_whose_sender_never_says_that_it_was_all_is_answered(rpc_port: int) -> None:
    with connected(rpc_port) as connection:
        stream = connection.open()
        connection.message(stream, GOOD, ends=False)
        assert connection.answer().status == OK


def test_a_client_that_leaves_harms_nobody(rpc_port: int, pipe: Path) -> None:
    hold = encode({"key": ["x", "do"], "value": ["1", "hold"]})
    leaver = Connection(rpc_port)
    leaver.message(leaver.open(), hold)
    with held(pipe):
        leaver.socket.close()
        check_good(rpc_port)
    check_good(rpc_port)


@pytest.mark.parametrize("ends", [False, True], ids=["open", "without a message"])
def test_streams_opened_and_reset_again_and_again_harm_nobody(
    ends: bool, service: ServiceProcess
) -> None:
    rpc_port = service.rpc_port
    with connected(rpc_port) as connection:
        try:
            for _ in range(2000):
                stream = connection.open(ends=ends)
                # RST_STREAM with CANCEL
                connection.raw(b"\0\0\4\3\0" + stream.to_bytes(4, "big") + b"\0\0\0\x08")
        except ConnectionError:
            pass  # sent away, which is right as well
        check_good(rpc_port)
    # Nor do they fill the log: who left is nobody's error.
    assert "ExecuteBatchError" not in service.log()
