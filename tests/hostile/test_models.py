"""Every bad request to a model, over real sockets: the documented answer, then a good request."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import grpc
import pytest

from penstock.protocols import standard_messages as messages
from tests.hostile.bad_requests import (
    INTERNAL,
    INVALID_ARGUMENT,
    MOST_BYTES,
    OK,
    RESOURCE_EXHAUSTED,
)
from tests.hostile.bad_tensors import (
    GENERAL,
    GENERAL_CALL,
    GENERAL_GOOD,
    GOOD_OIP,
    OIP_CALL,
    Bad,
    BadMessage,
    general,
    general_http,
    general_messages,
    infer,
    oip_http,
    oip_message,
    oip_messages,
    tensor,
)
from tests.hostile.conftest import LIMITS
from tests.hostile.holding import held
from tests.kit import baidu_std
from tests.kit import frames as f
from tests.kit.frames import StreamContent, message
from tests.kit.http1 import TIMEOUT, Closed, Reply, connected
from tests.kit.http2 import call, linked
from tests.kit.usage import peak_memory
from tests.services.process import ServiceProcess, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("models.py")
STATUSES = {400: INVALID_ARGUMENT, 404: 5, 413: RESOURCE_EXHAUSTED}
BRPC_CODES = {400: 1003, 404: 1001, 413: 1003}
STREAM = f"/{messages.INFERENCE}/ModelStreamInfer".encode()
_, STREAMED = messages.inference_messages("ModelStreamInfer")
INFERRED, ANSWERED = (
    messages.inference_messages("ModelInfer")[1],
    messages.general_model_messages()[1],
)
MARKS = ("<class", "Traceback", "0x7", "penstock/", ".py", "numpy", "internal")
BUDGET = 24 << 20


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "hold"


@pytest.fixture(scope="module")
def service(pipe: Path) -> Iterator[ServiceProcess]:
    os.mkfifo(pipe)
    environment = LIMITS | {
        "HOSTILE_PIPE": str(pipe),
        "PENSTOCK_MAX_INFLIGHT_BYTES": str(BUDGET),
    }
    with running(SCRIPT, environment=environment) as server:
        before = peak_memory(server.pid)
        yield server
        assert peak_memory(server.pid) - before < 4 * BUDGET
        assert server.stop() == 0
        assert "please report this" not in server.log()
        assert "Traceback" not in server.log()


def check_text(text: str, expected: str) -> None:
    assert expected in text
    assert 0 < len(text) < 400
    assert not any(mark in text for mark in MARKS)


def text_of(reply: Reply, at: Bad) -> str:
    """The error message of an answer, whose form depends on its protocol."""
    if at.data.startswith(b"POST /v2/") or b" /v2/models/" in at.data[:30]:
        document = reply.json()
        assert list(document) == ["error"]
        return str(document["error"])
    if reply.header("content-type") == "application/proto":
        found = ANSWERED.FromString(reply.body)
        assert (found.err_no > 0, len(found.outputs)) == (True, 0)
        return str(found.err_msg)
    document = reply.json()
    if "/../" in at.rule:  # a path of no protocol
        assert document["error"] == "unknown_service"
        return str(document["message"])
    assert document["err_no"] > 0
    assert document["outputs"] == []
    return str(document["err_msg"])


def check_over_http(service: ServiceProcess, rows: Iterable[Bad], good: bytes) -> int:
    """Send each request, followed by a good one; returns their number."""
    wrong, count = [], 0
    for bad in rows:
        count += 1
        with connected(service.http_port) as connection:
            connection.send_until_refused(bad.data, 1)
            try:
                reply = connection.reply()
                assert reply.status == bad.status
                if reply.header("content-type") != "text/plain; charset=utf-8":
                    assert len(reply.body) < 1000
                    if bad.status != 404 or b"/v2/repo" not in bad.data:
                        check_text(text_of(reply, bad), bad.text)
                if bad.stays_open:
                    connection.send(good)
                    assert connection.reply().status == 200
                else:
                    assert connection.is_closed()
            except (AssertionError, Closed, KeyError, TimeoutError) as error:
                wrong.append((bad.rule, error))
    assert wrong == []
    return count


def test_every_bad_oip_request_over_http_is_refused(
    service: ServiceProcess,
) -> None:
    good = infer({"inputs": [tensor()]})
    assert check_over_http(service, oip_http(), good) > 180


def test_every_bad_general_model_request_over_http_is_refused(service: ServiceProcess) -> None:
    assert check_over_http(service, general_http(), general(GENERAL_GOOD)) > 150


def check_over_grpc(
    service: ServiceProcess, path: bytes, rows: Iterable[BadMessage], good: bytes
) -> int:
    wrong, count = [], 0
    with linked(service.rpc_port) as link:
        for bad in rows:
            count += 1
            try:
                answer_of_call = link.predict(bad.data, path=path)
                assert answer_of_call.status == STATUSES[bad.status]
                assert answer_of_call.messages == []
                check_text(answer_of_call.text, bad.text)
                assert link.predict(good, path=path).status == OK
            except AssertionError as error:
                wrong.append((bad.rule, error))
    assert wrong == []
    return count


def test_every_bad_oip_message_over_grpc_is_refused(
    service: ServiceProcess,
) -> None:
    assert check_over_grpc(service, OIP_CALL, oip_messages(), GOOD_OIP) > 70


def test_every_bad_general_model_message_over_grpc_is_refused(service: ServiceProcess) -> None:
    good = GENERAL(**GENERAL_GOOD).SerializeToString()
    assert check_over_grpc(service, GENERAL_CALL, general_messages(), good) > 60


def test_every_bad_general_model_message_over_baidu_std_is_refused(service: ServiceProcess) -> None:
    good = baidu_std.request(GENERAL(**GENERAL_GOOD).SerializeToString())
    wrong, count = [], 0
    with baidu_std.connected(service.http_port) as client:
        for count, bad in enumerate(general_messages(), 1):
            try:
                answer = client.ask(baidu_std.request(bad.data, id=count))
                assert (answer.id, answer.code) == (count, BRPC_CODES[bad.status])
                assert answer.payload == b""
                check_text(answer.text, bad.text)
                assert client.ask(good).code == 0
            except AssertionError as error:
                wrong.append((bad.rule, error))
    assert wrong == []
    assert count > 60


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata", "ModelStatistics"])
def test_bad_metadata_requests_are_refused(service: ServiceProcess, method: str) -> None:
    path = f"/{messages.INFERENCE}/{method}".encode()
    request_type, _ = messages.inference_messages(method)
    with linked(service.rpc_port) as link:
        for data in (b"\xff" * 50, b"\x0a\x7fx", b"\x0a\1\xff", b"\x7b" * 200_000):
            assert link.predict(data, path=path).status == INVALID_ARGUMENT
        for names in ({"name": "nope"}, {"name": "x" * 5000}, {"name": "plain", "version": "2"}):
            answer_of_call = link.predict(request_type(**names).SerializeToString(), path=path)
            if method == "ModelReady":
                assert answer_of_call.status == OK
                assert b"".join(answer_of_call.messages) == b""  # ready: false
                continue
            assert answer_of_call.status == STATUSES[404]
            check_text(answer_of_call.text, "there is no model")
        assert link.predict(request_type(name="plain").SerializeToString(), path=path).status == OK


def errors_of_stream(answer_of_call: StreamContent) -> list[str]:
    """The error messages of a stream's answers."""
    return [STREAMED.FromString(each).error_message for each in answer_of_call.messages]


