"""The image classifier: its training, its service, its requests with pictures, and its page."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.scripts import PENSTOCK
from tests.services.process import ROOT, ServiceProcess, direct, running

EXAMPLE = ROOT / "examples/image_classifier"

# The first test trains the model, which takes a minute on a busy machine.
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("digits") / "image_classifier"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("models"))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=copy, capture_output=True, text=True, check=True
    )
    accuracy = float(done.stdout.split(": ")[1].partition("%")[0])
    assert accuracy > 94
    return copy


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServiceProcess]:
    with running(folder / "app.py", command=PENSTOCK) as server:
        yield server
        assert server.stop() == 0


def curl(*arguments: str) -> list[dict[str, object]]:
    done = subprocess.run(
        ["curl", "-s", "--noproxy", "*", *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_a_jpeg_is_answered_with_its_five_likeliest_labels(
    server: ServiceProcess, folder: Path
) -> None:
    url, picture = f"{server.http_url}/classify", folder / "models/seven.jpg"
    raw = curl(url, "-H", "Content-Type: image/jpeg", "--data-binary", f"@{picture}")
    assert [type(each["score"]) for each in raw] == [float] * 5
    assert raw[0]["label"] == "seven"
    assert curl(url, "-F", f"image=@{picture}") == raw


def test_an_invalid_image_is_refused(server: ServiceProcess) -> None:
    url = f"{server.http_url}/classify"
    reply = curl(url, "-H", "Content-Type: image/png", "--data-binary", "@/etc/hostname")
    assert reply["error"] == "invalid_input"  # type: ignore[call-overload]


def test_the_drawing_page_is_served(server: ServiceProcess) -> None:
    with direct.open(f"{server.http_url}/", timeout=10) as answer:
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.read() == (EXAMPLE / "page.html").read_bytes()
