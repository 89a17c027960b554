"""Paddle's models with the original's names: converted, served and called; and run locally."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_serving_app.local_predict import LocalPredictor
from paddle_serving_client import Client, HttpClient
from paddle_serving_client.convert import main as convert
from paddle_serving_client.io import inference_model_to_serving
from penstock.errors import ModelError
from penstock.runtimes.model import Model
from penstock.runtimes.prototxt import Variable, parse_model_conf
from penstock.runtimes.runtime import ModelOptions
from tests.models.networks import answers, feed_of
from tests.runtimes.forms import needs
from tests.services.process import ServiceProcess, free_port, running

# Each imports Paddle, in several processes.
pytestmark = [needs("paddle"), pytest.mark.real, pytest.mark.timeout(180)]

SERVE = (sys.executable, "-m", "paddle_serving_server.serve", "--model")
FORMS = ("paddle_json", "paddle_pdmodel", "paddle_combined", "paddle_separate")


def convert_model(networks: Path, model: str, into: Path, *flags: str) -> tuple[Path, Path]:
    """Run the command, and return the two folders that it writes."""
    server, client = into / "serving_server", into / "serving_client"
    given = ["--dirname", str(networks / model), "--serving_server", str(server)]
    assert convert([*given, "--serving_client", str(client), *flags]) == 0
    return server, client


@pytest.mark.parametrize("form", FORMS)
def test_a_saved_model_is_converted_to_two_folders_that_predict(
    networks: Path, tmp_path: Path, form: str
) -> None:
    flags = ("--feed_alias_names", "x", "--fetch_alias_names", "price")
    server, client = convert_model(networks, f"regression/{form}", tmp_path, *flags)
    texts = [(folder / f"{folder.name}_conf.prototxt").read_text() for folder in (server, client)]
    assert texts[0] == texts[1]
    conf = parse_model_conf(texts[0])
    assert conf.feeds == (Variable(name="x_in", alias="x", type=1, shape=(13,)),)
    assert [(each.alias, each.type, each.shape) for each in conf.fetches] == [("price", 1, (1,))]
    stream = (client / "serving_client_conf.stream.prototxt").read_bytes()
    assert stream == (server / "serving_server_conf.stream.prototxt").read_bytes()
    assert b"x_in" in stream
    predictor = LocalPredictor()
    predictor.load_model_config(str(server), thread_num=1)
    assert (predictor.feed_names_, predictor.fetch_names_) == (["x"], ["price"])
    feed = feed_of("regression", 3)
    found = predictor.predict(feed, ["price"], batch=True)
    np.testing.assert_allclose(found["price"], answers("regression", feed)["price"], atol=1e-5)
    one = predictor.predict({"x": feed["x"][0]}, ["price"])
    np.testing.assert_array_equal(one["price"], found["price"][:1])


def test_names_of_files_and_of_variables_can_be_given(
    networks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    saved = networks / "sequence/paddle_combined"
    for saved_name, name in (("__model__", "program"), ("__params__", "weights")):
        (folder / name).write_bytes((saved / saved_name).read_bytes())
    names = inference_model_to_serving(
        str(folder),
        str(tmp_path / "server"),
        str(tmp_path / "client"),
        model_filename="program",
        params_filename="weights",
    )
    assert names == (["words_in", "scale_in"], ["best.tmp_0", "scores.tmp_0"])
    unwritten = tmp_path / "unwritten"
    show = ["--dirname", str(saved), "--show_proto", "true", "--serving_server", str(unwritten)]
    assert convert(show) == 0
    assert [each.name for each in parse_model_conf(capsys.readouterr().out).fetches] == names[1]
    assert not unwritten.exists()
    with pytest.raises(ValueError, match="fetch_alias_names has 1 names for"):
        inference_model_to_serving(str(saved), fetch_alias_names="only")
    with pytest.raises(ModelError, match="does not exist"):
        inference_model_to_serving(str(saved), model_filename="none")
    assert convert(["--dirname", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: model folder")


def test_a_model_is_encrypted_with_a_new_key(
    networks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = str(networks / "regression/paddle_combined")
    inference_model_to_serving(saved, encryption=True, feed_alias_names="x")
    files = {each.name for each in Path("serving_server").iterdir()}
    assert {"encrypt_model", "encrypt_params"} < files
    assert not files & {"model.pdmodel", "params.pdiparams"}
    assert (Path("key").stat().st_mode & 0o777, Path("key").stat().st_size) == (0o600, 16)
    options = ModelOptions(path="serving_server", encryption_key="key")
    feed = feed_of("regression", 2)
    (price,) = Model.open(options).run(feed, None).values()
    np.testing.assert_allclose(price, answers("regression", feed)["price"], atol=1e-5)
    with pytest.raises(ModelError, match="Paddle encrypts a program of Paddle 2"):
        inference_model_to_serving(str(networks / "regression/paddle_json"), encryption=True)


SAVE = """
import sys
import numpy as np
import paddle
from paddle_serving_client.io import save_dygraph_model, save_model

