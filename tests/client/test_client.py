import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from penstock.client import CallFailed, NotConnected, PipelineClient, response_arrays
from penstock.errors import TooLarge
from penstock.protocols import pb
from penstock.protocols.status import GrpcCode
from tests.service.scripts import until

from .conftest import TIMEOUT, Service, Stuck, echo

Serve = Callable[..., Service]


@pytest.fixture
def client() -> Iterator[PipelineClient]:
    with PipelineClient() as client:
        yield client


def refusing(request: bytes, context: grpc.ServicerContext) -> bytes:
    return pb.Response(err_no=3004, err_msg="busy").SerializeToString()


def test_arguments_keep_their_positions(serve: Serve, client: PipelineClient) -> None:
    service = serve()
    client.connect([service.endpoint])
    array = np.array([1.5], dtype=np.float32)
    client.predict({"x": array, "clientip": "c"}, None, False, True, False, True, 7)
    tensor = pb.Tensor(name="x", elem_type=1, shape=[1], float_data=[1.5])
    assert service.next_request() == pb.Request(tensors=[tensor], logid=7, clientip="c")
    client.predict({"x": "1", "clientip": "c"}, ["y"], name="n", method="m", profile=True)
    assert service.next_request() == pb.Request(
        key=["x", "pipeline.profile"], value=["1", "1"], clientip="c", name="n", method="m"
    )


def test_a_reply_with_an_error_number_is_returned(serve: Serve, client: PipelineClient) -> None:
    client.connect([serve(refusing).endpoint])
    response = client.predict({"x": "1"}, timeout=TIMEOUT)
    assert (response.err_no, response.err_msg) == (3004, "busy")


def test_an_undecodable_reply_fails_the_call(serve: Serve, client: PipelineClient) -> None:
    client.connect([serve(lambda request, context: b"\xff" * 9).endpoint])
    with pytest.raises(CallFailed, match="not a Response") as caught:
        client.predict({"x": "1"}, timeout=TIMEOUT)
    assert caught.value.status is GrpcCode.INTERNAL


