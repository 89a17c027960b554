"""Penstock's client against the servers of grpc-js and grpcio."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.client import CallFailed, PipelineClient
from penstock.client.tls import Tls
from penstock.protocols.status import GrpcCode
from tests.peers.front import background
from tests.peers.programs import NODE, node_packages, program
from tests.peers.site import PROTO, Site
from tests.services.process import free_port

GRPCIO_SERVER = Path(__file__).with_name("grpcio_server.py")


@pytest.fixture(scope="module", params=["grpc-js", "grpc-js over TLS", "grpcio", "grpcio over TLS"])
def client(
    request: pytest.FixtureRequest, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PipelineClient]:
    """A client connected to an echo service."""
    server, _, encrypted = request.param.partition(" over ")
    port = free_port()
    options = {"proto": str(PROTO), "port": str(port)}
    if encrypted:
        options |= {"certificate": str(site.certificate), "key": str(site.key)}
    if server == "grpc-js":
        node_packages()
        command = [program("node"), str(NODE / "grpc_server.js")]
    else:
        command = [sys.executable, str(GRPCIO_SERVER)]
    log = tmp_path_factory.mktemp("server") / "log"
    with background([*command, json.dumps(options)], log, port):
        tls = Tls(ca_file=site.certificate, server_name="localhost") if encrypted else None
        with PipelineClient(tls=tls) as made:
            made.connect([f"127.0.0.1:{port}"])
            yield made


def test_the_client_receives_echoed_texts(client: PipelineClient) -> None:
    for number in range(100):
        response = client.predict({"x": f"nonce {number}"}, timeout=10)
        assert list(response.value) == [f"nonce {number}"]


def test_the_client_receives_an_echoed_large_tensor(client: PipelineClient) -> None:
    array = np.arange(1 << 20, dtype=np.float32)
    response = client.predict({"x": array}, pack_tensor_format=True, timeout=20)
    assert np.array_equal(np.array(response.tensors[0].float_data, dtype=np.float32), array)


def test_the_client_has_many_calls_in_flight(client: PipelineClient) -> None:
    futures = [client.predict({"x": f"n{number}"}, asyn=True, timeout=20) for number in range(200)]
    found = [future.result() for future in futures]
    assert [list(response.value) for response in found] == [[f"n{n}"] for n in range(200)]


def test_a_servers_error_raises_call_failed_with_its_status(client: PipelineClient) -> None:
    with pytest.raises(CallFailed, match="as you wish: é") as caught:
        client.predict({"fail": "9"}, timeout=10)
    assert caught.value.status is GrpcCode.FAILED_PRECONDITION


def test_the_client_ends_a_call_at_its_deadline(client: PipelineClient) -> None:
    begun = time.monotonic()
    with pytest.raises(CallFailed) as caught:
        client.predict({"hold": "1"}, timeout=0.3)
    assert caught.value.status is GrpcCode.DEADLINE_EXCEEDED
    assert 0.25 < time.monotonic() - begun < 5
    assert list(client.predict({"x": "after it"}, timeout=10).value) == ["after it"]
