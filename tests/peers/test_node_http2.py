"""Node's HTTP/2 client."""

from __future__ import annotations

import pytest

from tests.peers.programs import Checks, names_in, node_checks
from tests.peers.site import Site


@pytest.fixture(scope="module")
def checks(site: Site) -> Checks:
    return node_checks("http2_client.js", site.for_script())


@pytest.mark.parametrize("name", names_in("http2_client.js"))
def test_nodes_http2_client_works_with_the_service(checks: Checks, name: str) -> None:
    checks.assert_good(name)
