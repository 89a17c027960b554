"""The OCR example on a cluster; run by test_ocr_on_ray.py, where there is only the loopback."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.examples.ocr_judge import check_same_lines, reference_lines
from tests.examples.test_ocr_service import PICTURES, SCRIPT, over_http
from tests.kit.ray_cluster import cluster
from tests.service.scripts import fetch
from tests.services.process import ServiceProcess, running

SETTINGS = "op.rec.executor=ray;op.rec.ray.address=auto;op.rec.ray.placement=spread"
NAMES = ("plain.png", "columns.png", "tilted.png", PICTURES.SCAN)


@pytest.mark.timeout(400)
def test_pictures_are_read_on_two_nodes(folder: Path) -> None:
    with cluster() as ray:
        environment = {"RAY_ADDRESS": ray.address, "PENSTOCK_SET": SETTINGS}
        with running(SCRIPT, environment=environment, timeout=120) as server:
            nodes = {each.partition(",")[0] for each in places(server)}
            assert len(nodes) == 2
            with ThreadPoolExecutor(4) as pool:
                read = [pool.submit(over_http, server, (folder / x).read_bytes()) for x in NAMES]
            for name, each in zip(NAMES, read, strict=True):
                err_no, err_msg, values = each.result()
                assert (err_no, err_msg) == (0, "")
                check_same_lines(json.loads(values["result"]), reference_lines(folder / name))
            assert server.stop() == 0
            assert server.leftovers() == []


def places(server: ServiceProcess) -> list[str]:
    """Where the recogniser's workers run."""
    (graph,) = fetch(f"{server.http_url}/status").json["graphs"]
    (rec,) = [each for each in graph["ops"] if each["name"] == "rec"]
    return [each["where"] for each in rec["loaded"] if each]
