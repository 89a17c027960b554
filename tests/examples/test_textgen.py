"""The example textgen: its gradients, its model, and texts that join and leave."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.scripts import PENSTOCK
from tests.services.process import ROOT, ServiceProcess, direct, running

EXAMPLE = ROOT / "examples/textgen"
WORDS = ["for", "while", "with", "import", "assert", "return"]
ENV = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
STEPS = "40"
"""Of training: enough to write letters and spaces."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example") / "textgen"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("models", "__pycache__"))
    command = [sys.executable, "train.py", "models", STEPS]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, env=ENV)
    bits = float(done.stdout.split("models: ")[1].split(" bits")[0])
    assert bits < 4.5, "an untrained network needs log2(96) = 6.6"
    return folder


def test_the_gradients_are_those_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import network
    import train

    rng = np.random.default_rng(1)
    weights = {name: each.astype(np.float64) for name, each in network.new_weights(rng).items()}
    ids, wanted = rng.integers(96, size=(2, 2, 7))

    def loss() -> float:
        return float(train.loss(network.forward(weights, ids)[0], wanted)[0])

    logits, backward = network.forward(weights, ids)
    found = backward(train.loss(logits, wanted)[1])
    assert found.keys() == weights.keys()
    for name, each in weights.items():
        place = np.unravel_index(np.abs(found[name]).argmax(), each.shape)
        kept, step = each[place], 1e-5
        each[place] = kept + step
        above = loss()
        each[place] = kept - step
        slope = (above - loss()) / (2 * step)
        each[place] = kept
        assert slope == pytest.approx(found[name][place], rel=1e-4), name


def ask(server: ServiceProcess, path: str, **members: Any) -> Any:
    with direct.open(
        f"{server.http_url}{path}", json.dumps(members).encode(), timeout=60
    ) as answer:
        return answer.read().decode()


@pytest.mark.timeout(240)
def test_texts_that_share_steps_are_those_that_are_written_alone(folder: Path) -> None:
    with running(folder / "app.py", command=PENSTOCK) as server:

        def text(asked: tuple[str, int]) -> str:
            prompt, count = asked
            body = {"prompt": prompt, "max_tokens": count, "temperature": 0.0}
            lines = ask(server, "/generate", **body).split("\n\n")
            return "".join(json.loads(line.removeprefix("data: ")) for line in lines if line)

        asked = [(f"The {word} statement", 4 + 5 * at) for at, word in enumerate(WORDS * 3)]
        alone = {each: text(each) for each in asked[:4]}
        with ThreadPoolExecutor(len(asked)) as threads:
            written = dict(zip(asked, threads.map(text, asked), strict=True))
        assert [len(written[each]) for each in asked] == [count for _, count in asked]
        assert {each: written[each] for each in alone} == alone

        whole = json.loads(
            ask(
                server,
                "/v1/completions",
                model="textgen",
                prompt=asked[1][0],
                max_tokens=9,
                temperature=0,
            )
        )
        assert whole["choices"][0]["text"] == written[asked[1]]
        assert whole["choices"][0]["finish_reason"] == "length"
        assert whole["usage"]["prompt_tokens"] == len(asked[1][0])
        assert whole["usage"]["completion_tokens"] == 9
        events = ask(
            server,
            "/v2/models/Generate/generate_stream",
            prompt=asked[1][0],
            max_tokens=9,
            temperature=0.0,
        )
        assert events.count("data:") == 9
        rows = json.loads(ask(server, "/v1/embeddings", input=["a list", "a list", "print"]))[
            "data"
        ]
        first, same, other = (np.array(row["embedding"]) for row in rows)
        assert first @ same == pytest.approx(1)
        assert first @ other < 0.999
        assert server.stop() == 0
