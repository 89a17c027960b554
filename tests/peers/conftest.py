"""One service for all tests with peers, which never stop it or change its state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.site import Site, serving

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests in this folder need peers."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.peers)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("site")) as found:
        yield found
