"""Every bad request and call over real sockets: the documented answer, then a good request.

The rules are tested one by one beside their code (``tests.protocols``, ``tests.rfc``,
``tests.api``); here all of them are sent to one service, in one test for each protocol.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.hostile.bad_requests import (
    CALLS,
    HTTP,
    INVALID_ARGUMENT,
    MESSAGE,
    MOST_BYTES,
    OK,
    http2_rules,
)
from tests.hostile.bad_values import UNDECODABLE, Case
from tests.hostile.bad_values import cases as bad_values
from tests.hostile.conftest import check_good
from tests.kit import frames as f
from tests.kit.frames import message
from tests.kit.http1 import TIMEOUT, Closed, Reply, connected, pairs, request
from tests.kit.http2 import Link, call, linked
from tests.kit.pipeline import decode
from tests.rfc.peer import FINE, Verdict, conn, strm
from tests.services.process import ServiceProcess

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

PLAIN = (404, 405)  # as the original's gateway answers them


def check_form(reply: Reply) -> None:
    """An error is JSON in the gateway's form, or in Penstock's, without internal details."""
    if reply.status in PLAIN and reply.header("content-type") == "text/plain; charset=utf-8":
        return
    assert reply.header("content-type") == "application/json"
    document = reply.json()
    if list(document) == ["error", "message"]:  # a route that the original does not have
        assert document["message"]
        return
    if list(document) == ["error"]:  # an unknown path of the Open Inference Protocol
        assert document["error"].startswith("there is no route /v2/")
        return
    assert list(document) == ["error", "code", "message", "details"]
    assert document["error"] == document["message"] != ""
    assert isinstance(document["code"], int)
    assert document["code"] != 0
    assert document["details"] == []
    text = document["error"]
    assert len(text) < 200
    assert not any(mark in text for mark in ("<class", "Traceback", "0x", "penstock", "uvicorn"))


def test_every_bad_http1_request_is_refused_with_its_status(service: ServiceProcess) -> None:
    wrong = []
    for bad in HTTP:
        with connected(service.http_port) as connection:
            connection.send_until_refused(bad.data, 1)
            connection.send_until_refused(request(pairs(x="behind")), 1)
            try:
                reply = connection.reply()
                if bad.stays_open:
                    assert reply.header("connection") is None
                    assert connection.reply().json()["value"] == ["behind"]
                else:  # nothing after it is read
                    assert reply.header("connection") == "close"
                    assert connection.is_closed()
                check_form(reply)
                assert reply.status == bad.status
            except (AssertionError, Closed, TimeoutError) as error:
                wrong.append((bad.rule, error))
    assert wrong == []
    check_good(service)


def verdict(link: Link) -> Verdict:
    """The service's reaction to the bytes sent before."""
    link.send(f.ping(b"the last"))
    while not link.rejected and not any(one.payload == b"the last" for one in link.sent(f.PING)):
        link.read()
    for one in link.sent(f.GOAWAY):
        if one.code:
            return conn(one.code)
    # NO_ERROR: an answer came before the request's end.
    resets = [one for one in link.sent(f.RST_STREAM) if one.code]
    return strm(resets[0].code, resets[0].stream) if resets else FINE


def test_every_bad_http2_connection_is_refused_with_its_error_code(service: ServiceProcess) -> None:
    wrong, count = [], 0
    for case, sent in http2_rules():
        count += 1
        with socket.create_connection(("127.0.0.1", service.http_port), TIMEOUT) as connection:
            link = Link(connection)
            link.send(f.PREFACE, f.settings(), f.settings_ack(), sent)
            got = verdict(link)
            if got not in case.allowed:
                wrong.append((case.name, str(got)))
    assert wrong == []
    assert count > 350
    check_good(service)


def test_every_bad_grpc_call_is_refused_with_its_status(service: ServiceProcess) -> None:
    wrong = []
    with linked(service.rpc_port) as other:
        for bad in CALLS:
            with linked(service.rpc_port) as link:
                received = bad.play(link)
                if received.status != bad.status or bad.text not in received.text:
                    wrong.append((bad.rule, received))
                elif received.status == OK:
                    assert decode(received.messages[0])["err_no"] == 0
                else:
                    assert received.messages == []
                    assert "Traceback" not in received.text
            assert other.predict(MESSAGE).status == OK
    assert wrong == []


