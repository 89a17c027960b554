"""The SDK against real services: shares of variants, and a replica that is killed under load."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

from penstock.client import Endpoint, Service, Variant
from penstock.client.routing import HEDGE_RESERVE
from penstock.protocols.baidu_std import Compression
from tests.client.conftest import Service as Server
from tests.client.conftest import echo
from tests.kit.onnx_models import scale
from tests.services.process import ServiceProcess, running

SERVE = (sys.executable, "-m", "penstock", "serve", "--model")
ORIGINAL = Path(__file__).parents[1] / "kit/predictors.prototxt"
FEED = {"x": np.float32([[1, 2, 3]])}
SECONDS = 20.0


@contextmanager
def serving(*models: Path) -> Iterator[list[ServiceProcess]]:
    """Services of these models, started together."""
    with ExitStack() as stack:
        found = [
            stack.enter_context(running(model, command=SERVE, ready=False)) for model in models
        ]
        for each in found:
            each.wait_ready()
        yield found


@pytest.mark.real
def test_the_originals_file_divides_calls_by_its_weights(tmp_path: Path) -> None:
    models = [scale(tmp_path / f"{name}.onnx", by) for name, by in (("two", 2.0), ("three", 3.0))]
    with serving(*models) as services:
        text = ORIGINAL.read_text()
        for port, each in zip((9292, 9293), services, strict=True):  # the addresses alone
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{each.http_port}")
        (tmp_path / "predictors.prototxt").write_text(text)
        with Service.read(tmp_path) as service:
            futures = [service["general_model"].predict_future(FEED) for _ in range(400)]
            answers = [each.result(SECONDS) for each in futures]
    products = {"var1": [[2, 4, 6]], "var2": [[3, 6, 9]]}
    for each in answers:
        assert each.outputs["y"].tolist() == products[each.tag]
    # Of 400 draws, 300 are expected; five standard deviations of 8.7.
    assert 256 < Counter(each.tag for each in answers)["var1"] < 344


@pytest.mark.real
def test_a_debug_call_brings_back_the_timeline_of_the_request_through_the_graph(
    tmp_path: Path,
) -> None:
    with serving(scale(tmp_path / "two.onnx", 2.0)) as (service,):
        cluster = [f"127.0.0.1:{service.http_port}"]
        for protocol in ("oip", "http:oip", "http:oip_binary", "h2:grpc", "pipeline"):
            with Endpoint(
                "two",
                [Variant("v", cluster)],
                protocol=protocol,
                model="two",
                pack_tensor_format=True,
            ) as made:
                found = made.debug(FEED, timeout=SECONDS)
            assert found.error is None, found
            assert found.answer.outputs["y"].tolist() == [[2, 4, 6]]
            (attempt,) = found.attempts
            assert attempt.timeline is not None
            (step,) = attempt.timeline.steps
            assert step.op == "two"
            assert 0 < step.parts["process"] <= step.ms <= attempt.timeline.ms <= attempt.ms
            assert step.facts["rows"] == 1
            shown = httpx.get(
                f"http://127.0.0.1:{service.http_port}/ui/requests/{attempt.timeline.request_id}"
            ).json()
            assert shown["steps"][0]["op"] == "two"
        with Endpoint("two", [Variant("v", cluster)], protocol="baidu_std") as made:
            (attempt,) = made.debug(FEED, timeout=SECONDS).attempts
        assert attempt.timeline is not None
        assert [each.op for each in attempt.timeline.steps] == ["op0", "op1"]
        for kind in (Compression.SNAPPY, Compression.GZIP, Compression.ZLIB):
            with Endpoint(
                "two", [Variant("v", cluster)], protocol="baidu_std", compress_type=kind
            ) as made:
                assert made.predict(FEED, timeout=SECONDS).outputs["y"].tolist() == [[2, 4, 6]]
        url = f"http://127.0.0.1:{service.http_port}/v2/models/two/infer"
        body = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
        assert "server-timing" not in httpx.post(url, json=body).headers


@pytest.mark.faults
@pytest.mark.parametrize("protocol", ["oip", "http:oip_binary", "baidu_std"])
def test_no_idempotent_call_fails_when_a_replica_is_killed_under_load(
    tmp_path: Path, protocol: str
) -> None:
    model = scale(tmp_path / "two.onnx", 2.0)
    with serving(model, model) as services:
        ports = [each.rpc_port if protocol == "oip" else each.http_port for each in services]
        cluster = [f"127.0.0.1:{port}" for port in ports]
        many, killed, enough = threading.Semaphore(0), threading.Event(), 400
        failures: list[Exception] = []
        replicas: Counter[tuple[bool, str]] = Counter()
        variant = Variant("v", cluster)
        with Endpoint("two", [variant], protocol=protocol, model="two", idempotent=True) as made:

            def call() -> None:
                while replicas[True, cluster[1]] < enough and not failures:
                    try:
                        found = made.predict(FEED, timeout=SECONDS)
                        assert found.outputs["y"].tolist() == [[2, 4, 6]]
                    except Exception as error:
                        failures.append(error)
                    else:
                        replicas[killed.is_set(), found.replica] += 1
                    many.release()

            threads = [threading.Thread(target=call) for _ in range(8)]
            for each in threads:
                each.start()
            for _ in range(enough):
                assert many.acquire(timeout=SECONDS)
            services[0].close()  # SIGKILL
            killed.set()
            for each in threads:
                each.join(SECONDS)
    assert failures == []
    assert replicas[False, cluster[0]] > 0
    assert replicas[True, cluster[1]] >= enough


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize("protocol", ["oip", "http:oip", "baidu_std"])
def test_with_backup_requests_no_idempotent_call_fails_when_a_replica_hangs(
    tmp_path: Path, protocol: str
) -> None:
    model = scale(tmp_path / "two.onnx", 2.0)
    with serving(model, model) as services:
        ports = [each.rpc_port if protocol == "oip" else each.http_port for each in services]
        cluster = [f"127.0.0.1:{port}" for port in ports]
        stopped, goes_on, done = (threading.Event() for _ in range(3))
        by_first, while_hung = threading.Semaphore(0), [threading.Semaphore(0) for _ in range(8)]
        with Endpoint(
            "two",
            [Variant("v", cluster)],
            protocol=protocol,
            model="two",
            idempotent=True,
            hedge_request_timeout_ms=300,
        ) as made:

            def call(caller: int) -> None:
                while not done.is_set():
                    hung = stopped.is_set()
                    found = made.predict(FEED, timeout=SECONDS)
                    assert found.outputs["y"].tolist() == [[2, 4, 6]]
                    if hung and not goes_on.is_set():
                        while_hung[caller].release()
                    elif found.replica == cluster[0]:
                        by_first.release()

            def answered(*counted: threading.Semaphore) -> None:
                for each in counted:
                    assert each.acquire(timeout=SECONDS)

            with ThreadPoolExecutor(8) as pool:
                calls = [pool.submit(call, at) for at in range(8)]
                try:
                    answered(*[by_first] * 400)
                    services[0].send_signal(signal.SIGSTOP)
                    stopped.set()
                    answered(*while_hung * 50)  # no caller waits for the one that hangs
                    services[0].send_signal(signal.SIGCONT)
                    goes_on.set()
                    answered(*[by_first] * 1000)  # some were counted before
                finally:
                    done.set()
                for each in calls:
                    each.result(2 * SECONDS)


@pytest.mark.faults
@pytest.mark.parametrize(
    "protocol",
    [
        "oip",
        pytest.param("http:oip", marks=pytest.mark.long),
        pytest.param("baidu_std", marks=pytest.mark.long),
    ],
)
def test_no_call_fails_when_a_replica_is_drained_under_load(tmp_path: Path, protocol: str) -> None:
    model = scale(tmp_path / "two.onnx", 2.0)
    with serving(model, model) as services:
        ports = [each.rpc_port if protocol == "oip" else each.http_port for each in services]
        cluster = [f"127.0.0.1:{port}" for port in ports]
        many, draining, enough = threading.Semaphore(0), threading.Event(), 300
        replicas: Counter[tuple[bool, str]] = Counter()
        # Not idempotent: only calls that the server has refused are sent again.
        with Endpoint("two", [Variant("v", cluster)], protocol=protocol, model="two") as made:

            def call(_: int) -> None:
                limit = time.monotonic() + SECONDS
                while replicas[True, cluster[1]] < enough:
                    assert time.monotonic() < limit
                    found = made.predict(FEED, timeout=SECONDS)
                    assert found.outputs["y"].tolist() == [[2, 4, 6]]
                    replicas[draining.is_set(), found.replica] += 1
                    if found.replica == cluster[0]:
                        many.release()

            with ThreadPoolExecutor(8) as pool:
                calls = [pool.submit(call, at) for at in range(8)]
                for _ in range(enough):
                    assert many.acquire(timeout=SECONDS)
                services[0].send_signal(signal.SIGTERM)
                draining.set()
                for each in calls:
                    each.result(SECONDS)
            assert services[0].wait_exit() == 0


@pytest.mark.real
@pytest.mark.long
def test_backup_requests_cut_the_p99_of_a_stuttering_replica_within_their_budget() -> None:
    numbers, calls = count(), 2000

    def stuttering(request: bytes, context: grpc.ServicerContext) -> bytes:
        if next(numbers) % 33 == 0:  # three in a hundred
            time.sleep(1.0)
        return echo(request, context)

    servers = [Server(stuttering), Server(echo)]
    variant = Variant("v", [each.endpoint for each in servers])

    def p99(after: int) -> float:
        with Endpoint(
            "x",
            [variant],
            idempotent=True,
            load_balance_strategy="rr",
            hedge_request_timeout_ms=after,
        ) as made:

            def seconds(_: int) -> float:
                began = time.monotonic()
                made.predict({"k": "v"}, timeout=SECONDS)
                return time.monotonic() - began

            with ThreadPoolExecutor(4) as pool:
                return sorted(pool.map(seconds, range(calls)))[calls * 99 // 100]

    try:
        without = p99(-1)
        before = sum(each.received.qsize() for each in servers)
        hedged = p99(100)
        sent = sum(each.received.qsize() for each in servers) - before
    finally:
        for each in servers:
            each.stop()
    assert before == calls
    assert hedged <= 0.3 * without
    assert calls < sent <= 1.05 * calls + HEDGE_RESERVE
