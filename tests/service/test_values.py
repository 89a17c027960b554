"""A model that fails because of an input's values: an error that invites no retry, everywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import httpx
import numpy as np
import pytest

from tests.laws.bare import Bare
from tests.laws.doors import DOORS, Refused
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

SERVE: Final = (sys.executable, "-m", "penstock", "serve", "--model")
X: Final = np.ones((1, 2), np.float32)
FEEDS: Final = {
    "chosen-rows": ({"x": X, "i": np.array([0, 99])}, {"x": X, "i": np.array([0])}),
    "reshaped": ({"x": X, "s": np.array([5, 7])}, {"x": X, "s": np.array([1, 2])}),
}
"""Of each model, a request that it fails on, and one that it answers with x. Of the first, ONNX
Runtime says that the argument is invalid; of the second, only that it fails."""

HTTP: Final = ("plain-json", "plain-msgpack", "oip-json", "oip-binary")
PIPELINE: Final = ("pipeline-grpc", "pipeline-texts", "pipeline-http")
ERRORS: Final = {
    "chosen-rows": {
        **dict.fromkeys(HTTP, "400: "),
        **dict.fromkeys(PIPELINE, "5000: "),
        "oip-grpc": "StatusCode.INVALID_ARGUMENT",
        "baidu-std": "INVALID_ARGUMENT: ",
    },
    "reshaped": {
        **dict.fromkeys(HTTP, "500: "),
        **dict.fromkeys(PIPELINE, "9000: "),
        "oip-grpc": "StatusCode.INTERNAL",
        "baidu-std": "INTERNAL: ",
    },
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bare]:
    folder = tmp_path_factory.mktemp("models")
    return {name: Bare.open(name, folder) for name in FEEDS}


@pytest.fixture(scope="module")
def server(models: dict[str, Bare]) -> Iterator[ServiceProcess]:
    first, *others = (each.file for each in models.values() if each.file is not None)
    more = [text for each in others for text in ("--model", str(each))]
    with running(first, *more, command=SERVE) as started:
        yield started


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("model", FEEDS)
def test_values_that_a_model_fails_on_are_no_error_that_invites_a_retry(
    server: ServiceProcess, models: dict[str, Bare], model: str, name: str
) -> None:
    bad, good = FEEDS[model]
    door = DOORS[name](server)
    try:
        with pytest.raises(Refused) as raised:
            door.call(models[model], bad)
        assert ERRORS[model][name] in str(raised.value)
        assert np.array_equal(door.call(models[model], good)["y"], X)
    finally:
        door.close()


def test_the_model_server_s_protocol_over_http_says_the_same(server: ServiceProcess) -> None:
    tensors = [
        {"name": "x", "elem_type": 1, "shape": [1, 2], "float_data": [1, 1]},
        {"name": "s", "elem_type": 0, "shape": [2], "int64_data": [5, 7]},
    ]
    url = f"{server.http_url}/GeneralModelService/inference"
    reply = httpx.post(url, json={"tensor": tensors, "model": "reshaped"}, trust_env=False)
    assert (reply.status_code, reply.json()["err_no"]) == (500, 9000)
    assert "Retry-After" not in reply.headers
