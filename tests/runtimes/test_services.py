"""The same network in the form of every library, as an op of a service."""

import sys
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest

from penstock import PipelineClient
from penstock.client import response_arrays
from tests.models.networks import answers, feed_of
from tests.runtimes.forms import needs, one_form_each
from tests.runtimes.test_same_answers import TOLERANCE
from tests.services.process import running

SERVICE = """
from penstock import Model, Service

net = Model({path!r}, name="net", workers=2, batch=8)
Service("nets", net, dag={{"is_thread_op": {threads}}}).run()
"""


@pytest.mark.real
@pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
@pytest.mark.parametrize(("runtime", "form"), one_form_each())
def test_an_op_returns_the_networks_results_to_many_clients(
    networks: Path, tmp_path: Path, runtime: str, form: str, threads: bool
) -> None:
    path = tmp_path / "service.py"
    path.write_text(SERVICE.format(path=str(networks / "sequence" / form), threads=threads))
    with running(path) as server, PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        feeds = [feed_of("sequence", 1 + at % 3, 4 + at % 3, at) for at in range(40)]
        futures_of_feeds = [
            client.predict(feed, asyn=True, pack_tensor_format=True, timeout=30) for feed in feeds
        ]
        for feed, future in zip(feeds, futures_of_feeds, strict=True):
            got = response_arrays(future.result())
            for name, value in answers("sequence", feed).items():
                np.testing.assert_allclose(got[name], value, rtol=0, atol=TOLERANCE)
        wrong = {"words": np.ones((1, 4), np.float32), "scale": np.ones((1, 1), np.float32)}
        refused = client.predict(wrong, pack_tensor_format=True, timeout=30)
        assert refused.err_no == 5000
        assert "expected int64[?, ?], got float32[1, 4]" in refused.err_msg
        warned = "keeps Python's global lock" in server.log()
        assert warned == (runtime == "paddle" and threads)
        assert server.stop() == 0
        assert "Traceback" not in server.log()


DETECTOR = """
from penstock import Op, WebService

NAME = "save_infer_model/scale_0.tmp_1"

class Boxes(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (given,) = input_dicts.values()
        return {{"image": given["image"]}}, False, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        lod = fetch_data[NAME + ".lod"].tolist()
        return {{"lod": str(lod), "boxes": str(fetch_data[NAME].tolist())}}, None, ""

class Detector(WebService):
    def get_pipeline_response(self, read_op):
        return Boxes("boxes", input_ops=[read_op])

conf = {{"model_config": {path!r}, "fetch_list": [NAME]}}
entry = {{"batch_size": 4, "auto_batching_timeout": 50, "local_service_conf": conf}}
service = Detector("detector")
service.prepare_pipeline_config(
    yml_dict={{"rpc_port": 0, "dag": {{"is_thread_op": False}}, "op": {{"boxes": entry}}}}
)
service.run_service()
"""


@pytest.mark.real
@needs("paddle")
def test_each_image_of_a_batch_gets_its_boxes_and_their_lod(networks: Path, tmp_path: Path) -> None:
    path = tmp_path / "service.py"
    path.write_text(DETECTOR.format(path=str(networks / "boxes/paddle_json")))
    with running(path) as server, PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        pictures = [[0, 5, 6, 7], [0, 0, 8, 0], [0, 0, 0, 0], [9, 9, 9, 9]] * 3
        futures = [
            client.predict(
                {"image": np.array([each], np.float32)},
                asyn=True,
                pack_tensor_format=True,
                timeout=30,
            )
            for each in pictures
        ]
        for picture, future in zip(pictures, futures, strict=True):
            reply = future.result()
            assert reply.err_no == 0, reply.err_msg
            got = dict(zip(reply.key, reply.value, strict=True))
            flat = np.array(picture, np.float32)
            columns = np.flatnonzero(flat > 0)
            assert got["lod"] == str([0, len(columns)])
            assert got["boxes"] == str([[float(flat[at]), float(at)] for at in columns])
        assert server.log().count("matched by position") == 1
        assert server.stop() == 0


ENCRYPTED = """
import json
from penstock import Op, WebService

class Price(WebService):
    def get_pipeline_response(self, read_op):
        return Op("net", input_ops=[read_op])

entry = {{
    "use_encryption_model": True,
    "encryption_key": "env:MODEL_KEY",
    "local_service_conf": {{"model_config": {path!r}{more}}},
}}
service = Price("price")
service.prepare_pipeline_config(
    yml_dict={{"rpc_port": 0, "dag": {{"is_thread_op": False}}, "op": {{"net": entry}}}}
)
service.run_service()
"""


@pytest.mark.real
@needs("paddle")
@pytest.mark.timeout(240)  # up to five processes import the library in sequence
@pytest.mark.parametrize("way", ["process", "started server", "penstock serve"])
def test_a_service_runs_an_encrypted_model_and_never_logs_its_key(
    networks: Path, tmp_path: Path, way: str
) -> None:
    folder = networks / "encrypted/paddle"
    key = b64encode((folder / "key").read_bytes()).decode()
    command = (sys.executable,)
    if way == "penstock serve":
        path, command = folder, (*command, "-m", "penstock", "serve", "--model")
        arguments = ["--use_encryption_model", "--encryption_key", "env:MODEL_KEY"]
    else:
        path, arguments = tmp_path / "service.py", []
        more = ', "client_type": "grpc"' if way == "started server" else ""
        path.write_text(ENCRYPTED.format(path=str(folder), more=more))
    feed = feed_of("regression", 3)
    variables = {"MODEL_KEY": key}
    start = running(
        path, *arguments, command=command, environment=variables, cwd=tmp_path, timeout=150
    )
    with start as server:
        with PipelineClient() as client:
            client.connect([server.rpc_endpoint])
            got = response_arrays(client.predict(feed, pack_tensor_format=True, timeout=30))
        np.testing.assert_allclose(got["price"], answers("regression", feed)["price"], atol=1e-5)
        assert server.stop() == 0
        assert key not in server.log()
