"""Takes the pictures of the live page that the documents show: ``make pictures``.

It runs a service of four ops, which only sleep, under a load that changes, until the page has
fifteen minutes to show; and one of a repository of models, while a version is rolled out.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.peers.browser import Page, browsing
from tests.services.process import ROOT, ServiceProcess, direct, running
from tests.services.repository import Repository, infer, once, serving, until

FOLDER = ROOT / "docs/pictures"
SERVICE = """
import random
import time

from penstock import Op, PipelineServer, RequestOp, ResponseOp


class Step(Op):
    seconds = 0.004

    def preprocess(self, input_dicts, data_id, log_id):
        return dict(next(iter(input_dicts.values())))

    def process(self, feed_batch, typical_logid):
        time.sleep(self.seconds * random.lognormvariate(0, 0.5))
        if self.name == "recognise" and any("blank" in str(each["image"]) for each in feed_batch):
            raise ValueError("the image is blank")
        return {"image": [each["image"] for each in feed_batch]}


class Slow(Step):
    seconds = 0.02


request = RequestOp()
detect = Step("detect", input_ops=[request], batch_size=4)
crop = Step("crop", input_ops=[request, detect], batch_size=8)
recognise = Slow("recognise", input_ops=[crop], batch_size=4, concurrency=2)
gather = Step("gather", input_ops=[detect, crop, recognise], batch_size=8)
server = PipelineServer("ocr")
server.set_response_op(ResponseOp(input_ops=[gather]))
server.prepare_server(yml_dict={"rpc_port": 0})
server.run_server()
"""


def send(url: str, image: str) -> None:
    body = json.dumps({"image": image}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        direct.open(request, timeout=30).read()
    except urllib.error.HTTPError as error:
        error.close()


@contextmanager
def load(url: str) -> Iterator[None]:
    """Requests at a rate that rises and falls; for half a minute out of five some fail."""
    enough = threading.Event()

    def run() -> None:
        begun, number = time.monotonic(), 0
        with ThreadPoolExecutor(16) as clients:
            while True:
                past = time.monotonic() - begun
                number += 1
                fails = 20 < past % 300 < 50 and number % 4 == 0
                clients.submit(send, url, "blank" if fails else "scan")
                if enough.wait(1 / (25 + 15 * math.sin(past / 60) + 5 * math.sin(past / 11))):
                    return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def take(page: Page, name: str, size: tuple[int, int], theme: str) -> None:
    """Save what is visible of the page."""
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=size[0], height=size[1], deviceScaleFactor=1.5, mobile=size[0] < 600,
    )  # fmt: skip
    page.until(f"innerWidth === {size[0]}")
    page.evaluate(f"byId('theme').value = {theme!r}")
    page.evaluate("byId('theme').dispatchEvent(new Event('change'))")
    answers = page.evaluate("past.length")
    page.until(f"past.length > {answers} + 1")
    picture = page.call("Page.captureScreenshot", format="webp", quality=75)
    (FOLDER / f"{name}.webp").write_bytes(base64.b64decode(picture["data"]))


@contextmanager
def calls(server: ServiceProcess, *names: str) -> Iterator[None]:
    """Thirty requests a second to models."""
    enough = threading.Event()

    def run() -> None:
        link = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
        while not enough.wait(1 / 30 / len(names)):
            for name in names:
                infer(link, name)
        link.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def of_versions(page: Page, folder: Path) -> None:
    """The versions of two models: one was replaced, one is being rolled out."""
    repository = Repository(folder / "models")
    for name in ("embed", "rank"):
        repository.add(name, 1, factor=1.0)
    rollout = "steps=[5,25,50];hold=20;samples=100;disagreement=0.02;p99_ratio=100"
    keys = [f"rollout.rank.{each}" for each in (*rollout.split(";"), "shadow.share=50")]
    environment = {"PENSTOCK_SET": ";".join(keys)}
    with serving(repository, environment=environment) as server:
        until(lambda: once(server, "rank")[0] == once(server, "embed")[0] == 200)
        with calls(server, "rank", "embed"):
            for name in ("embed", "rank"):
                repository.add(name, 2, factor=1.0)
            page.open(f"{server.http_url}/ui")
            page.until("typeof past !== 'undefined' && past.length > 0")
            until(lambda: page.evaluate("byId('rollouts').textContent.includes('● 25 %')"))
            time.sleep(12)
            page.evaluate("byId('versioned').scrollIntoView()")
            take(page, "live-versions", (1280, 860), "light")


def main(minutes: float) -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browsing(Path(folder)) as page:
        of_versions(page, Path(folder))
    if minutes:
        of_ops(minutes)


def of_ops(minutes: float) -> None:
    """A service of four ops."""
    with tempfile.TemporaryDirectory() as folder, browsing(Path(folder)) as page:
        script = Path(folder) / "ocr.py"
        script.write_text(SERVICE)
        with running(script) as server, load(f"{server.http_url}/ocr"):
            time.sleep(60 * minutes)
            page.open(f"{server.http_url}/ui")
            page.until("document.querySelectorAll('#trends .line').length > 0 && stored !== null")
            take(page, "live-light", (1280, 860), "light")
            page.evaluate("openOp([...drawn.nodes.keys()][2])")
            page.until("document.querySelector('#panel .chart') !== null")
            take(page, "live-op-dark", (1280, 860), "dark")
            page.evaluate("byId('close').click()")
            take(page, "live-phone", (360, 780), "light")
            page.evaluate("document.querySelector('[data-list=failed]').click()")
            failed = "document.querySelector('#requests .bad-row [data-request]')"
            page.until(f"{failed} !== null")
            page.evaluate(f"{failed}.click()")
            page.until("document.querySelector('#panel .traceback') !== null")
            traceback = "document.querySelector('#panel .traceback')"
            for here in (f"{ROOT}/", f"{folder}/"):  # paths of this machine say nothing
                page.evaluate(
                    f"{traceback}.textContent = {traceback}.textContent.replaceAll({here!r}, '')"
                )
            take(page, "live-request-dark", (1280, 860), "dark")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 15)
