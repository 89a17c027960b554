"""A service of a repository in S3: outages, lies and damaged versions change nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.repository.manifest import MANIFEST
from tests.kit.onnx_models import scale
from tests.kit.s3 import S3, empty_list, failing
from tests.services.process import running
from tests.services.repository import index, load, once, states, until
from tests.store.test_source import manifest_of

SERVE = (sys.executable, "-m", "penstock", "serve", "--repository-poll-secs", "0.2")

pytestmark = pytest.mark.real


@pytest.mark.timeout(180)
def test_what_a_store_does_changes_only_what_it_should(s3: S3, bucket: str, tmp_path: Path) -> None:
    def put(version: int, *, wrong: bool = False) -> None:
        data = scale(tmp_path / "model.onnx", version).read_bytes()
        manifest = manifest_of({"model.onnx": data}, version=str(version))
        if wrong:
            data = data[:-1] + b"\0"
        s3.put(f"{bucket}/models/m/{version}/model.onnx", data)
        s3.put(f"{bucket}/models/m/{version}/{MANIFEST}", manifest)

    def asked_again() -> None:
        s3.requests.clear()
        until(lambda: len(s3.requests) >= 3)

    put(1)
    with running(
        Path("poll"),
        command=(*SERVE, "--model-repository", f"s3://{bucket}/models", "--model-control-mode"),
        cwd=tmp_path,
        environment={"XDG_CACHE_HOME": str(tmp_path / "cache")},
    ) as server:
        with load(server, callers=2) as callers:
            callers.wait("1")
            s3.fault = empty_list
            asked_again()
            s3.fault = failing
            asked_again()
            s3.fault = None
            s3.stop()
            until(lambda: "Could not connect" in server.log())
            s3.start()
            put(2, wrong=True)
            until(lambda: "sha256" in index(server).get("2", {}).get("reason", ""))
            asked_again()
            assert set(callers.versions) == {"1"}
            put(3)
            callers.wait("3")
        assert callers.failures == []
        assert set(callers.versions) == {"1", "3"}
        until(lambda: states(server)["3"] == "READY")
        s3.stop()
        assert once(server)[0] == 200
        assert server.stop() == 0
        assert server.leftovers() == []
        log = server.log()
        assert log.count("lists no files, though it had some") == 1
        assert log.count("model.onnx has the sha256") == 1
        assert "Traceback" not in log
        assert "threads run already" not in log  # its processes were forked
    s3.start()
