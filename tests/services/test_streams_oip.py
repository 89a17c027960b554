"""Functions that yield, asked by the Open Inference Protocol: gRPC streams, and ``generate``."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from penstock.protocols import standard_messages as messages
from tests.services.process import ServiceProcess, running
from tests.services.test_streams import SCRIPT, Streams, events, raw_answer, streams

pytestmark = pytest.mark.real
__all__ = ["streams"]

REQUEST, _ = messages.inference_messages("ModelInfer")
_, RESPONSE = messages.inference_messages("ModelStreamInfer")


def request_to(model: str, request_id: str = "", **members: int | str) -> Any:
    request = REQUEST(model_name=model, id=request_id)
    for name, value in members.items():
        kind = "BYTES" if isinstance(value, str) else "INT64"
        contents = request.inputs.add(name=name, datatype=kind, shape=[1]).contents
        if isinstance(value, str):
            contents.bytes_contents.append(value.encode())
        else:
            contents.int64_contents.append(value)
    return request


class Rpc:
    """One call of ModelStreamInfer."""

    def __init__(self, channel: grpc.Channel, timeout: float | None = 30.0) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()
        method = channel.stream_stream(
            f"/{messages.INFERENCE}/ModelStreamInfer",
            request_serializer=REQUEST.SerializeToString,
            response_deserializer=RESPONSE.FromString,
        )
        self.answers = method(iter(self._requests.get, None), timeout=timeout)

    def send(self, *requests: Any) -> None:
        for each in requests:
            self._requests.put(each)

    def half_close(self) -> None:
        self._requests.put(None)

    def number(self) -> int:
        """The number in the next response."""
        answer = next(self.answers)
        assert not answer.error_message, answer
        return int(answer.infer_response.outputs[0].contents.int64_contents[0])


@pytest.fixture
def channel(streams: Streams) -> Iterator[grpc.Channel]:
    with opened(streams.server) as channel:
        yield channel


def opened(server: ServiceProcess) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{server.http_port}")


def test_each_piece_is_sent_when_it_is_made(streams: Streams, channel: grpc.Channel) -> None:
    os.mkfifo(streams.folder / "rpc")
    rpc = Rpc(channel)
    rpc.send(request_to("gated", key="rpc", upto=2), request_to("double", x=3))
    assert sorted((rpc.number(), rpc.number())) == [0, 6]
    (streams.folder / "rpc").write_bytes(b"")  # only now the other one is made
    assert rpc.number() == 1
    rpc.half_close()
    assert [*rpc.answers] == []
    assert rpc.answers.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("model", ["endless", "endless_on_loop"])
def test_a_reader_that_is_slow_stops_the_generators_of_its_stream_only(
    streams: Streams, channel: grpc.Channel, model: str
) -> None:
    key = f"rpc-{model}"
    slow = Rpc(channel, timeout=None)
    slow.send(request_to(model, key=key))
    seen = -1

    def stands() -> bool:
        nonlocal seen
        before, seen = seen, streams.noted(key, "made")
        return before == seen > 0

    streams.wait_for(stands)
    made = seen
    assert made < 20_000
    other = Rpc(channel)
    other.send(request_to("count", upto=5))
    other.half_close()
    assert len([*other.answers]) == 5
    for _ in range(made + 100):  # it goes on where it stood
        next(slow.answers)
    slow.answers.cancel()
    streams.wait_for(lambda: streams.noted(key, "closed") == 1)


def test_a_caller_that_disconnects_closes_its_generators(streams: Streams) -> None:
    channel = opened(streams.server)
    rpc = Rpc(channel, timeout=None)
    rpc.send(request_to("waits", key="rpc-left"), request_to("endless", key="rpc-left-too"))
    next(rpc.answers)
    next(rpc.answers)
    channel.close()
    streams.wait_for(lambda: streams.noted("rpc-left", "closed") == 1)
    streams.wait_for(lambda: streams.noted("rpc-left-too", "closed") == 1)


def test_the_deadline_of_the_call_ends_its_generators(
    streams: Streams, channel: grpc.Channel
) -> None:
    rpc = Rpc(channel, timeout=1.0)
    rpc.send(request_to("waits", key="rpc-late"))
    assert rpc.number() == 0
    with pytest.raises(grpc.RpcError) as failure:
        next(rpc.answers)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
    streams.wait_for(lambda: streams.noted("rpc-late", "closed") == 1)


def test_the_time_that_a_request_allows_ends_its_answer_only(
    streams: Streams, channel: grpc.Channel
) -> None:
    rpc = Rpc(channel)
    request = request_to("waits", "late", key="rpc-timeout")
    request.parameters["timeout"].int64_param = 500_000
    rpc.send(request)
    assert rpc.number() == 0
    answer = next(rpc.answers)
    assert answer.infer_response.id == "late"
    assert "deadline" in answer.error_message
    rpc.send(request_to("double", x=4))
    assert rpc.number() == 8


def test_a_worker_that_dies_ends_the_answers_that_it_made(
    streams: Streams, channel: grpc.Channel
) -> None:
    if streams.executor == "thread":
        pytest.skip("a thread cannot end without its service")
    rpc = Rpc(channel)
    rpc.send(request_to("dies", "d", after=3))
    assert [rpc.number() for _ in range(3)] == [0, 1, 2]
    answer = next(rpc.answers)
    assert answer.infer_response.parameters["triton_final_response"].bool_param
    assert answer.error_message
    rpc.send(request_to("double", x=4))
    assert rpc.number() == 8


def test_a_service_that_shuts_down_finishes_answers_in_pieces(tmp_path: Path) -> None:
    environment = {"EXECUTOR": "thread", "FOLDER": str(tmp_path)}
    os.mkfifo(tmp_path / "drained")
    with running(SCRIPT, environment=environment) as server, opened(server) as channel:
        rpc = Rpc(channel)
        rpc.send(request_to("gated", key="drained", upto=3))
        assert rpc.number() == 0
        server.send_signal(signal.SIGTERM)
        # It has begun to refuse requests before the generator goes on.
        late = None
        while late is None or not late.error_message:
            rpc.send(request_to("double", x=1))
            late = next(rpc.answers)
        threading.Thread(target=(tmp_path / "drained").write_bytes, args=(b"",)).start()
        assert [rpc.number(), rpc.number()] == [1, 2]
        with pytest.raises(grpc.RpcError) as failure:
            next(rpc.answers)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        assert server.wait_exit() == 0


def test_an_engine_that_is_replaced_finishes_answers_in_pieces(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "replaced")
    environment = {
        "EXECUTOR": "thread",
        "FOLDER": str(tmp_path),
        "PENSTOCK_SET": "build_dag_each_worker=true;worker_num=1",
    }
    with running(SCRIPT, environment=environment) as server, opened(server) as channel:
        rpc = Rpc(channel)
        rpc.send(request_to("gated", key="replaced", upto=3))
        assert rpc.number() == 0
        server.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while "another process accepts connections now" not in server.log():
            assert time.monotonic() < deadline
        threading.Thread(target=(tmp_path / "replaced").write_bytes, args=(b"",)).start()
        assert [rpc.number(), rpc.number()] == [1, 2]
        with pytest.raises(grpc.RpcError) as failure:
            next(rpc.answers)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        assert server.stop() == 0


def generate(streams: Streams, model: str, *, stream: bool = False, **body: Any) -> httpx.Response:
    end = "generate_stream" if stream else "generate"
    return streams.client.post(f"/v2/models/{model}/{end}", json=body)


def test_generate_stream_answers_with_an_event_for_each_piece(streams: Streams) -> None:
    answer = generate(streams, "count", stream=True, upto=2, id="7")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    head = {"model_name": "count", "model_version": "1", "id": "7"}
    assert [each for _, each in events(answer.text)] == [
        {**head, "text": f"é{n}", "n": n} for n in range(2)
    ]
    assert generate(streams, "count", stream=True, upto=0).text == ""
    ((_, other),) = events(generate(streams, "double", stream=True, x=4).text)
    assert other["result"] == 8


def test_generate_stream_sends_each_event_when_it_is_made(streams: Streams) -> None:
    os.mkfifo(streams.folder / "event")
    url, body = "/v2/models/gated/generate_stream", {"key": "event", "upto": 2}
    with streams.client.stream("POST", url, json=body) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["result"] == 0
        (streams.folder / "event").write_bytes(b"")
        left = [each for each in lines if each]
    assert len(left) == 1


def test_generate_joins_the_pieces(streams: Streams) -> None:
    answer = generate(streams, "count", parameters={"upto": 3}, temperature=0.1)
    assert answer.headers["content-type"] == "application/json"
    head = {"model_name": "count", "model_version": "1"}
    assert answer.json() == {**head, "text": "é0é1é2", "n": [0, 1, 2]}
    assert generate(streams, "double", x=[4]).json()["result"] == 8
    versions = streams.client.post("/v2/models/double/versions/1/generate", json={"x": 1})
    assert versions.json()["result"] == 2


def test_errors_of_generate_have_their_status(streams: Streams) -> None:
    for stream in (False, True):
        refused = generate(streams, "count", stream=stream, upto="many")
        assert (refused.status_code, refused.headers["content-type"]) == (400, "application/json")
        assert generate(streams, "nope", stream=stream).status_code == 404
        failed = generate(streams, "count", stream=stream, upto=3, fail_at=0)
        assert (failed.status_code, failed.json()) == (418, {"error": "there is no 0"})
    late = generate(streams, "count", upto=3, fail_at=2)
    assert (late.status_code, late.json()) == (418, {"error": "there is no 2"})


def test_an_error_after_a_piece_is_an_event_and_the_answer_never_looks_complete(
    streams: Streams,
) -> None:
    path = "/v2/models/count/generate_stream"
    text = raw_answer(streams, path, {"upto": 3, "fail_at": 1}, "*/*").decode()
    (_, first), (_, error) = events(text)
    assert (first["n"], error) == (0, {"error": "there is no 1"})


def test_a_caller_of_generate_stream_that_disconnects_closes_the_generator(
    streams: Streams,
) -> None:
    connection = HTTPConnection("127.0.0.1", streams.server.http_port, timeout=30)
    body = json.dumps({"key": "event-left"})
    connection.request("POST", "/v2/models/waits/generate_stream", body)
    response = connection.getresponse()
    assert b"data: " in response.read1()
    response.close()
    connection.close()
    streams.wait_for(lambda: streams.noted("event-left", "closed") == 1)