folder = sys.argv[1]
net = paddle.nn.Linear(3, 2)
net.weight.set_value(np.float32([[1, 0], [0, 1], [1, 1]]))
net.bias.set_value(np.float32([0.5, 0]))
spec = [paddle.static.InputSpec([None, 3], "float32", "x")]
save_dygraph_model(f"{folder}/dygraph", f"{folder}/client", paddle.jit.to_static(net, spec))
paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(program, startup):
    x = paddle.static.data("x_in", [None, 3], "float32")
    total = paddle.sum(x, axis=1, keepdim=True)
    twice = x * 2
    paddle.static.Executor(paddle.CPUPlace()).run(startup)
    save_model(f"{folder}/static", f"{folder}/client", {"x": x}, {"t": total, "d": twice}, program)
"""


def test_models_can_be_saved_after_training(tmp_path: Path) -> None:
    # In a separate process, as enable_static is global.
    command = [sys.executable, "-c", SAVE, str(tmp_path)]
    subprocess.run(command, check=True, timeout=50, capture_output=True)
    rows = np.float32([[1, 2, 3], [0, 0, 1]])
    for folder, expected in (
        ("dygraph", [[[4.5, 5], [1.5, 1]]]),
        ("static", [[[2, 4, 6], [0, 0, 2]], [[6], [1]]]),
    ):
        predictor = LocalPredictor()
        predictor.load_model_config(str(tmp_path / folder))
        found = predictor.predict({"x": rows}, batch=True)
        assert [value.tolist() for value in found.values()] == expected
        if folder == "static":
            assert [*found] == ["d", "t"]


@pytest.fixture(scope="module")
def lod(
    networks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServiceProcess, Path]]:
    """A server of a model with lods, on the port given by the flag."""
    folder = tmp_path_factory.mktemp("lod")
    names = ("--feed_alias_names", "words", "--fetch_alias_names", "longest,doubled")
    server, client = convert_model(networks, "lod/paddle_pdmodel", folder, *names)
    port = free_port()
    with running(server, "--port", str(port), command=SERVE, ready=False) as started:
        started.http_port = port
        started.wait_ready()
        yield started, client


def test_lods_are_passed_to_the_server_and_returned(lod: tuple[ServiceProcess, Path]) -> None:
    server, folder = lod
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    feed: dict[str, Any] = {"words": rows, "words.lod": [0, 2, 3]}
    client = Client()
    client.load_client_config(str(folder))
    client.connect([f"127.0.0.1:{server.http_port}"])
    found = client.predict(feed, batch=True)
    assert found["longest"].tolist() == [[8, 10, 12, 14], [16, 18, 20, 22]]
    np.testing.assert_array_equal(found["doubled"], 2 * rows)
    assert found["doubled.lod"].tolist() == [0, 2, 3]
    # The model declares two dimensions; a program of Paddle may accept others.
    feed["words"] = rows.reshape(3, 1, 4)
    found = client.predict(feed, batch=True)
    np.testing.assert_array_equal(found["doubled"], 2 * feed["words"])
    feed["words"] = rows
    client.release()
    http = HttpClient()
    http.load_client_config(str(folder))
    http.connect([f"127.0.0.1:{server.http_port}"])
    for form in (True, False):
        http.set_http_proto(form)
        assert http.predict(feed, ["doubled"], batch=True) is not None
    (tensor,) = http.predict(feed, ["doubled"], batch=True)["outputs"][0]["tensor"]
    assert (tensor["lod"], tensor["shape"]) == ([0, 2, 3], [3, 4])


def test_check_prints_the_installed_version_of_paddle() -> None:
    command = [sys.executable, "-m", "paddle_serving_server.serve", "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    assert "paddlepaddle      3." in done.stdout
