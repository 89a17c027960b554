"""The film review example: its training, its models, its ops, and the service as a process."""

import importlib
import json
import re
import runpy
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.pb import Request
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
    """The example's own modules, imported as its scripts do, and forgotten again."""
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
    """The two models of a folder and its vocabulary, bare."""

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
        """What the whole service should say to a text, ``[2]``."""
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


def test_each_model_judges_new_sentences_well_and_both_together_best(
    trained: tuple[Path, dict[str, float]],
):
    _, accuracy = trained
    assert accuracy["bow"] > 0.77  # half would be guessing; it cannot see what "not" belongs to
    assert accuracy["cnn"] > 0.88
    assert accuracy["both"] > 0.90
    assert accuracy["both"] > max(accuracy["bow"], accuracy["cnn"])


def test_training_twice_writes_the_same_bytes(modules: dict[str, ModuleType], tmp_path: Path):
    for attempt in ("first", "second"):
        modules["train"].main(tmp_path / attempt, learn_count=1000)
    written = sorted(path for path in (tmp_path / "first").rglob("*") if path.is_file())
    assert [path.name for path in written] == [
        "bow.onnx",
        "serving_server_conf.prototxt",
        "cnn.onnx",
        "serving_server_conf.prototxt",
        "imdb.vocab",
    ]
    for path in written:
        twin = tmp_path / "second" / path.relative_to(tmp_path / "first")
        assert path.read_bytes() == twin.read_bytes()


def test_sentences_are_balanced_and_never_learned_from_when_kept_out(
    modules: dict[str, ModuleType],
):
    make, train = modules["sentences"].make, modules["train"]
    valences = modules["sentences"].load_valences()
    learn = make(valences, 3000, train.LEARN_SEED)
    kept_out = make(valences, 500, train.KEPT_OUT_SEED)
    assert 0.45 < learn.labels.mean() < 0.55
    seen = {tuple(row[row > 0]) for row in learn.ids}
    assert sum(tuple(row[row > 0]) in seen for row in kept_out.ids) <= 5


def test_a_negation_turns_a_sentence_round(models: Models):
    plain, negated = (models.ids(f"the film was {word} good") for word in ("really", "not"))
    good = run(models.of["cnn"], [plain, negated])[:, 1]
    assert good[0] > 0.9
    assert good[1] < 0.5


# The models


