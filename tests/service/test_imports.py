"""A service imports nothing for what it does not use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.scripts import PENSTOCK, fetch
from tests.services.process import running

pytestmark = pytest.mark.real

UNUSED = (
    "penstock.client.call",
    "penstock.client.channels",
    "penstock.client.client",
    "penstock.client.remote",
    "penstock.client.sdk",
    "penstock.executors.remote",
    "penstock.api.stored_infer",
    "penstock.executors.external_store.counts",
    "penstock.executors.external_store.engine",
    "penstock.executors.external_store.redis_store",
    "penstock.executors.external_store.remote",
    "penstock.executors.external_store.server",
    "penstock.executors.external_store.worker",
    "penstock.executors.ray.executor",
    "penstock.executors.ray.link",
    "penstock.protocols.stored_infer",
    "penstock.repository.comparison",
    "penstock.repository.manifest",
    "penstock.repository.pbtxt",
    "penstock.repository.rollout",
    "penstock.service.catalog",
    "penstock.service.hot_loading",
    "penstock.service.op_models",
    "penstock.service.repository",
    "penstock.service.rollout",
    "penstock.service.shadow",
    "penstock.store",
)

SCRIPT = """
import sys
from penstock import App

app = App("plain", supervised=True)

@app.route("/modules")
def modules(text: str) -> list[str]:
    return [each for each in sys.modules if each.startswith("penstock.")]
"""


def test_a_service_whose_models_do_not_change_imports_nothing_for_that(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(SCRIPT)
    with running(path, command=PENSTOCK) as server:
        answer = fetch(f"{server.http_url}/modules", b'{"text": ""}')
        assert server.stop() == 0
    assert answer.status == 200
    assert "penstock.service.serving" in answer.json
    assert not {*answer.json} & {*UNUSED}
