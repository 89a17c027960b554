"""The versions of a repository's model on the live page, in a real Chromium: a rollout, its end,
and a version that cannot be served; on a wide screen and on a phone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.browser import Page, browsing
from tests.peers.test_live_page import CUT, NARROW, WIDE, shot, size
from tests.services.repository import Repository, load, models, serving

pytestmark = [pytest.mark.peers, pytest.mark.timeout(240)]

SETTINGS = {
    "PENSTOCK_BUILD_DAG_EACH_WORKER": "true",
    "PENSTOCK_WORKER_NUM": "2",
    "PENSTOCK_SET": (
        "rollout.m.steps=[50];rollout.m.hold=3600;rollout.m.p99_ratio=1000000"
        ";rollout.m.shadow.share=100"
    ),
}
TEXT = "document.querySelector({!r})?.textContent.includes({!r})"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browsing(tmp_path) as found:
        yield found


def shows(page: Page, selector: str, text: str) -> None:
    page.until(TEXT.format(selector, text))


def row(version: str) -> str:
    """The texts of a version's row in the table."""
    rows = "[...document.querySelectorAll('#versions tbody tr')]"
    cells = "[...row.cells].map((cell) => cell.textContent)"
    return f"{rows}.map((row) => {cells}).find((row) => row[1] === '{version}')"


def check_narrow(page: Page, name: str) -> None:
    size(page, NARROW)
    page.until("JSON.parse(drawn.form)[0] === true")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CUT) == []
    shot(page, f"{name}-narrow")
    size(page, WIDE)
    shot(page, f"{name}-wide")


def test_versions_are_seen_while_they_change(page: Page, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "models")
    repository.add("m", 1)
    with serving(repository, environment=SETTINGS) as server, load(server) as callers:
        callers.wait("1")
        size(page, WIDE)
        page.open(f"{server.http_url}/ui")
        shows(page, "#swaps .bar b", "m version 1")
        page.until(f"{row('1')}?.[3] === '100 %'")

        repository.add("m", 2)
        callers.wait("2")
        page.until(f"{row('1')}?.[3] === '50 %' && {row('2')}?.[3] === '50 %'")
        page.until(f"parseFloat({row('2')}[4]) > 0 && parseFloat({row('2')}[6]) > 0")
        page.until(f"{row('2')}[7] === '100 %'")  # each answer is its version times the input
        shows(page, "#rollouts .here", "50 %")
        shows(page, "#rollouts caption", "and lasts at least 3,600 s")
        shows(page, "#rollouts details", "answers that differ")
        check_narrow(page, "versions-rollout")

        assert models(server, "rollback", "m").returncode == 0
        shows(page, "#rollouts p", "taken back: an operator took it back")
        page.until(f"{row('2')} === undefined && {row('1')}[3] === '100 %'")
        repository.put("m", 3, b"no model")
        shows(page, "#unserved", "m version 3 is not served:")
        shows(page, "#swaps .bar", "✕ failed")
        # Of the version that was taken back: it came by the first change, and ended by the second.
        whole = "[...document.querySelectorAll('#swaps > ul > li')].map((each) => each.textContent)"
        page.until(
            f"{whole}.some((text) => ['fetched', 'verified', 'opened', 'started', 'warmed up',"
            " 'swapped'].every((step) => text.includes(step)) && text.includes('m version 2'))"
        )
        page.until(
            f"{whole}.some((text) => text.includes('m: version 2 ends') && text.includes('✓ done')"
            " && text.includes('drained') && text.includes('ended'))"
        )
        check_narrow(page, "versions-failed")
        assert page.console_errors == []
    assert callers.failures == []
