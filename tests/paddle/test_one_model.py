"""The single-model methods of ``WebService``: scripts without a graph, and their JSON format."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_serving_client.convert import main as convert
from paddle_serving_server.web_service import WebService
from tests.models.networks import answers, feed_of
from tests.runtimes.forms import needs
from tests.service.models import scale
from tests.services.process import ServiceProcess, running

CONF = """
feed_var { name: "x" alias_name: "row" feed_type: 1 shape: 3 }
fetch_var { name: "y" alias_name: "doubled" fetch_type: 1 shape: 3 }
fetch_var { name: "twice" alias_name: "quadrupled" fetch_type: 1 shape: 3 }
"""
PLAIN = """
from paddle_serving_server.web_service import WebService

service = WebService(name="double")
service.load_model_config("model")
service.prepare_server(workdir="workdir", port=9292, device="cpu")
service.run_rpc_service()
service.run_web_service()
"""
HOOKS = """
import sys
import numpy as np
from paddle_serving_server.web_service import WebService

class Uci(WebService):
    def load(self):
        self.offset = 1.0

    def preprocess(self, feed=[], fetch=[]):
        if not feed:
            raise ValueError("no rows")
        rows = [np.array(each["words"].split(), dtype="float32") for each in feed]
        return {"x": np.stack(rows)}, fetch, True

    def postprocess(self, feed=[], fetch=[], fetch_map=None):
        prices = fetch_map["price"] + self.offset
        return [{"of": len(each["words"].split()), "price": float(price[0])}
                for each, price in zip(feed, prices)]

uci = Uci(name="uci")
uci.load()
uci.load_model_config(sys.argv[1])
uci.prepare_server(workdir="workdir", port=9292)
uci.run_debugger_service()
uci.run_web_service()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script and its model."""
    folder = tmp_path_factory.mktemp("double")
    (folder / "model").mkdir()
    (folder / "model" / "serving_server_conf.prototxt").write_text(CONF)
    scale(folder / "model" / "model.onnx", 2.0)
    (folder / "service.py").write_text(PLAIN)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ServiceProcess]:
    with running(folder / "service.py") as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log()


def asked(server: ServiceProcess, name: str, body: str) -> tuple[int, Any]:
    """The status and the answer that curl gets."""
    url = f"{server.http_url}/{name}/prediction"
    command = ["curl", "-s", "--noproxy", "*", "-H", "Content-Type:application/json"]
    command += ["-w", "\n%{http_code}", "-X", "POST", "-d", body, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(text)


ROWS = '"feed": [{"row": [1, 2, 3]}, {"row": [[4], [5], [6]]}]'


@pytest.mark.real
@pytest.mark.parametrize(
    ("body", "status", "result"),
    [
        (f'{{{ROWS}, "fetch": ["doubled"]}}', 200, {"doubled": [[2, 4, 6], [8, 10, 12]]}),
        (f'{{{ROWS}, "fetch": ["other"]}}', 200, "has outputs"),
        ('{"feed": [{"row": [1, 2]}], "fetch": []}', 200, "cannot reshape array of size 2"),
        ('{"feed": [{"x": [1, 2, 3]}], "fetch": []}', 200, "Wrong feed name: x"),
        ('{"feed": [], "fetch": []}', 200, "empty input"),
        (f"{{{ROWS}}}", 400, "lacks 'fetch'"),
        ('{"fetch": []}', 400, "lacks 'feed'"),
        ("no JSON", 400, "the body"),
    ],
)
def test_rows_are_answered_as_the_original_did(
    service: ServiceProcess, body: str, status: int, result: Any
) -> None:
    found, answer = asked(service, "double", body)
    assert found == status, answer
    if isinstance(result, str):
        assert result in answer["result" if status == 200 else "message"]
    else:
        assert answer == {"result": result}


@pytest.mark.real
@needs("paddle")
def test_a_script_with_hooks_and_a_model_of_paddle(networks: Path, tmp_path: Path) -> None:
    saved = ["--dirname", str(networks / "regression/paddle_combined")]
    saved += ["--feed_alias_names", "x", "--fetch_alias_names", "price"]
    model, client = tmp_path / "serving_server", tmp_path / "serving_client"
    assert convert([*saved, "--serving_server", str(model), "--serving_client", str(client)]) == 0
    script = tmp_path / "web_service.py"
    script.write_text(HOOKS)
    feed = feed_of("regression", 2)
    expected = answers("regression", feed)["price"] + 1.0
    rows = [{"words": " ".join(map(str, row))} for row in feed["x"].tolist()]
    with running(script, str(model), timeout=120) as server:
        body = json.dumps({"feed": rows, "fetch": ["price"]})
        status, answer = asked(server, "uci", body)
        assert status == 200, answer
        prices = [each["price"] for each in answer["result"]]
        np.testing.assert_allclose(prices, expected[:, 0], atol=1e-4)
        assert [each["of"] for each in answer["result"]] == [13, 13]
        assert asked(server, "uci", '{"feed": [], "fetch": []}') == (200, {"result": "no rows"})
        status, answer = asked(server, "uci", '{"feed": [{}], "fetch": []}')
        assert (status, answer["error"]) == (500, "hook_failed")
        assert server.stop() == 0


def test_the_configuration_is_read_before_anything_is_started(folder: Path) -> None:
    service = WebService(name="double")
    with pytest.raises(ValueError, match=r"call load_model_config\(\)"):
        service.prepare_server()
    with pytest.raises(ValueError, match=r"call prepare_server\(\)"):
        service.run_web_service()
    for wrong in (str(folder / "service.py"), [str(folder / "model")] * 2):
        with pytest.raises(ValueError, match="the folder of one model"):
            service.load_model_config(wrong)
    with pytest.raises(ValueError, match=r"no serving_server_conf\.prototxt"):
        service.load_model_config(str(folder))
    service.load_model_config([str(folder / "model")])
    assert [*service.feed_vars] == ["row"]
    assert [*service.fetch_vars] == ["doubled", "quadrupled"]
    with pytest.raises(ValueError, match="use_lite is not available"):
        service.prepare_server(use_lite=True)


@pytest.mark.parametrize(
    ("cards", "given", "gpu", "expected"),
    [
        (None, {}, True, (0, "")),
        ("0,1", {}, True, (1, "0,1")),
        ([2, 3], {"use_trt": True}, True, (2, "2, 3")),
        (None, {"gpuid": 4}, True, (1, "4")),
        ("0", {}, False, (0, "")),
    ],
)
def test_where_the_model_runs(
    folder: Path, cards: Any, given: dict[str, Any], gpu: bool, expected: tuple[int, str]
) -> None:
    service = WebService(name="double")
    service.load_model_config(str(folder / "model"))
    if cards is not None:
        service.set_gpus(cards)
    service.prepare_server(**given)
    service.run_debugger_service(gpu=gpu)
    assert service._config is not None
    conf = service._config["op"]["prediction"]["local_service_conf"]
    assert (conf["device_type"], conf["devices"]) == expected
