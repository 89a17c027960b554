"""Answers conform to the service's description, as far as Schemathesis finds in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.security.keys import new_key
from tests.schemathesis.judge import asking_for, judge
from tests.services.process import running

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

HERE = Path(__file__).parent
FAILING_SERVICE = """
from penstock import App

app = App("liar")

@app.route("/raises")
def raises(x: int) -> int:
    return 1 // x

app.run()
"""


@pytest.mark.parametrize(
    "script", ["service.py", pytest.param("models.py", marks=pytest.mark.long)]
)
def test_every_answer_conforms_to_the_description(script: str) -> None:
    with running(HERE / script) as server:
        verdict = judge(server.http_url, cases=10, seed=1, timeout=150)
        assert verdict.good, verdict.report
        assert verdict.cases > 100
        assert server.stop() == 0
        assert "please report this" not in server.log()


@pytest.mark.long
def test_no_route_answers_without_a_key_or_in_a_way_that_is_not_described() -> None:
    key = new_key()
    with running(HERE / "service.py", environment=asking_for(key)) as server:
        verdict = judge(server.http_url, cases=10, seed=1, timeout=150, key=key)
        assert verdict.good, verdict.report
        assert verdict.cases > 100
        assert server.stop() == 0
        assert "please report this" not in server.log()
        assert key not in server.log()


def test_a_server_error_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "service.py"
    script.write_text(FAILING_SERVICE)
    with running(script) as server:
        verdict = judge(server.http_url, cases=10, seed=1, timeout=150)
    assert not verdict.good
    assert "Server error" in verdict.report
