import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.client import CallFailed, PipelineClient
from penstock.client.answers import Outcome
from penstock.client.call import Call
from penstock.client.channel import Channel
from penstock.client.endpoints import parse_endpoints
from penstock.protocols.status import GrpcCode

from .conftest import PATIENCE, Service, Stuck
from .test_client import run_script

Serve = Callable[..., Service]

NAME = "penstock-client"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    assert threads() == []
    yield
    for thread in threads():
        thread.join(PATIENCE)
    assert threads() == []


def asked(service: Service) -> PipelineClient:
    client = PipelineClient()
    client.connect([service.endpoint])
    client.predict({"x": "1"}, timeout=PATIENCE)
    return client


def test_all_clients_share_one_thread_that_ends_with_the_last(serve: Serve) -> None:
    service = serve()
    clients = [asked(service) for _ in range(3)]
    (thread,) = threads()
    for client in clients:
        assert thread.is_alive()
        client.close()
    assert not thread.is_alive()
    with asked(service):
        assert threads() not in ([], [thread])


def test_connecting_alone_starts_nothing(serve: Serve) -> None:
    with PipelineClient() as client:
        client.connect([serve().endpoint])
        assert threads() == []


def test_a_client_that_is_dropped_is_closed(serve: Serve) -> None:
    client = asked(serve())
    (thread,) = threads()
    del client
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_future_outlives_the_client_that_was_dropped(serve: Serve, stuck: Stuck) -> None:
    client = PipelineClient()
    client.connect([serve(stuck).endpoint])
    future = client.predict({"x": "1"}, asyn=True, timeout=PATIENCE)
    assert stuck.entered.wait(PATIENCE)
    del client
    stuck.released.set()
    assert future.result(PATIENCE).err_no == 0
    del future


def test_whenever_it_is_closed_every_call_ends_exactly_once(serve: Serve) -> None:
    endpoint = parse_endpoints([serve().endpoint])[0]
    for turn in range(30):
        channel = Channel(endpoint, None)
        heard: list[list[Outcome]] = []
        begun = threading.Barrier(4)

        def call(
            channel: Channel = channel, begun: threading.Barrier = begun
        ) -> list[list[Outcome]]:
            own: list[list[Outcome]] = []
            begun.wait(PATIENCE)
            for _ in range(20):
                outcomes: list[Outcome] = []
                try:
                    channel.start(b"", outcomes.append, deadline=time.monotonic() + PATIENCE)
                except CallFailed as error:
                    outcomes.append(error)
                own.append(outcomes)
            return own

        with ThreadPoolExecutor(3) as callers:
            started = [callers.submit(call) for _ in range(3)]
            begun.wait(PATIENCE)
            time.sleep(turn * 0.0003)  # another moment each time
            channel.close()
            for each in started:
                heard += each.result(PATIENCE)
        patience = time.monotonic() + PATIENCE
        while not all(heard) and time.monotonic() < patience:
            time.sleep(0.001)
        assert [len(outcomes) for outcomes in heard] == [1] * 60
        for (outcome,) in heard:
            assert isinstance(outcome, bytes) or outcome.status is GrpcCode.CANCELLED


def test_a_call_that_comes_after_the_threads_end_is_cancelled(serve: Serve) -> None:
    channel = Channel(parse_endpoints([serve().endpoint])[0], None)
    background, line = channel._opened()
    channel.close()
    heard: list[Outcome] = []
    background.hand_over(line.start, Call(b"", None, heard.append))
    (outcome,) = heard
    assert isinstance(outcome, CallFailed)
    assert (outcome.status, outcome.sent) == (GrpcCode.CANCELLED, False)


LEFT_OPEN = """
import atexit, sys
atexit.register(lambda: print(future.done(), future))
from penstock.client import PipelineClient
client = PipelineClient()
client.connect([sys.argv[1]])
client.predict({"x": "1"}, timeout=10)
other = PipelineClient()
other.connect([sys.argv[2]])
future = other.predict({"x": "1"}, asyn=True)
"""


def test_a_program_that_closes_nothing_ends_its_calls_and_soon(serve: Serve, stuck: Stuck) -> None:
    began = time.monotonic()
    done = run_script(LEFT_OPEN, serve().endpoint, serve(stuck).endpoint)
    told = "True <PredictFuture failed: CANCELLED: the client was closed>\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, told, "")
    assert time.monotonic() - began < PATIENCE


CHILD_EXITS = """
import os, signal, sys
from penstock.client import PipelineClient
client = PipelineClient()
client.connect([sys.argv[1]])
client.predict({"x": "parent"}, timeout=10)
child = os.fork()
if child == 0:
    signal.alarm(20)
    with PipelineClient() as own:
        own.connect([sys.argv[1]])
        own.predict({"x": "child"}, timeout=10)
    client.close()
    sys.exit(7)
assert os.waitpid(child, 0)[1] == 7 << 8
client.predict({"x": "parent"}, timeout=10)
client.close()
"""


def test_a_child_that_exits_in_order_leaves_its_parents_connection_alone(serve: Serve) -> None:
    done = run_script(CHILD_EXITS, serve().endpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


PARENT_CLOSES = """
import os, sys
from penstock.client import PipelineClient
client = PipelineClient()
client.connect([sys.argv[1]])
waiting = client.predict({"x": "1"}, asyn=True)
print("ready", flush=True)
sys.stdin.readline()
child = os.fork()
if child == 0:
    sys.stdin.readline()
    os._exit(0)
# Without a word, as when it is killed: only the socket's end can tell the server.
os._exit(0)
"""


def test_a_living_child_does_not_keep_its_parents_connection_open(
    serve: Serve, stuck: Stuck
) -> None:
    command = [sys.executable, "-c", PARENT_CLOSES, serve(stuck).endpoint]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=os.getcwd()
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert stuck.entered.wait(PATIENCE)
        process.stdin.write(b"fork\n")
        process.stdin.flush()
        process.wait(PATIENCE)
        # Though the child still lives. The server itself gives up after PATIENCE.
        assert stuck.abandoned.wait(PATIENCE / 2)
        process.stdin.write(b"end\n")
        process.stdin.flush()