def is_correct(case: Case, undecodable: bool, document: dict[str, Any]) -> bool:
    """Whether an answer is that of the case; ``document`` has at least its text."""
    text = document["err_msg"]
    if undecodable or case.answer == UNDECODABLE:
        answered = undecodable and case.answer == UNDECODABLE
    else:
        answered = document["err_no"] == case.answer
        if case.answer == 0:
            return answered and text == "" and case.value in (None, *document["value"][:1])
        answered = answered and not document["key"] + document["value"] + document["tensors"]
    marks = ("<class", "Traceback", "0x7", "penstock/", ".py")
    return (
        answered
        and case.text in text
        and 0 < len(text) < 400
        and not any(mark in text for mark in marks)
    )


def test_every_bad_value_gets_its_answer_on_both_ports(service: ServiceProcess) -> None:
    wrong = []
    cases = [*bad_values()]  # before connecting: this takes as long as an idle connection may live
    with connected(service.http_port, 120) as connection, linked(service.rpc_port) as link:
        for case in cases:
            if case.body is not None:
                connection.send(request(case.body))
                reply = connection.reply()
                assert (reply.header("connection"), reply.status) in ((None, 200), (None, 400))
                document = reply.json()
                if reply.status == 400:
                    check_form(reply)
                    document = {"err_msg": document["error"]}
                if not is_correct(case, reply.status == 400, document):
                    wrong.append((case.rule, reply))
            if case.message is not None:
                received = link.predict(case.message)
                undecodable = received.status == INVALID_ARGUMENT
                assert undecodable or received.status == OK, (case, received)
                answer = {"err_msg": received.text} if undecodable else decode(received.messages[0])
                if not is_correct(case, undecodable, answer):
                    wrong.append((case.rule, received))
    assert wrong == []
    check_good(service)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(150),
        b"PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n",
        bytes(100),
    ],
    ids=["a TLS greeting", "a wrong preface", "zeros"],
)
def test_bytes_of_no_known_protocol_close_the_connection(
    data: bytes, service: ServiceProcess
) -> None:
    with socket.create_connection(("127.0.0.1", service.rpc_port), timeout=5) as other:
        other.sendall(data)
        try:
            while other.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass  # also an end of the connection
    check_good(service)


def test_unusual_but_valid_requests_are_answered(service: ServiceProcess) -> None:
    """Unusual but valid targets, blanks, content types, upgrades and trailers."""
    body = pairs(x="1")
    chunk = b"%x;ext=1\r\n%s\r\n0\r\n" % (len(body), body)
    upgrade = (b"Connection: Upgrade", b"Upgrade: h2c")
    requests = [
        *[
            request(body, target=target)
            for target in (
                b"/%75ci/%252e%252e",
                b"http://localhost/uci/prediction",
                b"/uci/prediction?a=1",
            )
        ],
        request(
            body,
            b"Content-Length: \t %d \t" % len(body),
            b"Grpc-Timeout: 9S ",
            host=b"Host:  localhost ",
            length=False,
        ),
        *[
            request(body, b"Content-Type: " + kind)
            for kind in (b"text/html", b"a/b; charset=x", b"")
        ],
        request(body, *upgrade),
        request(body, b"Connection: Upgrade", b"Upgrade: websocket"),
        request(
            chunk + b"Host: y\r\nContent-Encoding: gzip\r\nGrpc-Timeout: soon\r\n\r\n",
            b"Transfer-Encoding: chunked",
            length=False,
        ),
        request(body, b"Expect: miracle"),
    ]
    with connected(service.http_port) as connection:
        connection.send(*requests)
        for _ in requests:
            reply = connection.reply()
            assert reply.json()["value"] == ["1"]
            assert reply.header("content-type") == "application/json"


def test_a_message_without_the_streams_end_is_answered(
    service: ServiceProcess,
) -> None:
    with linked(service.rpc_port) as link:
        stream = link.open(
            call(b"/baidu.paddle_serving.pipeline_serving.PipelineService/inference")
        )
        link.send(f.data(stream, message(MESSAGE)))
        assert link.answer(stream).status == OK


def test_a_client_that_sends_a_large_body_before_it_reads_gets_the_refusal(
    service: ServiceProcess,
) -> None:
    with connected(service.http_port) as connection:
        connection.send_until_refused(request(bytes(20 * MOST_BYTES)), 1)
        assert connection.reply().status == 413
