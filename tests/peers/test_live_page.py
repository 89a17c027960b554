"""The live page in a real Chromium, under load: on the examples, on a graph of 200 ops, on a model
server and an app; light and dark, wide and narrow, by keyboard, behind a token.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.examples.ocr_judge import EXAMPLE as OCR
from tests.examples.ocr_judge import example
from tests.kit.onnx_models import scale
from tests.peers.browser import Page, browsing
from tests.peers.front import nginx
from tests.services.process import ROOT, ServiceProcess, direct, free_port, running

pytestmark = pytest.mark.timeout(240)

WIDE, NARROW = (1280, 900), (360, 740)
SHOTS = os.environ.get("PENSTOCK_SHOTS")
"""A folder for screenshots of the tests; none are made without it."""

BIG = """
import random
from penstock import Op, PipelineServer, RequestOp, ResponseOp

class Stage(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return dict(next(iter(input_dicts.values())))

chosen = random.Random(1)
layers, used = [[RequestOp()]], set()
while (made := sum(map(len, layers[1:]))) < 199:
    row = []
    for number in range(min(chosen.randint(2, 12), 199 - made)):
        inputs = chosen.sample(layers[-1], min(len(layers[-1]), chosen.randint(1, 2)))
        used.update(map(id, inputs))
        row.append(Stage(f"stage_{made + number:03d}", input_ops=inputs))
    layers.append(row)
leaves = [op for row in layers[1:] for op in row if id(op) not in used]
server = PipelineServer("big")
server.set_response_op(ResponseOp(input_ops=[Stage("last", input_ops=leaves)]))
server.prepare_server(yml_dict={"rpc_port": 0})
server.run_server()
"""

FRAIL = '''
import time
from penstock import Op, PipelineServer, RequestOp, ResponseOp

class Frail(Op):
    """Fails, or is slow once, depending on the request."""
    tried = {}
    def process(self, feed_batch, typical_logid):
        text = feed_batch[0]["x"]
        if text == "fail":
            raise ValueError("<b>told to</b>")
        if text.startswith("slow") and not self.tried.setdefault(text, False):
            self.tried[text] = True
            time.sleep(0.5)
        time.sleep(0.01)
        return {"y": [text] * len(feed_batch)}

server = PipelineServer("frail")
op = Frail("<i>frail</i>", input_ops=[RequestOp()], batch_size=4, timeout=200, retry=2)
server.set_response_op(ResponseOp(input_ops=[op]))
server.prepare_server(yml_dict={
    "rpc_port": 0, "build_dag_each_worker": True, "worker_num": 2,
    "ui": {"token": "a-token-of-some-length"},
})
server.run_server()
'''

APP = """
from penstock import App

app = App("garden")

@app.route("/count", batch=4)
def count(petals: list[int]) -> list[int]:
    return petals

@app.route("/size")
def size(text: str, times: int = 1) -> int:
    return len(text) * times

app.run()
"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browsing(tmp_path) as found:
        yield found


@contextmanager
def load(url: str, *bodies: Any, clients: int = 2) -> Iterator[None]:
    """Requests without pauses, until the block ends."""
    enough = threading.Event()

    def call() -> None:
        number = 0
        while not enough.is_set():
            body = json.dumps(bodies[number % len(bodies)]).encode()
            headers = {"content-type": "application/json"}
            direct.open(urllib.request.Request(url, body, headers), timeout=60).read()
            number += 1

    threads = [threading.Thread(target=call, daemon=True) for _ in range(clients)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        enough.set()
        for each in threads:
            each.join(60)


def size(page: Page, size: tuple[int, int]) -> None:
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=size[0], height=size[1], deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    page.until(f"innerWidth === {size[0]}")


def theme(page: Page, name: str) -> None:
    page.evaluate(f"document.getElementById('theme').value = '{name}'")
    page.evaluate("document.getElementById('theme').dispatchEvent(new Event('change'))")


def shot(page: Page, name: str) -> None:
    if SHOTS:
        picture = page.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        Path(SHOTS).mkdir(exist_ok=True)
        (Path(SHOTS) / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))


KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40, "ArrowLeft": 37}


