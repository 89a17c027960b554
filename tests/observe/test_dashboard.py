"""The Grafana dashboard and the documented alerts query only exported metrics and labels."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from penstock.executors.workers.places import Places
from penstock.observe.metrics import exposition
from penstock.security.keys import line_of, new_key
from tests.documents import ROOT, blocks_of
from tests.observe.test_metrics import families, report
from tests.service.scripts import NAME, fetch, fetch_as, script
from tests.services.process import running
from tests.services.repository import Repository, serving

DASHBOARD = json.loads((ROOT / "deploy/grafana/penstock.json").read_text())
OF_PROMETHEUS = {"job", "instance", "le"}
RULES = next(
    each for each in blocks_of(ROOT / "docs/metrics.md") if each.name == "penstock.rules.yml"
)

_SELECTOR = re.compile(r"(penstock_[a-z_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)(=~|=|!=)"([^"]*)"')


def expressions() -> list[str]:
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    variables = [each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    found += [each["definition"] for each in variables]
    (group,) = YAML(typ="safe").load(RULES.text)["groups"]
    return found + [rule["expr"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """A real service's metrics: names, their labels and the labels' values."""
    hooks = 'def preprocess(self, i, a, b):\n    raise ValueError("no")'
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    folder = tmp_path_factory.mktemp("service")
    key = new_key()
    (folder / "keys.txt").write_text(line_of("ann", key, ()) + "\n")
    secured = {"PENSTOCK_SET": "security.keys=keys.txt;security.open=/metrics"}
    with running(script(folder, hooks), environment=secured) as server:
        body = b'{"key": ["x"], "value": ["1"]}'
        answer = fetch_as(f"{server.http_url}/{NAME}/prediction", body, X_API_Key=key)
        assert answer.json["err_no"] != 0
        assert fetch(f"{server.http_url}/nowhere").status == 401
        add_to(found, fetch(f"{server.http_url}/metrics").body)
    repository = Repository(folder / "models")
    repository.put("m", 1, b"no model")
    with serving(repository, mode="explicit") as server:
        assert fetch(f"{server.http_url}/v2/repository/models/m/load", b"{}").status == 500
        add_to(found, fetch(f"{server.http_url}/metrics").body)
    rolled = {"name": "m", "version": "2", "state": "running", "step": "1"}
    whole = report(rollouts=[rolled])
    whole["graphs"][0]["ops"][0]["places"] = Places(1, 0.0).plain(0.0)[0]  # an op in a process
    add_to(found, exposition(whole)[1])
    return found


def add_to(found: dict[str, dict[str, set[str]]], text: bytes) -> None:
    for family in families(text).values():
        for sample in family.samples:
            for label, value in sample.labels.items():
                found[sample.name][label].add(value)
            found[sample.name]["le"].discard("")


@pytest.mark.real
@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_of_an_expression_is_exported(
    expression: str, exported: dict[str, dict[str, set[str]]]
) -> None:
    selectors = _SELECTOR.findall(expression)
    assert selectors
    labels: set[str] = set()
    for name, matchers in selectors:
        assert name in exported
        labels |= set(exported[name])
        for label, sign, value in _MATCHER.findall(matchers):
            assert label in {*exported[name], *OF_PROMETHEUS}
            if sign == "=":
                assert value in exported[name][label]
    for grouped in re.findall(r"by \(([^)]*)\)", expression):
        assert {each.strip() for each in grouped.split(",")} <= labels | {"job"}


def test_legends_use_only_grouping_labels() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            kept = set(
                re.findall(r"[a-z]+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"])))
            )
            assert set(re.findall(r"{{([a-z]+)}}", target["legendFormat"])) <= kept


def test_panels_do_not_overlap_and_have_titles() -> None:
    occupied: set[tuple[int, int]] = set()
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(identities) == len({*identities})
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert panel["title"]
        assert at["x"] + at["w"] <= 24
        assert not occupied & covered
        occupied |= covered


def test_the_documented_path_of_the_dashboard_exists() -> None:
    assert "deploy/grafana/penstock.json" in (ROOT / "docs/metrics.md").read_text()
    assert Path(ROOT / "deploy/grafana/penstock.json").is_file()