def test_requests_and_replies_of_six_mebibytes(serve: Serve, client: PipelineClient) -> None:
    client.connect([serve(echo).endpoint])
    array = np.arange(6 * 2**20 // 8, dtype=np.float64)
    for as_bytes in (False, True):
        response = client.predict(
            {"x": array},
            pack_tensor_format=True,
            use_tensor_bytes=as_bytes,
            timeout=3 * TIMEOUT,
        )
        assert np.array_equal(response_arrays(response)["x"], array)


def test_a_request_over_the_limit_is_not_sent(
    serve: Serve, client: PipelineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.messages.MAX_MESSAGE_BYTES", 1000)
    service = serve()
    client.connect([service.endpoint])
    with pytest.raises(TooLarge):
        client.predict({"x": "1" * 1000})
    assert service.received.empty()


def test_calls_alternate_between_two_endpoints(serve: Serve, client: PipelineClient) -> None:
    services = [serve(), serve()]
    client.connect([service.endpoint for service in services])
    for turn in range(4):
        client.predict({"x": str(turn)}, timeout=TIMEOUT)
    values = [[service.next_request().value[0] for _ in range(2)] for service in services]
    assert values == [["0", "2"], ["1", "3"]]


def test_an_endpoint_that_refuses_connections_is_skipped(
    serve: Serve, client: PipelineClient, dead_endpoint: str
) -> None:
    service = serve()
    client.connect([dead_endpoint, service.endpoint])
    for _ in range(3):
        assert client.predict({"x": "1"}, timeout=TIMEOUT).err_no == 0
    assert service.received.qsize() == 3


def test_a_call_that_a_server_received_is_not_retried_at_another(
    serve: Serve, client: PipelineClient
) -> None:
    def unavailable(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

    first, second = serve(unavailable), serve()
    client.connect([first.endpoint, second.endpoint])
    with pytest.raises(CallFailed, match="draining"):
        client.predict({"x": "1"}, timeout=TIMEOUT)
    assert second.received.empty()


def at_capacity(milliseconds: int) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    """A server that has not begun a call, and says when it may come again."""

    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("grpc-retry-pushback-ms", str(milliseconds)),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "at capacity")

    return refuse


def test_a_call_that_a_server_has_not_begun_goes_to_the_next(
    serve: Serve, client: PipelineClient
) -> None:
    full, good = serve(at_capacity(60_000)), serve(echo)
    client.connect([full.endpoint, good.endpoint])
    futures = [client.predict({"x": str(i)}, asyn=True, timeout=TIMEOUT) for i in range(6)]
    assert [each.result().value[0] for each in futures] == [str(i) for i in range(6)]
    assert full.received.qsize() > 0
    assert client.predict({"x": "1"}, timeout=TIMEOUT).err_no == 0


def test_a_call_that_all_servers_refuse_comes_again_when_they_say(
    serve: Serve, client: PipelineClient
) -> None:
    turns = iter([at_capacity(1), at_capacity(1), echo])
    service = serve(lambda request, context: next(turns)(request, context))
    client.connect([service.endpoint])
    assert client.predict({"x": "1"}, timeout=TIMEOUT).value[0] == "1"
    assert service.received.qsize() == 3
    service.answer = at_capacity(3_600_000)
    for timeout in (TIMEOUT, None):  # nobody waits for an hour
        with pytest.raises(CallFailed, match="at capacity") as caught:
            client.predict({"x": "1"}, timeout=timeout)
        assert caught.value.retry_after == 3600
    assert service.received.qsize() == 5


def test_an_endpoint_that_answers_garbage_gets_no_further_calls(
    serve: Serve, client: PipelineClient, caplog: pytest.LogCaptureFixture
) -> None:
    broken, good = serve(lambda request, context: b"\xff"), serve(echo)
    client.connect([broken.endpoint, good.endpoint])

    def fails() -> bool:
        future = client.predict({"x": "1"}, asyn=True, timeout=TIMEOUT)
        return future.exception(TIMEOUT) is not None

    # Five until it is asked last, and one for each second that the test takes.
    assert 5 <= sum(fails() for _ in range(60)) < 30
    assert f"{broken.endpoint} is tried last for a while" in caplog.text


def test_closing_ends_a_call_that_waits_for_its_next_attempt(
    serve: Serve, client: PipelineClient
) -> None:
    service = serve(at_capacity(10_000))
    client.connect([service.endpoint])
    future = client.predict({"x": "1"}, asyn=True)
    service.next_request()
    calls = client._calls
    assert calls is not None
    until(lambda: calls.opened()[1].in_flight == [0], "the refusal")
    client.close()
    with pytest.raises(CallFailed, match="the client was closed"):
        future.result(TIMEOUT)


def test_a_call_fails_at_its_deadline_and_is_cancelled_at_the_server(
    serve: Serve, client: PipelineClient, stuck: Stuck
) -> None:
    client.connect([serve(stuck).endpoint])
    with pytest.raises(CallFailed) as caught:
        client.predict({"x": "1"}, timeout=0.2)
    assert caught.value.status is GrpcCode.DEADLINE_EXCEEDED
    assert caught.value.retryable
    assert stuck.abandoned.wait(TIMEOUT)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_must_be_a_positive_number(client: PipelineClient, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be a positive number"):
        client.predict({"x": "1"}, timeout=timeout)


def test_a_future_gives_the_reply_to_several_threads(serve: Serve, client: PipelineClient) -> None:
    client.connect([serve(echo).endpoint])
    futures = [client.predict({"x": str(i)}, asyn=True, timeout=TIMEOUT) for i in range(20)]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(2):
            replies = threads.map(lambda future: future.result(TIMEOUT).value[0], futures)
            assert list(replies) == [str(i) for i in range(20)]
    assert all(future.done() for future in futures)


def test_waiting_for_a_future_ends_at_the_given_timeout(
    serve: Serve, client: PipelineClient, stuck: Stuck
) -> None:
    client.connect([serve(stuck).endpoint])
    future = client.predict({"x": "1"}, asyn=True)
    with pytest.raises(TimeoutError):
        future.result(timeout=0.05)
    assert not future.done()
    stuck.released.set()
    assert future.result(TIMEOUT).err_no == 0
    assert not future.cancel()


def test_cancelling_a_future_reaches_the_server(
    serve: Serve, client: PipelineClient, stuck: Stuck
) -> None:
    client.connect([serve(stuck).endpoint])
    future = client.predict({"x": "1"}, asyn=True)
    assert stuck.entered.wait(TIMEOUT)
    assert future.cancel()
    assert stuck.abandoned.wait(TIMEOUT)
    assert future.done()
    for _ in range(2):
        with pytest.raises(CallFailed) as caught:
            future.result()
        assert caught.value.status is GrpcCode.CANCELLED


def test_close_cancels_calls_in_flight(serve: Serve, client: PipelineClient, stuck: Stuck) -> None:
    client.connect([serve(stuck).endpoint])
    with ThreadPoolExecutor(1) as threads:
        blocked = threads.submit(client.predict, {"x": "1"})
        future = client.predict({"x": "1"}, asyn=True)
        assert stuck.entered.wait(TIMEOUT)
        client.close()
        for failure in (blocked.exception(TIMEOUT), future_failure(future)):
            assert isinstance(failure, CallFailed)
            assert failure.status is GrpcCode.CANCELLED
    assert stuck.abandoned.wait(TIMEOUT)


def future_failure(future: Any) -> BaseException:
    with pytest.raises(CallFailed) as caught:
        future.result(TIMEOUT)
    return caught.value


def test_calls_before_connect_and_after_close_raise_not_connected(serve: Serve) -> None:
    client = PipelineClient()
    assert repr(client) == "<PipelineClient not connected>"
    with pytest.raises(NotConnected):
        client.predict({"x": "1"})
    service = serve()
    client.connect([service.endpoint])
    assert repr(client) == f"<PipelineClient {service.endpoint}>"
    client.close()
    client.close()
    with pytest.raises(NotConnected):
        client.predict({"x": "1"})


def test_a_second_connect_replaces_the_endpoints(serve: Serve, client: PipelineClient) -> None:
    former, latter = serve(), serve()
    client.connect([former.endpoint])
    client.connect([latter.endpoint])
    client.predict({"x": "1"}, timeout=TIMEOUT)
    assert (former.received.qsize(), latter.received.qsize()) == (0, 1)


def test_invalid_endpoints_leave_the_connection_unchanged(
    serve: Serve, client: PipelineClient
) -> None:
    client.connect([serve().endpoint])
    with pytest.raises(ValueError, match="host:port"):
        client.connect(["nonsense"])
    assert client.predict({"x": "1"}, timeout=TIMEOUT).err_no == 0


def test_many_threads_share_one_client(serve: Serve, client: PipelineClient) -> None:
    client.connect([serve(echo).endpoint, serve(echo).endpoint])

    def call(i: int) -> str:
        return str(client.predict({"x": str(i)}, timeout=TIMEOUT).value[0])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(call, range(160))) == [str(i) for i in range(160)]


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT,
        cwd=Path(__file__).parents[2],
        check=False,
    )


QUIET = """
import sys
from penstock.client import CallFailed, PipelineClient
client = PipelineClient()
client.connect([sys.argv[1]])
client.predict({"x": "1"}, timeout=10)
client.predict({"x": "1"}, asyn=True, timeout=10).result()
client.connect([sys.argv[2]])
try:
    client.predict({"x": "1"}, timeout=10)
except CallFailed:
    pass
client.close()
"""


def test_a_client_prints_nothing_and_leaves_no_file_open(serve: Serve, dead_endpoint: str) -> None:
    done = run_script(QUIET, serve().endpoint, dead_endpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FORK = """
import os, signal, sys
from penstock.client import NotConnected, PipelineClient
client = PipelineClient()
client.connect([sys.argv[1]])
client.predict({"x": "parent"}, timeout=10)
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        client.predict({"x": "stale"})
    except NotConnected:
        client.connect([sys.argv[1]])
        client.predict({"x": "child"}, timeout=10)
        sys.exit(7)  # with exit handlers: the child's must not close the parent's client
    os._exit(1)
assert os.waitpid(child, 0)[1] == 7 << 8
client.predict({"x": "parent again"}, timeout=10)
client.close()
"""


def test_calls_in_a_forked_child_raise_not_connected_until_it_connects(serve: Serve) -> None:
    service = serve()
    done = run_script(FORK, service.endpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    seen = [service.next_request().value[0] for _ in range(3)]
    assert seen == ["parent", "child", "parent again"]


FORK_DURING_A_CALL = """
import os, signal, sys
from penstock.client import NotConnected, PipelineClient
client = PipelineClient()
client.connect([sys.argv[1]])
waiting = client.predict({"x": "1"}, asyn=True)
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        waiting.result()
    except NotConnected:
        os._exit(waiting.cancel())
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
print(waiting.done(), waiting.cancel())
client.close()
"""


def test_a_forked_child_neither_waits_for_nor_cancels_its_parents_call(
    serve: Serve, stuck: Stuck
) -> None:
    done = run_script(FORK_DURING_A_CALL, serve(stuck).endpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False True\n", "")


INTERRUPT = """
import signal
import sys
from penstock.client import PipelineClient
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits "ignore"
client = PipelineClient()
client.connect([sys.argv[1]])
try:
    client.predict({"x": "1"})
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.read()
"""


def test_interrupting_a_call_reaches_the_server(serve: Serve, stuck: Stuck) -> None:
    command = [sys.executable, "-c", INTERRUPT, serve(stuck).endpoint]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert stuck.entered.wait(TIMEOUT)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == b"interrupted\n"
        assert stuck.abandoned.wait(TIMEOUT)  # although the client still exists


def test_futures_work_with_the_standard_librarys_wait(serve: Serve, client: PipelineClient) -> None:
    client.connect([serve(echo).endpoint])
    futures = [client.predict({"x": str(i)}, asyn=True, timeout=TIMEOUT) for i in range(3)]
    done, waiting = wait(futures, TIMEOUT)
    assert (done, waiting) == (set(futures), set())
