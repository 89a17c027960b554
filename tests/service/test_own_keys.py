"""An op's own keys in ``config.yml``, in every executor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.service.scripts import post
from tests.services.process import running

SCRIPT = """
from penstock import Op, WebService


class Detect(Op):
    config_keys = {"threshold": 0.5, "labels": ["a"]}

    def init_op(self):
        self.shown = f"{self.config['threshold']} {self.config['labels']}"

    def preprocess(self, input_dicts):
        return {self.name: self.shown + ("" if self.config["threshold"] else " none")}


class Last(Op):
    def preprocess(self, input_dicts):
        return {key: text for feed in input_dicts.values() for key, text in feed.items()}


class Shown(WebService):
    def get_pipeline_response(self, read_op):
        ops = [Detect(name=name, input_ops=[read_op]) for name in ("one", "two", "three")]
        return Last(name="last", input_ops=ops)


if __name__ == "__main__":
    shown = Shown(name="shown")
    shown.prepare_pipeline_config("config.yml")
    shown.run_service()
"""
CONFIG = """
service: "service.py:Shown"
name: shown
rpc_port: 0
http_port: 0
dag: {is_thread_op: true}
op:
  one: {threshold: 0.9, executor: process}
  two: {labels: [b, c]}
"""


@pytest.mark.real
@pytest.mark.parametrize("file", ["config.yml", "service.py"])
def test_own_keys_reach_ops_in_threads_and_processes(tmp_path: Path, file: str) -> None:
    (tmp_path / "service.py").write_text(SCRIPT)
    (tmp_path / "config.yml").write_text(CONFIG)
    command = (sys.executable, "-m", "penstock", "run")
    flags = ("-o", "op.two.threshold=0")
    with running(tmp_path / file, *flags, command=command, cwd=tmp_path) as server:
        reply = post(server, "shown", x="1").json
    assert dict(zip(reply["key"], reply["value"], strict=True)) == {
        "one": "0.9 ['a']",
        "two": "0.0 ['b', 'c'] none",
        "three": "0.5 ['a']",
    }
