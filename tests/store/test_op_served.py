"""An op whose model has its versions in S3: an outage changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.repository.manifest import MANIFEST
from tests.kit.onnx_models import scale
from tests.kit.s3 import S3, empty_list
from tests.services.op_graphs import pids_of, read_once, readers, serving
from tests.services.repository import until
from tests.store.test_source import manifest_of

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(180)]


def test_an_outage_changes_nothing_and_later_versions_are_taken(
    s3: S3, bucket: str, tmp_path: Path
) -> None:
    def put(name: str, version: int) -> None:
        data = scale(tmp_path / "model.onnx", version).read_bytes()
        manifest = manifest_of({"model.onnx": data}, model=name, version=str(version))
        s3.put(f"{bucket}/models/{name}/{version}/model.onnx", data)
        s3.put(f"{bucket}/models/{name}/{version}/{MANIFEST}", manifest)

    def asked_again() -> None:
        s3.requests.clear()
        until(lambda: len(s3.requests) >= 4)

    put("det", 1)
    put("rec", 1)
    with serving(tmp_path, place=f"s3://{bucket}/models") as server:
        workers = pids_of(server, "det"), pids_of(server, "rec")
        with readers(server, 2) as callers:
            callers.wait(1, 1)
            s3.fault = empty_list
            asked_again()
            s3.fault = None
            s3.stop()
            until(lambda: "Could not connect" in server.log())
            assert (pids_of(server, "det"), pids_of(server, "rec")) == workers
            s3.start()
            put("rec", 2)
            callers.wait(1, 2)
            assert pids_of(server, "det") == workers[0]
        assert callers.failures == []
        assert {answer for each in callers.answers for answer in each} == {(1, 1), (1, 2)}
        assert server.stop() == 0
        assert "Traceback" not in server.log()
    s3.stop()  # it starts with what it has served
    with serving(tmp_path, place=f"s3://{bucket}/models") as server:
        assert read_once(server) == (1, 2)
    s3.start()
