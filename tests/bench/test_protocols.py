"""Load on real services, by every protocol."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bench import BadTarget, Load, Step, StepResult, run, target_of
from penstock.bench.run import _ServerStatus
from tests.bench.server import serving
from tests.kit.certificates import make_certificate
from tests.kit.onnx_models import scale
from tests.service.scripts import NAME, script, until
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real
SERVE = (sys.executable, "-m", "penstock", "serve", "--model")
MODEL = "v2/models/double"
PIPELINE = "double/prediction"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    model = scale(tmp_path_factory.mktemp("models") / "double.onnx", 2.0)
    with running(model, "--runtime_thread_num", "1", command=SERVE) as server:
        yield server


def load(*steps: Step, duration: float = 1.5, connections: int = 1, timeout: float = 10) -> Load:
    return Load(
        steps=steps or (Step(concurrency=4), Step(rate=100)),
        duration=duration,
        warm_up=0.2,
        connections=connections,
        timeout=timeout,
    )


def check_good(result: StepResult) -> None:
    assert result.errors == {}
    assert result.good > 20
    assert result.good == result.requests
    (op,) = result.ops
    assert op.name == "double"
    # Between two reports of the service; on a busy machine the first comes late.
    assert 0 < op.samples < 2 * result.requests
    assert 0 < op.process < result.latency.max


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("http://{host}/double", {"data": '[{"x": [[1, 2, 3]]}, {"x": [[4, 5, 6]]}]'}),
        ("http://{host}/" + PIPELINE, {"pairs": ["x=[[1, 2, 3]]"]}),
        ("grpc://{host}/" + PIPELINE, {"pairs": ["x=[[1, 2, 3]]"]}),
        ("http://{host}/" + MODEL, {}),
        ("http://{host}/" + MODEL, {"binary": True, "shapes": ["x:2,3"]}),
        ("grpc://{host}/" + MODEL, {"shapes": ["x:2,3"]}),
    ],
)
def test_open_and_closed_loops_measure_each_protocol(
    service: ServiceProcess, url: str, given: dict[str, object]
):
    target = target_of(url.format(host=f"127.0.0.1:{service.http_port}"), **given)
    closed, open_loop = run(target, load(connections=2))
    check_good(closed)
    check_good(open_loop)
    assert closed.latency == closed.from_sending


@pytest.mark.parametrize(
    ("url", "given", "message"),
    [
        ("grpc://{host}/" + PIPELINE, {"pairs": ["x=[[1]]"]}, "err_no 5000: .*invalid arg list"),
        ("grpc://{host}/" + MODEL, {"shapes": ["x:1,4"]}, "gRPC INVALID_ARGUMENT: "),
        ("http://{host}/" + MODEL, {"shapes": ["x:1,4"]}, "HTTP 400: "),
    ],
)
def test_the_services_refusal_is_reported_with_its_message(
    service: ServiceProcess, url: str, given: dict[str, object], message: str
):
    target = target_of(url.format(host=f"127.0.0.1:{service.http_port}"), **given)
    with pytest.raises(BadTarget, match=message):
        run(target, load(Step(concurrency=1)))


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_every_request_has_an_outcome_when_the_service_is_killed(tmp_path: Path, scheme: str):
    hooks = "def postprocess(self, feed, fetch, log_id):\n    return {'y': '1'}, None, ''"
    with running(script(tmp_path, hooks)) as server:
        url = f"{scheme}://127.0.0.1:{server.http_port}/{NAME}/prediction"

        def kill(number: int, seconds: float) -> bool:
            if seconds > 0.7 and not killed:
                server.send_signal(signal.SIGKILL)
                killed.append(time.monotonic())
            return False

        killed: list[float] = []
        (result,) = run(
            target_of(url, pairs=["x=1"]),
            load(Step(rate=100), duration=1.5, timeout=2),
            on_tick=kill,
        )
    assert killed
    assert result.good == result.requests - sum(result.errors.values())
    assert result.good > 20
    assert result.failed > 20
    # "not finished" if, on a busy machine, an attempt takes longer than the step.
    kinds = {"connection lost", "cannot connect", "gRPC UNAVAILABLE", "timeout", "not finished"}
    assert {*result.errors} <= kinds


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_tls_trusts_the_given_certificates(tmp_path: Path, scheme: str):
    certificate, key = make_certificate(tmp_path)
    tls = f'"door": {{"tls": {{"certificate": "{certificate}", "key": "{key}"}}}}'
    hooks = "def postprocess(self, feed, fetch, log_id):\n    return {'y': '1'}, None, ''"
    with running(script(tmp_path, hooks, tls), ready=False) as server:
        url = f"{scheme}://localhost:{server.http_port}/{NAME}/prediction"
        trusted = target_of(url, pairs=["x=1"], ca_file=str(certificate))
        until(lambda: "penstock serves" in server.log(), "the start")
        (result,) = run(trusted, load(Step(concurrency=2)))
        assert result.failed == 0
        assert [op.name for op in result.ops] == ["work"]
        with pytest.raises(BadTarget, match="certificate"):
            run(target_of(url, pairs=["x=1"]), load(Step(concurrency=2)))


def test_fewer_connections_than_engines_are_remarked():
    status = b'{"engines": 3, "graphs": []}'
    now = time.monotonic()
    with serving(status=status) as server:
        url = server.url().replace("http", "grpc")
        target = target_of(url, data="{}")
        few, enough = (
            _ServerStatus(target, load(connections=each), now, now).between()[1] for each in (2, 3)
        )
    assert few == "3 engines share fewer gRPC connections: raise --connections"
    assert enough == ""


def test_headers_are_metadata_over_grpc(tmp_path: Path):
    priority = '"priority": {"levels": 2, "header": True}'
    hooks = "def postprocess(self, feed, fetch, log_id):\n    return {'y': '1'}, None, ''"
    with running(script(tmp_path, hooks, priority)) as server:
        url = f"grpc://127.0.0.1:{server.http_port}/{NAME}/prediction"
        refused = target_of(url, pairs=["x=1"], headers=["Penstock-Priority: 9"])
        with pytest.raises(BadTarget, match="penstock-priority is a number"):
            run(refused, load(Step(concurrency=1)))
        good = target_of(url, pairs=["x=1"], headers=["Penstock-Priority: 2"])
        (result,) = run(good, load(Step(concurrency=2)))
        assert result.failed == 0
