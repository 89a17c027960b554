"""grpc-js, the gRPC of Node.js, as a client of the service."""

from __future__ import annotations

import pytest

from tests.peers.programs import Checks, names_in, node_checks, node_packages
from tests.peers.site import Site


@pytest.fixture(scope="module")
def kinds(site: Site) -> Checks:
    node_packages()
    return node_checks("grpc_kinds.js", site.for_script())


@pytest.fixture(scope="module")
def pipeline(site: Site) -> Checks:
    node_packages()
    return node_checks("grpc_pipeline.js", site.for_script())


@pytest.mark.parametrize("name", names_in("grpc_kinds.js"))
def test_grpc_js_makes_calls_of_every_kind(kinds: Checks, name: str) -> None:
    kinds.assert_good(name)


@pytest.mark.parametrize("name", names_in("grpc_pipeline.js"))
def test_grpc_js_calls_the_pipeline(pipeline: Checks, name: str) -> None:
    pipeline.assert_good(name)
