"""The hook ``close`` of ops and served classes runs once in each worker, in every executor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.services.process import running

SERVICE = """\
import os
from pathlib import Path

from penstock import App, Op, Service, run

OUT = Path(__file__).parent


def say(name):
    with open(OUT / name, "a") as file:
        file.write("closed\\n")


class Plain(Op):
    def close(self):
        say(self.name)
        raise OSError("of the hook")


class Waits(Op):
    async def process(self, feed_batch, log_id):
        return {}

    async def close(self):
        say(self.name)


class Typed:
    def predict(self, x: int) -> int:
        return x

    def close(self):
        say("typed")


app = App("app", http_port=0)
app.route("/typed", workers=2)(Typed)
last = Waits("coroutine", [Plain("inline", [Plain("thread", [Plain("process")])])])
ops = {name: {"executor": name} for name in ("inline", "thread", "process")}
ops["thread"]["concurrency"] = 2
ops["coroutine"] = {"concurrency": 2}
ops["process"]["concurrency"] = 2
run(app, Service("graph", last, op={PLACES}))
"""


@pytest.mark.real
@pytest.mark.parametrize("supervised", [True, False])
def test_close_runs_once_in_each_worker_at_a_stop(supervised: bool, tmp_path: Path) -> None:
    path = tmp_path / "service.py"
    places = "ops" if supervised else "{**ops, 'process': {'concurrency': 2}}"
    path.write_text(SERVICE.replace("{PLACES}", places))
    with running(path, command=(sys.executable,)) as server:
        assert not list(tmp_path.glob("thread"))
        assert server.stop() == 0, server.log()
        counts = {
            name: (tmp_path / name).read_text().count("closed")
            for name in ("inline", "thread", "process", "coroutine", "typed")
        }
        assert counts == {"inline": 1, "thread": 2, "process": 2, "coroutine": 2, "typed": 2}
        assert "close raised" in server.log()


HANGS = """\
import threading

from penstock import Op, Service


class Hangs(Op):
    def close(self):
        threading.Event().wait()


op = {"op": {"executor": "EXECUTOR"}}
Service("graph", Hangs("op"), http_port=0, drain_timeout=2, op=op).run()
"""


@pytest.mark.real
@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
def test_a_close_that_never_returns_does_not_prevent_the_exit(
    executor: str, tmp_path: Path
) -> None:
    path = tmp_path / "service.py"
    path.write_text(HANGS.replace("EXECUTOR", executor))
    with running(path, command=(sys.executable,)) as server:
        assert server.stop() == 0