def press(page: Page, key: str) -> None:
    more = {"text": "\r"} if key == "Enter" else {}
    for kind in ("keyDown", "keyUp"):
        facts = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        page.call("Input.dispatchKeyEvent", **facts, **(more if kind == "keyDown" else {}))


def open_page(page: Page, server: ServiceProcess, ops: int) -> None:
    size(page, WIDE)
    page.open(f"{server.http_url}/ui")
    page.until(f"document.querySelectorAll('.node').length === {ops}")


CUT = """
(() => {
  const width = document.documentElement.clientWidth;
  const scrolled = '.canvas, .scroll, pre, .quiet, .skip, svg *';
  return [...document.querySelectorAll('body *')].filter((each) => !each.closest(scrolled))
    .filter((each) => { const { left, right } = each.getBoundingClientRect(); return left < -1 || right > width + 1; })
    .map((each) => each.outerHTML.slice(0, 80));
})()
"""  # noqa: E501
"""Elements that are not within the page's width, or in a part that is scrolled."""


def check_layouts(page: Page, name: str) -> None:
    """Both themes, wide and narrow: nothing is wider than the page, and all controls have names."""
    for width in (WIDE, NARROW):
        size(page, width)
        page.until(f"JSON.parse(drawn.form)[0] === {json.dumps(width is NARROW)}")
        for kind in ("light", "dark"):
            theme(page, kind)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.evaluate(CUT) == []
            background_color = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, background_color[4:-1].split(","))) < 384) == (kind == "dark"), (
                background_color
            )
            shot(page, f"{name}-{width[0]}-{kind}")
    names = accessible(page)
    assert names
    assert not [each for each in names if not each[1]], names
    size(page, WIDE)
    page.until("JSON.parse(drawn.form)[0] === false")


CONTROLS = {"button", "textbox", "searchbox", "combobox", "link", "dialog", "region", "group"}


def accessible(page: Page) -> list[tuple[str, str]]:
    """Role and name of every control, as screen readers get them."""
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    return [
        (each["role"]["value"], each.get("name", {}).get("value", ""))
        for each in nodes
        if not each["ignored"] and each["role"]["value"] in CONTROLS
        if each["role"]["value"] != "group" or each.get("name", {}).get("value")
    ]


def check_updates(page: Page) -> None:
    """Counts increase, and rates are shown."""
    page.until("parseFloat(tiles.rate.value.textContent) > 0")
    answered = "parseInt(tiles.rate.more.textContent.replace(/,/g, ''))"
    before = page.evaluate(answered)
    page.until(f"{answered} > {before}")
    page.until("document.querySelectorAll('.edge.flows').length > 0")
    page.until("document.querySelector('.node .spark, .node .used') !== null")


SUMS = """
(() => {
  const parts = [...document.querySelectorAll('#sums [data-ms]')].map((each) => +each.dataset.ms);
  const whole = +document.querySelector('#sums [data-whole]').dataset.whole;
  const lanes = [...document.querySelectorAll('.lane:not(.axis) .rail')];
  const ends = lanes.flatMap((each) => [...each.children].map((one) => one.style));
  return {whole, sum: parts.reduce((sum, each) => sum + each, 0), lanes: lanes.length,
          last: Math.max(...ends.map((each) => parseFloat(each.left) + parseFloat(each.width)))};
})()
"""


