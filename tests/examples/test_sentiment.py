"""The sentiment example: its export, its service, and concurrent requests."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.service.scripts import PENSTOCK
from tests.services.process import ROOT, direct, running

EXAMPLE = ROOT / "examples/sentiment"
TEXTS = {
    "what a wonderful day": True,
    "the food was great and the staff friendly": True,
    "a horrible boring failure": False,
    "i hate this terrible thing": False,
}


def test_concurrent_texts_are_classified_correctly_in_batches(tmp_path: Path) -> None:
    folder = tmp_path / "sentiment"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("models"))
    subprocess.run([sys.executable, "export.py"], cwd=folder, check=True, capture_output=True)
    with running(folder / "app.py", command=PENSTOCK) as server:

        def positive(text: str) -> bool:
            body = json.dumps({"text": text}).encode()
            with direct.open(f"{server.http_url}/sentiment", body, timeout=20) as answer:
                return bool(json.load(answer)["positive"])

        with ThreadPoolExecutor(16) as threads:
            texts = [*TEXTS] * 10
            assert list(threads.map(positive, texts)) == [TEXTS[text] for text in texts]
        assert server.stop() == 0
