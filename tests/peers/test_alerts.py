"""The documented alerts, run by Prometheus's own tool."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from tests.documents import ROOT, blocks_of
from tests.peers.programs import run

(RULES,) = (
    each for each in blocks_of(ROOT / "docs/metrics.md") if each.name == "penstock.rules.yml"
)
TESTS = ROOT / "tests/deploy/alerts.yml"


def test_each_alert_is_quiet_and_then_fires(tmp_path: Path) -> None:
    (tmp_path / "penstock.rules.yml").write_text(RULES.text)
    shutil.copy(TESTS, tmp_path)
    run("promtool", "check", "rules", tmp_path / "penstock.rules.yml").good()
    run("promtool", "test", "rules", tmp_path / "alerts.yml").good()


def test_every_alert_is_tested() -> None:
    (group,) = yaml.safe_load(RULES.text)["groups"]
    checks = [
        each
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for each in test["alert_rule_test"]
    ]
    for expected in (False, True):
        tested = {each["alertname"] for each in checks if bool(each["exp_alerts"]) is expected}
        assert tested == {each["alert"] for each in group["rules"]}