def check_panel_fits(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("byId('panel').scrollWidth <= byId('panel').clientWidth")
    assert page.evaluate(CUT) == []


def check_history(page: Page, server: ServiceProcess, ops: int, name: str) -> None:
    """A page that is opened now shows the past, of the service and of an op."""
    page.until("newest(stored?.service, 'p99') > 0")
    page.open("about:blank")
    page.until("location.href === 'about:blank'")
    open_page(page, server, ops)
    page.until("document.querySelectorAll('#trends .line:not([d=\"\"])').length >= 4")
    size(page, NARROW)
    page.evaluate("openOp(drawn.nodes.keys().next().value)")
    page.until("document.querySelectorAll('#panel .chart').length === 6")
    page.until("parseFloat(document.querySelector('#panel .chart b').textContent) > 0")
    check_panel_fits(page)
    shot(page, f"{name}-op-narrow")
    size(page, WIDE)
    press(page, "Escape")
    page.until("!byId('panel').open")


def check_slowest(page: Page, name: str, ops: int) -> None:
    """The slowest request's timeline has a line for each op, and its parts add up."""
    slowest = "document.querySelector('#requests tbody [data-request]')"
    page.until(f"{slowest} !== null")
    for _ in range(10):
        number = page.evaluate(f"{slowest}.dataset.request")
        page.evaluate(f"{slowest}.click()")
        page.until("document.querySelector('#panel[open] :is(#sums, .note)') !== null")
        if page.evaluate("document.getElementById('sums') !== null"):
            break
        # In a service's first seconds, slower requests may have replaced it meanwhile.
        press(page, "Escape")
        page.until(f"lists.slowest[0].id !== '{number}'")
    found = page.evaluate(SUMS)
    assert found["sum"] == pytest.approx(found["whole"], rel=0.01)
    assert found["lanes"] == ops + 2  # plus unpack and pack
    assert found["last"] == pytest.approx(100, rel=0.01)
    assert page.evaluate("document.querySelectorAll('#panel .scroll tbody tr').length") == ops
    shot(page, f"{name}-timeline")
    size(page, NARROW)
    check_panel_fits(page)
    shot(page, f"{name}-timeline-narrow")
    size(page, WIDE)
    press(page, "Escape")
    page.until("!document.getElementById('panel').open")


def check_clean(page: Page, server: ServiceProcess) -> None:
    """The console has no errors, and all requests went to the service."""
    assert [
        each for each in page.console_errors if "/ui/requests/" not in each
    ] == []  # requests replaced in the list, see above
    here = f"{server.http_url}/"
    assert all(each.startswith((here, "about:", "data:")) for each in page.urls), page.urls


@pytest.mark.long
def test_the_live_page_of_the_ocr_example_under_load(page: Page, tmp_path: Path) -> None:
    example().pictures.draw_pictures(tmp_path)
    picture = (tmp_path / next(iter(example().pictures.GOOD))).read_bytes()
    body = {"image": base64.b64encode(picture).decode()}
    with running(OCR / "ocr_service.py") as server, load(f"{server.http_url}/ocr", body):
        open_page(page, server, 3)
        check_updates(page)
        check_layouts(page, "ocr")
        check_slowest(page, "ocr", 3)
        page.evaluate("openOp([...drawn.nodes.keys()][2])")
        text = page.until("document.getElementById('panel-body').textContent")
        assert "Requests in a batch" in text
        shot(page, "ocr-op")
        check_clean(page, server)


def test_the_live_page_of_an_ensemble_under_load_and_a_request_from_it(
    page: Page, tmp_path: Path
) -> None:
    source = ROOT / "examples/imdb_model_ensemble"
    for each in source.glob("*.*"):
        (tmp_path / each.name).write_bytes(each.read_bytes())
    body = {"key": ["words"], "value": ["a charming cast and a perfect script"]}
    with running(tmp_path / "pipeline_server.py", timeout=120) as server:
        url = f"{server.http_url}/imdb/prediction"
        with load(url, body, clients=6):
            open_page(page, server, 3)
            check_updates(page)
            check_layouts(page, "ensemble")
            check_history(page, server, 3, "ensemble")
            check_slowest(page, "ensemble", 3)
        page.until("byId('route').value !== ''")
        page.evaluate("byId('route').value = '/imdb/prediction'")
        page.evaluate(f"byId('body').value = {json.dumps(json.dumps(body))}")
        page.evaluate("document.querySelector('#send button').click()")
        assert "200" in page.until("document.querySelector('#answer .status')?.textContent")
        answer = json.loads(page.evaluate("document.querySelector('#answer .result').textContent"))
        assert answer["key"] == ["prediction"]
        shot(page, "ensemble-answer")
        page.evaluate("byId('its-timeline').click()")
        page.until("byId('panel').open && document.getElementById('sums') !== null")
        lanes = page.evaluate("[...document.querySelectorAll('.lane')].map((x) => x.textContent)")
        assert {"bow", "cnn", "combine"} <= set(lanes)
        check_clean(page, server)


@pytest.mark.long
def test_the_live_page_of_200_ops_is_operated_by_keyboard(page: Page, tmp_path: Path) -> None:
    script = tmp_path / "big.py"
    script.write_text(BIG)
    with running(script) as server, load(f"{server.http_url}/big", {"x": "1"}):
        open_page(page, server, 200)
        check_updates(page)
        check_layouts(page, "big")
        check_slowest(page, "big", 200)

        focused = "document.activeElement"
        page.evaluate("byId('filter').focus()")
        for _ in range(12):
            press(page, "Tab")
            if page.evaluate(f"{focused}.dataset.key !== undefined"):
                break
        first = page.evaluate(f"{focused}.getAttribute('aria-label')")
        assert "per second" in first
        press(page, "ArrowRight")
        assert page.evaluate(f"{focused}.getAttribute('aria-label')") != first
        name = page.evaluate(f"drawn.nodes.get({focused}.dataset.key).op")
        press(page, "Enter")
        page.until("byId('panel').open")
        assert page.evaluate("byId('panel-title').textContent") == f"Op {name}"
        press(page, "Escape")
        page.until("!byId('panel').open")
        assert page.evaluate(f"{focused}.dataset.key !== undefined")  # the focus is restored
        press(page, "Tab")  # all ops are one tab stop
        assert page.evaluate(f"{focused}.dataset.list") == "slowest"

        page.evaluate("byId('as-table').click()")
        page.until("document.querySelectorAll('#table tbody tr').length === 200")
        page.evaluate("document.querySelector('[data-column=\"2\"]').click()")
        assert page.evaluate("document.querySelectorAll('[aria-sort=descending]').length") == 1
        page.evaluate("byId('filter').value = 'stage_01'")
        page.evaluate("byId('filter').dispatchEvent(new Event('input'))")
        page.until("document.querySelectorAll('#table tbody tr').length === 10")
        assert page.evaluate("byId('matches').textContent") == "10 of 200 ops"
        shot(page, "big-table")
        check_clean(page, server)


@pytest.mark.long
def test_the_live_page_with_token_shows_two_engines_errors_retries_and_a_restart(
    page: Page, tmp_path: Path
) -> None:
    script = tmp_path / "frail.py"
    script.write_text(FRAIL)
    with running(script) as server:
        size(page, WIDE)
        page.open(f"{server.http_url}/ui")
        page.until("document.getElementById('login')?.hidden === false")
        page.evaluate("byId('token').value = 'wrong'")
        page.evaluate("byId('login').requestSubmit()")
        page.until("byId('refused-text').textContent === 'The token is wrong.'")
        shot(page, "token")
        page.evaluate("byId('token').value = 'a-token-of-some-length'")
        page.evaluate("byId('login').requestSubmit()")
        page.until("document.querySelectorAll('.node').length === 1")
        assert page.evaluate("token") == "a-token-of-some-length"
        with load(f"{server.http_url}/frail", {"x": "1"}, clients=8):
            check_updates(page)
            page.until("byId('health').textContent === '● ready, 2 engines'")
            for text in ("fail", "slow"):
                body = json.dumps({"x": text}).encode()
                url = f"{server.http_url}/frail"
                request = urllib.request.Request(url, body, {"content-type": "application/json"})
                with (
                    pytest.raises(urllib.error.HTTPError)
                    if text == "fail"
                    else _no_error_expected()
                ):
                    direct.open(request, timeout=30).read()
            page.until("document.querySelector('.node.is-errors') !== null")
            check_layouts(page, "frail")
            page.evaluate("document.querySelector('[data-list=failed]').click()")
            failed = "document.querySelector('#requests .bad-row [data-request]')"
            page.until(f"{failed} !== null")
            page.evaluate(f"{failed}.click()")
            note = page.until("document.querySelector('#panel .note')?.textContent")
            assert "<b>told to</b>" in note
            traceback = page.evaluate("document.querySelector('#panel .traceback').textContent")
            assert "ValueError: <b>told to</b>" in traceback
            assert page.evaluate("document.querySelector('#panel b, main i:not([class])')") is None
            press(page, "Escape")
            page.evaluate("document.querySelector('[data-list=slowest]').click()")
            slow = "document.querySelector('#requests tbody [data-request]')"
            page.until(f"{slow} !== null && lists.slowest[0].ms > 200")
            page.evaluate(f"{slow}.click()")
            page.until("byId('panel-body').textContent.includes('attempt 2')")
            assert "timed out" in page.evaluate("byId('panel-body').textContent")
            shot(page, "frail-retry")
            press(page, "Escape")
        console_errors = [each for each in page.console_errors if "401" not in each]
        assert console_errors == []
        same_ports = {
            "PENSTOCK_HTTP_PORT": str(server.http_port),
            "PENSTOCK_RPC_PORT": str(server.rpc_port),
        }
        assert server.stop() == 0
        page.until("byId('health').textContent === '✕ disconnected, retrying'")
        shot(page, "disconnected")
    with running(script, environment=same_ports, ready=False):  # the page waits until it is ready
        page.until("byId('health').textContent === '● ready, 2 engines'")
        page.until("byId('tiles').textContent.includes('0 answered since the start')")


@contextmanager
def _no_error_expected() -> Iterator[None]:
    yield


def test_apps_and_model_servers_have_the_live_page(page: Page, tmp_path: Path) -> None:
    script = tmp_path / "garden.py"
    script.write_text(APP)
    with running(script) as server, load(f"{server.http_url}/count", {"petals": 5}):
        open_page(page, server, 2)
        check_updates(page)
        check_layouts(page, "app")
        assert page.evaluate("byId('title').textContent") == "garden"
        page.until("byId('route').value === '/count'")
        page.evaluate("byId('route').value = '/size'")
        page.evaluate("byId('route').dispatchEvent(new Event('change'))")
        assert json.loads(page.evaluate("byId('body').value")) == {"text": "", "times": 1}
        page.evaluate("document.querySelector('#send button').click()")
        page.until("document.querySelector('#answer .status')?.textContent.includes('200')")
        check_clean(page, server)
    model = scale(tmp_path / "double.onnx", 2.0)
    command = (sys.executable, "-m", "penstock", "serve", "--model")
    rows = {"x": [[1, 2, 3]]}
    with running(model, command=command) as server, load(f"{server.http_url}/double", rows):
        open_page(page, server, 1)
        check_updates(page)
        check_slowest(page, "model", 1)


def test_a_service_with_keys_shows_its_callers_and_answers_the_page(
    page: Page, tmp_path: Path
) -> None:
    script, keys = tmp_path / "garden.py", tmp_path / "keys.txt"
    script.write_text(APP.replace('App("garden")', 'App("garden", security={"keys": "keys.txt"})'))
    name = "a-caller-with-a-long-name@example.org"
    command = [sys.executable, "-m", "penstock", "key", name, "--scope", "admin", "--to", str(keys)]
    key = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    with running(script) as server:
        size(page, NARROW)
        page.open(f"{server.http_url}/ui#token={key}")
        page.until("document.querySelectorAll('.node').length === 2")
        page.until("byId('route').value === '/count'")
        page.evaluate("byId('send').requestSubmit()")
        page.until("document.querySelector('#answer .status')?.textContent.includes('200')")
        page.until(f"document.querySelector('#callers tbody th')?.textContent === {name!r}")
        page.until("document.querySelector('#callers tbody td:nth-child(3)').textContent >= 1")
        assert page.evaluate(CUT) == []
        page.evaluate("byId('its-timeline').click()")
        page.until(f"byId('panel-body').textContent.includes({name!r})")
        check_panel_fits(page)
        check_clean(page, server)


@pytest.mark.parametrize(
    "directives",
    ["", "proxy_http_version 1.1; proxy_set_header X-Forwarded-For $remote_addr;"],
    ids=["by default", "as advised"],
)
def test_clients_of_a_proxy_cannot_open_the_live_page_without_a_token(
    tmp_path: Path, directives: str
) -> None:
    script = tmp_path / "garden.py"
    script.write_text(APP)
    port = free_port()
    with running(script) as server:
        location = f"location / {{ proxy_pass http://127.0.0.1:{server.http_port}; {directives} }}"
        site = f"server {{ listen 127.0.0.1:{port}; {location} }}"
        with nginx(tmp_path / "files", site, port):
            for path in ("ui", "ui/state", "ui/requests", "status"):
                for host in ("localhost", "service.example"):
                    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}")
                    request.add_header("host", host)
                    with pytest.raises(urllib.error.HTTPError, match="403"):
                        direct.open(request, timeout=10)
            assert direct.open(f"http://127.0.0.1:{port}/docs", timeout=10).status == 200
