"""``GET /metrics`` of real services: sums over engines, several scrapers, and formats."""

from __future__ import annotations

import asyncio
import gzip
import re
import signal
from pathlib import Path
from urllib.request import Request

import grpc
import psutil
import pytest

from penstock import App
from penstock.admin.status import MetricsPage
from penstock.api.router import Router
from penstock.errors import StartupError
from penstock.observe.metrics import FAMILIES
from penstock.observe.reports import Report
from penstock.protocols.heads import HTTP_1_1, RequestHead
from penstock.supervisor.queries import AllEngines
from penstock.testing.client import client
from tests.api.recorded_exchange import RecordedExchange
from tests.observe.test_metrics import families, report, samples
from tests.service.scripts import fetch, post, script, until
from tests.services.process import ServiceProcess, direct, running

real = pytest.mark.real
HEAD = RequestHead("GET", b"/metrics", (), version=HTTP_1_1, authority=b"a", content_length=None)
OK = ("penstock_requests_total", ("ok", "work", "1"))


def scrape(server: ServiceProcess) -> dict[tuple[str, tuple[str, ...]], float]:
    answer = fetch(f"{server.http_url}/metrics")
    assert answer.status == 200
    return samples(answer.body)


@real
@pytest.mark.parametrize("engines", [1, 2])
def test_every_scrape_has_the_sums_over_all_engines(engines: int, tmp_path: Path) -> None:
    config = f'"build_dag_each_worker": True, "worker_num": {engines}'
    with running(script(tmp_path, "pass", config)) as server:
        for _ in range(6):
            assert post(server, x="1").json["err_no"] == 0
        first, second = scrape(server), scrape(server)
        assert first[OK] == second[OK] == 6
        assert first["penstock_engines", ()] == engines
        assert first["penstock_ready", ()] == 1
        assert first["penstock_op_workers", ("work", "work", "idle", "1")] == engines
        assert first["penstock_request_duration_seconds_count", ("work", "1")] == 6
        assert first["penstock_op_queue_wait_seconds_count", ("work", "work", "1")] == 6
        assert first["penstock_process_resident_memory_bytes", ("engine",)] > engines * 10e6
        requests = ("penstock_door_requests_total", ())
        assert second[requests] == first[requests] + 1


@real
def test_a_client_cannot_add_series(tmp_path: Path) -> None:
    with running(script(tmp_path)) as server:
        before = set(scrape(server))
        for name in ("other", "a%22b%0A", "x" * 300):
            post(server, name)
            fetch(f"{server.http_url}/{name}")
        with grpc.insecure_channel(server.rpc_endpoint) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary("/no.Service/Method")(b"")
        more = set(scrape(server)) - before
        assert more == {
            ("penstock_door_errors_total", (code,)) for code in ("404", "UNIMPLEMENTED")
        }


@real
def test_the_format_follows_the_accept_header(tmp_path: Path) -> None:
    with running(script(tmp_path)) as server:
        url = f"{server.http_url}/metrics"
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        headers = {"accept": accept, "accept-encoding": "gzip"}
        with direct.open(Request(url, headers=headers), timeout=10) as answer:
            assert answer.headers["content-type"].startswith("application/openmetrics-text")
            assert answer.headers["content-encoding"] == "gzip"
            text = gzip.decompress(answer.read())
        assert {each.name for each in FAMILIES} == set(families(text, openmetrics=True))


@real
def test_metrics_can_be_disabled_or_served_on_the_original_s_port(tmp_path: Path) -> None:
    with running(script(tmp_path, "pass", '"metrics": False')) as server:
        assert fetch(f"{server.http_url}/metrics").status == 404
    # 0 means any free port, which the banner shows.
    config = '"metrics": False, "dag": {"enable_prometheus": True, "prometheus_port": 0}'
    with running(script(tmp_path, "pass", config)) as server:
        assert post(server, x="1").json["err_no"] == 0
        assert fetch(f"{server.http_url}/metrics").status == 404
        (url,) = re.findall(r"(http://\S+) +GET /metrics alone", server.log())
        assert fetch(f"{url}/livez").status == 404
        assert fetch(f"{url}/work/prediction", b"{}").status == 404
        for _ in range(2):
            read = samples(fetch(f"{url}/metrics").body)
            assert read["pd_query_request_success_total", ("work", "1")] == 1
            assert read["pd_inference_count_total", ("work", "work", "1")] == 1
        assert server.stop() == 0


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_concurrent_scrapes_share_one_text(cancelled: int) -> None:
    """Also if the first client disconnects."""
    queries = 0

    class Engines(AllEngines):
        async def reports(self) -> list[Report]:
            nonlocal queries
            queries += 1
            await asyncio.sleep(0)
            return [report()]

    router = Router(MetricsPage(Engines({})).routes(), max_message_bytes=1000)
    for turn in (1, 2):
        exchanges = [RecordedExchange(HEAD) for _ in range(20)]
        for each in exchanges:
            router.begin(each)
        await asyncio.sleep(0)
        for each in exchanges[:cancelled]:
            assert each.on_gone is not None
            each.on_gone()
        while not all(each.replies for each in exchanges[cancelled:]):
            await asyncio.sleep(0.001)
        assert {each.replies[0][0] for each in exchanges[cancelled:]} == {200}
        assert queries == turn


async def test_without_the_sum_over_engines_a_scrape_is_503() -> None:
    class Engines(AllEngines):
        async def reports(self) -> list[Report]:
            raise StartupError("the supervisor is gone")

    router = Router(MetricsPage(Engines({})).routes(), max_message_bytes=1000)
    exchange = RecordedExchange(HEAD)
    router.begin(exchange)
    while not exchange.replies:
        await asyncio.sleep(0.001)
    assert exchange.replies[0][0] == 503


def test_an_app_in_another_server_has_metrics() -> None:
    app = App("calculator")

    @app.route("/double")
    def double(x: int) -> int:
        return 2 * x

    with client(app) as http:
        assert http.post("/double", json={"x": 2}).json() == 4
        read = samples(http.get("/metrics").content)
    assert read["penstock_requests_total", ("ok", "double", "1")] == 1
    assert read["penstock_op_queue_wait_seconds_count", ("double", "double", "1")] == 1
    assert not any(name.startswith("penstock_door") for name, _ in read)


@real
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_counter_decreases_when_engines_are_replaced(
    number: signal.Signals, tmp_path: Path
) -> None:
    config = '"build_dag_each_worker": True, "worker_num": 2'
    with running(script(tmp_path, "pass", config)) as server:
        for _ in range(8):
            assert post(server, x="1").json["err_no"] == 0
        before = scrape(server)
        assert before[OK] == 8
        # Final reports include later requests only if the engines exit by themselves.
        more = 4 if number is signal.SIGTERM else 0
        for _ in range(more):
            assert post(server, x="1").json["err_no"] == 0
        for engine in psutil.Process(server.pid).children():
            engine.send_signal(number)
        after: dict[tuple[str, tuple[str, ...]], float] = {}

        def are_replaced() -> bool:
            nonlocal after
            after = scrape(server)
            return after["penstock_engines_ended_total", ()] == after["penstock_engines", ()] == 2

        until(are_replaced, "two replacements")
        decreased = {
            key: (value, after.get(key))
            for key, value in before.items()
            if key[0].endswith(("_total", "_bucket", "_count", "_sum"))
            and after.get(key, 0) < value
        }
        assert decreased == {}
        assert after[OK] == 8 + more