@pytest.mark.parametrize("name", NAMES)
def test_the_onnx_model_is_the_network_that_was_trained(
    modules: dict[str, ModuleType], tmp_path: Path, name: str
):
    networks, train, export = (modules[key] for key in ("networks", "train", "export"))
    valences = modules["sentences"].load_valences()
    some = modules["sentences"].make(valences, 64, 11)
    weights = getattr(networks, f"{name}_weights")(5000, np.random.default_rng(5))
    for array in weights.values():
        array += np.random.default_rng(6).normal(0, 0.3, array.shape).astype(np.float32)
    export.write(getattr(export, f"{name}_graph")(weights), name, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx")
    rows = [ids[:length].tolist() for ids, length in zip(some.ids, some.lengths, strict=True)]
    expected = train.predict(getattr(networks, name), weights, some)
    assert expected.std() > 0.05
    assert np.allclose(run(session, rows), expected, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(
    sentences=st.lists(
        st.lists(st.integers(0, 4000), min_size=0, max_size=12), min_size=1, max_size=6
    )
)
def test_a_sentence_gets_the_same_answer_alone_and_in_company(
    models: Models, name: str, sentences: list[list[int]]
):
    together = run(models.of[name], sentences)
    alone = np.concatenate([run(models.of[name], [sentence]) for sentence in sentences])
    assert together.shape == (len(sentences), 2)
    assert np.allclose(together, alone, rtol=0, atol=1e-5)
    assert np.allclose(together.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_word_beyond_the_border_would_be_noticed(models: Models, name: str):
    """Guards the test above: the cut matters, so a model that ignored the lod would fail it."""
    words = [10, 900, 2000, 3000]
    cut = run(models.of[name], [words[:2], words[2:]])
    other = run(models.of[name], [words[:3], words[3:]])
    assert not np.allclose(cut, other, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_the_conf_names_the_model_s_own_inputs_and_outputs(
    trained: tuple[Path, dict[str, float]], models: Models, name: str
):
    conf = (trained[0] / name / "serving_server_conf.prototxt").read_text()
    assert re.findall(r'\bname: "(.*)"', conf) == ["words", "prediction"]
    assert "is_lod_tensor: true" in conf
    inputs = {one.name: (one.type, len(one.shape)) for one in models.of[name].get_inputs()}
    assert inputs == {"words": ("tensor(int64)", 2), "words.lod": ("tensor(int64)", 1)}


# The ops


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """What the server script defines, run without serving."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.PipelineServer.set_response_op", lambda self, op: None)
        patch.setattr("penstock.PipelineServer.prepare_server", lambda self, path: None)
        patch.setattr("penstock.PipelineServer.run_server", lambda self: None)
        patch.chdir(EXAMPLE)  # the script changes it; this puts it back
        found = runpy.run_path(str(EXAMPLE / "pipeline_server.py"))
        found["read_op"].init_op()
    return found


def unpack(script: dict[str, Any], **pairs: str) -> Any:
    request = Request(key=list(pairs), value=list(pairs.values()), logid=12)
    return script["read_op"].unpack_request_package(request)


def test_text_becomes_ids_with_the_offsets_of_one_sentence(
    script: dict[str, Any],
):
    id_of = Models(EXAMPLE / "models").id_of
    feed, log_id, code, _ = unpack(script, other="x", words="It isn't GOOD, qqqq!")
    assert (log_id, code) == (12, None)
    assert set(feed) == {"words", "words.lod"}
    ids = [id_of["it"], id_of["isn't"], id_of["good"], id_of["<unk>"]]
    assert feed["words"].tolist() == [[number] for number in ids]
    assert feed["words.lod"].tolist() == [0, 4]
    assert feed["words"].dtype == feed["words.lod"].dtype == np.int64


@pytest.mark.parametrize(
    "pairs",
    [{}, {"word": "good"}, {"words": ""}, {"words": "123 !?"}, {"words": "good " * 10_001}],
    ids=["nothing", "other key", "empty", "no word", "too long"],
)
def test_a_request_without_usable_words_is_a_product_error(
    script: dict[str, Any], pairs: dict[str, str]
):
    _, log_id, code, info = unpack(script, **pairs)
    assert (log_id, code) == (12, WRONG_INPUT)
    assert "1 to 10000 words" in info


def test_combine_takes_the_mean_of_both_predictions(script: dict[str, Any]):
    bow, cnn = np.float32([[0.25, 0.75]]), np.float32([[0.75, 0.25]])
    inputs = {"bow": {"prediction": bow}, "cnn": {"prediction": cnn}}
    data, skip, code, _ = script["combine_op"].preprocess(inputs, 1, 2)
    assert (skip, code) == (False, None)
    assert data["prediction"].tolist() == [[0.5, 0.5]]
    assert bow.tolist() == [[0.25, 0.75]]  # arrays are shared with others and stay as they are


class Answer:
    """What a response op is given."""

    def __init__(self, code: int = 0, info: str = "", product: int | None = None) -> None:
        self.error_code = code
        self.error_info = "" if product else info
        self.prod_error_code = product
        self.prod_error_info = info if product else ""

    def parse(self) -> dict[str, Any]:
        return {"prediction": np.float32([[0.25, 0.75]])}


def test_the_reply_carries_the_array_as_python_writes_it(script: dict[str, Any]):
    reply = script["response_op"].pack_response_package(Answer())
    assert (reply.err_no, list(reply.key)) == (0, ["prediction"])
    assert list(reply.value) == ["array([[0.25, 0.75]], dtype=float32)"]


@pytest.mark.parametrize(
    ("answer", "number"),
    [(Answer(6000, "too late"), 6000), (Answer(50, "too late", product=51), 51)],
    ids=["framework", "product"],
)
def test_the_reply_to_an_error_carries_its_number_and_text(
    script: dict[str, Any], answer: Answer, number: int
):
    reply = script["response_op"].pack_response_package(answer)
    assert (reply.err_no, reply.err_msg, list(reply.value)) == (number, "too late", [])


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
    """The very models that the service opened."""
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
def test_http_answers_the_mean_of_the_bare_models(
    server: ServiceProcess, served: Models, words: str, good: int
):
    answer = ask(server, words)
    assert (answer["err_no"], answer["key"]) == (0, ["prediction"])
    prediction = prediction_in(answer["value"][0])
    assert prediction == pytest.approx(served.answer(words), abs=1e-5)
    assert (prediction[1] > 0.5) == bool(good)


@pytest.mark.real
def test_requests_that_share_batches_get_their_own_answers(server: ServiceProcess, served: Models):
    texts = [text for text in REVIEWS for _ in range(20)]
    with ThreadPoolExecutor(12) as callers:
        answers = list(callers.map(lambda text: ask(server, text), texts))
    for text, answer in zip(texts, answers, strict=True):
        expected = served.answer(text)
        assert prediction_in(answer["value"][0]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.real
def test_a_hundred_grpc_calls_at_once_get_their_own_answers(server: ServiceProcess, served: Models):
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
def test_a_bad_request_is_refused_and_the_next_one_served(server: ServiceProcess):
    refused = ask(server, "...")
    assert refused["err_no"] == WRONG_INPUT
    assert refused["err_msg"] == "the key 'words' must hold 1 to 10000 words, got 0"
    assert ask(server, "good")["err_no"] == 0


@pytest.mark.real
def test_the_clients_print_what_the_readme_shows(server: ServiceProcess):
    for client, address in [
        ("http_client.py", server.http_url),
        ("grpc_client.py", server.rpc_endpoint),
    ]:
        printed = output_of(EXAMPLE / client, address)
        shown = shown_like(EXAMPLE / "README.md", printed)
        assert numbers_in(printed) == pytest.approx(numbers_in(shown), abs=0.1)


@pytest.mark.real
def test_sigterm_ends_the_service_with_0_and_leaves_nothing():
    with running(EXAMPLE / "pipeline_server.py", timeout=55) as process:
        assert ask(process, "good")["err_no"] == 0
        assert process.stop() == 0
        assert process.leftovers() == []
        assert "Traceback" not in process.log()
