"""The film review example: its training, its models, its ops, and the service as a process."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.services.process import ROOT, ServiceProcess, direct, running
from tests.services.transcript import numbers_in, output_of, shown_like

EXAMPLE = ROOT / "examples/imdb_model_ensemble"
REVIEWS = {
    "i am very sad | 0": 0,
    "The plot is not good and the ending was a horrible disappointment": 0,
    "Awful acting, horrible dialogue, and so stupid.": 0,
    "I think it isn't terrible": 1,
    "A charming cast, a perfect script, and that wonderful music!": 1,
    "we loved the beautiful ending": 1,
}
NAMES = ["bow", "cnn"]
WRONG_INPUT = 51


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    """The example's own modules, imported as its scripts do, and removed from ``sys.modules``."""
    names = ["networks", "sentences", "export", "train"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        found = {name: importlib.import_module(name) for name in names}
        for name in names:
            del sys.modules[name]
    return found


@pytest.fixture(scope="module")
def trained(
    modules: dict[str, ModuleType], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, float]]:
    folder = tmp_path_factory.mktemp("imdb")
    return folder, modules["train"].main(folder)


class Models:
    """The two models of a folder and its vocabulary, without a service."""

    def __init__(self, folder: Path) -> None:
        self.of = {
            name: onnxruntime.InferenceSession(folder / name / f"{name}.onnx") for name in NAMES
        }
        words = (folder / "imdb.vocab").read_text().splitlines()
        self.id_of = {word: number for number, word in enumerate(words)}

    def ids(self, text: str) -> list[int]:
        words = re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())
        return [self.id_of.get(word, 0) for word in words]

    def answer(self, text: str) -> np.ndarray:
        """The service's expected answer to a text, ``[2]``."""
        return np.mean([run(self.of[name], [self.ids(text)])[0] for name in NAMES], axis=0)


@pytest.fixture(scope="module")
def models(trained: tuple[Path, dict[str, float]]) -> Models:
    return Models(trained[0])


def run(session: onnxruntime.InferenceSession, sentences: list[list[int]]) -> np.ndarray:
    words = np.array([word for sentence in sentences for word in sentence], dtype=np.int64)
    lod = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
    (prediction,) = session.run(["prediction"], {"words": words.reshape(-1, 1), "words.lod": lod})
    return prediction


# Training


def test_the_ensemble_is_more_accurate_on_new_sentences_than_either_model(
    trained: tuple[Path, dict[str, float]],
):
    _, accuracy = trained
    assert accuracy["bow"] > 0.77  # half would be guessing; it cannot see what "not" belongs to
    assert accuracy["cnn"] > 0.88
    assert accuracy["both"] > 0.90
    assert accuracy["both"] > max(accuracy["bow"], accuracy["cnn"])


# The models


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(
    sentences=st.lists(
        st.lists(st.integers(0, 4000), min_size=0, max_size=12), min_size=1, max_size=6
    )
)
def test_a_sentence_gets_the_same_answer_alone_and_in_a_batch(
    models: Models, name: str, sentences: list[list[int]]
):
    together = run(models.of[name], sentences)
    alone = np.concatenate([run(models.of[name], [sentence]) for sentence in sentences])
    assert together.shape == (len(sentences), 2)
    assert np.allclose(together, alone, rtol=0, atol=1e-5)
    assert np.allclose(together.sum(axis=1), 1, atol=1e-5)


# The service, as a process


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(((sys.executable,), EXAMPLE), id="python in the folder"),
        pytest.param(((sys.executable, "-m", "penstock", "run"), ROOT), id="penstock run"),
    ],
)
def server(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    command, cwd = request.param
    with running(EXAMPLE / "pipeline_server.py", command=command, cwd=cwd, timeout=55) as process:
        yield process


@pytest.fixture(scope="module")
def served(server: ServiceProcess) -> Models:
    """The same model files that the service opened."""
    return Models(EXAMPLE / "models")


def ask(server: ServiceProcess, words: str) -> dict[str, Any]:
    body = json.dumps({"key": ["words"], "value": [words]}).encode()
    with direct.open(f"{server.http_url}/imdb/prediction", data=body, timeout=20) as reply:
        assert reply.status == 200
        answer: dict[str, Any] = json.load(reply)
    return answer


def prediction_in(value: str) -> list[float]:
    inside = re.fullmatch(r"array\(\[\[(.*)\]\], dtype=float32\)", value)
    assert inside is not None, value
    return [float(number) for number in inside[1].split(",")]


@pytest.mark.real
@pytest.mark.parametrize(("words", "good"), REVIEWS.items())
def test_an_http_answer_is_the_mean_of_the_bare_models(
    server: ServiceProcess, served: Models, words: str, good: int
):
    answer = ask(server, words)
    assert (answer["err_no"], answer["key"]) == (0, ["prediction"])
    prediction = prediction_in(answer["value"][0])
    assert prediction == pytest.approx(served.answer(words), abs=1e-5)
    assert (prediction[1] > 0.5) == bool(good)


@pytest.mark.real
def test_a_hundred_concurrent_grpc_calls_get_their_own_answers(
    server: ServiceProcess, served: Models
):
    from penstock import PipelineClient

    texts = [list(REVIEWS)[i % len(REVIEWS)] for i in range(100)]
    with PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        futures = [
            client.predict(
                feed_dict={"words": text, "logid": 10_000 + i}, fetch=["prediction"], asyn=True
            )
            for i, text in enumerate(texts)
        ]
        replies = [future.result() for future in futures]
    for text, reply in zip(texts, replies, strict=True):
        assert (reply.err_no, list(reply.key)) == (0, ["prediction"])
        assert prediction_in(reply.value[0]) == pytest.approx(served.answer(text), abs=1e-5)


@pytest.mark.real
def test_a_bad_request_is_refused_and_the_next_one_is_answered(server: ServiceProcess):
    refused = ask(server, "...")
    assert refused["err_no"] == WRONG_INPUT
    assert refused["err_msg"] == "the key 'words' must hold 1 to 10000 words, got 0"
    assert ask(server, "good")["err_no"] == 0


@pytest.mark.real
def test_the_clients_output_is_that_of_the_readme(server: ServiceProcess):
    for client, address in [
        ("http_client.py", server.http_url),
        ("grpc_client.py", server.rpc_endpoint),
    ]:
        printed = output_of(EXAMPLE / client, address)
        shown = shown_like(EXAMPLE / "README.md", printed)
        assert numbers_in(printed) == pytest.approx(numbers_in(shown), abs=0.1)