def test_a_bad_message_of_a_stream_is_refused_in_order_and_the_stream_continues(
    service: ServiceProcess,
) -> None:
    bad = [each for each in oip_messages() if len(each.data) < 10_000]
    with linked(service.rpc_port) as link:
        stream = link.open(call(STREAM))
        for each in bad:
            link.send(f.data(stream, message(each.data)), f.data(stream, message(GOOD_OIP)))
        link.send(f.data(stream, end=True))
        texts = errors_of_stream(link.answer(stream))
        assert texts[1::2] == [""] * len(bad)
        for each, text in zip(bad, texts[::2], strict=True):
            check_text(text, each.text)
        for data in (b"\0\0\0", b"\0\0\0\0\x09abc"):
            stream = link.open(call(STREAM))
            link.send(f.data(stream, message(GOOD_OIP)), f.data(stream, data, end=True))
            assert link.answer(stream).status == INTERNAL
        stream = link.open(call(STREAM))
        link.send(f.data(stream, b"\0" + (MOST_BYTES + 1).to_bytes(4, "big")))
        assert link.answer(stream).status == RESOURCE_EXHAUSTED
        assert link.predict(GOOD_OIP, path=OIP_CALL).status == OK


def held_message(first: int, size: int) -> bytes:
    raw = bytes([first]) + bytes(size - 1)
    return oip_message("hold", raw, datatype="UINT8", shape=[size])


def test_bytes_of_a_streams_requests_count_as_in_flight_until_answered(
    service: ServiceProcess, pipe: Path
) -> None:
    size, many = MOST_BYTES - 1000, 40
    most = BUDGET // size  # each counts twice its size; some arrive after the first were answered
    busy = "too many bytes in flight; try again later"
    with grpc.insecure_channel(service.rpc_endpoint) as channel:
        stream = channel.stream_stream(STREAM.decode())
        for _ in range(2):  # the second time shows that the first left no bytes counted
            stream_ended = threading.Event()

            def requests(first: int, count: int, sent: threading.Event) -> Iterator[bytes]:
                yield held_message(first, 1)
                for _ in range(count):
                    yield held_message(0, size)
                sent.set()

            answers = stream(requests(1, many, stream_ended), timeout=4 * TIMEOUT)
            answers.add_callback(stream_ended.set)
            texts: list[str] = []
            with held(pipe):
                assert stream_ended.wait(TIMEOUT)
            try:
                texts += (STREAMED.FromString(each).error_message for each in answers)
            except grpc.RpcError as error:
                texts.append(error.details() or "")  # type: ignore[attr-defined]
            assert {*texts[1:]} <= {"", busy}
            assert texts[-1] == busy or len(texts) == 1 + many
            assert texts.count(busy) >= 1
            assert texts.count("") <= 1 + most
            good = [*stream(requests(0, most // 3, stream_ended), timeout=TIMEOUT)]
            assert [STREAMED.FromString(each).error_message for each in good] == [""] * len(good)
            assert len(good) == 1 + most // 3
