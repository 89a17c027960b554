"""The client of a model server, against servers made with grpcio."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from penstock.client import CallFailed
from penstock.client.endpoints import parse_endpoints
from penstock.client.model_client import METHOD, ModelClient, Variant
from penstock.client.model_feeds import ModelFeeds
from penstock.errors import InputMismatch, RequestError, Undecodable
from penstock.protocols.standard_messages import general_model_messages
from penstock.protocols.status import GrpcCode
from penstock.runtimes.prototxt import parse_model_conf

from .conftest import TIMEOUT, Service, Stuck

Serve = Callable[..., Service]
REQUEST, RESPONSE = general_model_messages()
FEEDS = ModelFeeds(
    parse_model_conf(
        'feed_var { name: "x" feed_type: 1 shape: 2 } fetch_var { name: "y" alias_name: "twice" }'
    )
)
FEED = {"x": np.float32([[1, 2]])}


def twice(request: bytes, context: grpc.ServicerContext) -> bytes:
    received_request = REQUEST.FromString(request)
    (tensor,) = received_request.tensor
    doubled = {
        "name": "y",
        "elem_type": 1,
        "shape": tensor.shape,
        "float_data": [2 * each for each in tensor.float_data],
    }
    outputs = [{"tensor": [doubled], "engine_name": "m"}]
    return RESPONSE(outputs=outputs, log_id=received_request.log_id).SerializeToString()


def variant(service: Service | str, tag: str = "v", weight: int = 1) -> Variant:
    endpoint = service if isinstance(service, str) else service.endpoint
    return Variant(tag=tag, endpoints=parse_endpoints([endpoint]), weight=weight)


def test_predict_sends_fetch_names_and_log_id_and_returns_arrays(serve: Serve) -> None:
    service = serve(twice)
    with ModelClient(FEEDS, [variant(service)]) as client:
        found = client.predict(FEED, ["twice"], log_id=2**63, timeout=TIMEOUT)
    assert found.tag == "v"
    np.testing.assert_array_equal(found.outputs["m"]["twice"], np.float32([[2, 4]]))
    assert service.paths == {METHOD}
    received_request = REQUEST.FromString(service.received.get_nowait())
    assert (received_request.fetch_var_names, received_request.log_id) == (["twice"], 2**63)


def test_many_threads_share_a_client(serve: Serve) -> None:
    with ModelClient(FEEDS, [variant(serve(twice))]) as client, ThreadPoolExecutor(8) as pool:

        def doubled_value(value: int) -> float:
            feed = {"x": np.float32([[value, 0]])}
            return float(client.predict(feed, timeout=TIMEOUT).outputs["m"]["twice"][0, 0])

        assert list(pool.map(doubled_value, range(64))) == [2.0 * value for value in range(64)]


def test_calls_are_distributed_by_the_variants_weights(serve: Serve) -> None:
    variants = [
        variant(serve(twice), tag, weight) for tag, weight in (("a", 1), ("b", 3), ("none", 0))
    ]
    with ModelClient(FEEDS, variants) as client:
        tags = [client.predict(FEED, timeout=TIMEOUT).tag for _ in range(200)]
    # Of 200 draws, 150 are expected; five standard deviations of 6.1.
    assert 119 < tags.count("b") < 181
    assert "none" not in tags


@pytest.mark.parametrize("weights", [[], [0], [1, -1]])
def test_negative_weights_and_a_sum_of_zero_are_refused(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="weights of variants"):
        ModelClient(FEEDS, [variant("127.0.0.1:1", weight=each) for each in weights])


def test_a_forked_child_and_its_parent_can_both_use_a_client(serve: Serve) -> None:
    with ModelClient(FEEDS, [variant(serve(twice))]) as client:
        client.predict(FEED, timeout=TIMEOUT)
        child = os.fork()
        if not child:
            status = 1
            try:
                found = client.predict(FEED, timeout=TIMEOUT)
                status = 0 if found.outputs["m"]["twice"].tolist() == [[2, 4]] else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert client.predict(FEED, timeout=TIMEOUT).outputs["m"]["twice"].tolist() == [[2, 4]]


def test_each_failure_raises_its_exception(serve: Serve, stuck: Stuck, dead_endpoint: str) -> None:
    client = ModelClient(FEEDS, [variant(dead_endpoint)])
    with pytest.raises(CallFailed) as refused:
        client.predict(FEED, timeout=TIMEOUT)
    assert refused.value.status is GrpcCode.UNAVAILABLE
    client.close()
    with ModelClient(FEEDS, [variant(serve(stuck))]) as client:
        with pytest.raises(CallFailed) as late:
            client.predict(FEED, timeout=0.2)
        assert late.value.status is GrpcCode.DEADLINE_EXCEEDED
        with pytest.raises(InputMismatch, match="Wrong feed name: z"):
            client.predict({"z": 1})
    with ModelClient(FEEDS, [variant(serve(lambda *_: b"\xff"))]) as client:
        with pytest.raises(Undecodable):
            client.predict(FEED, timeout=TIMEOUT)
    bad = RESPONSE(err_no=5000, err_msg="no such input").SerializeToString()
    with ModelClient(FEEDS, [variant(serve(lambda *_: bad))]) as client:
        with pytest.raises(RequestError, match="no such input"):
            client.predict(FEED, timeout=TIMEOUT)


def test_a_closed_client_connects_again(serve: Serve) -> None:
    client = ModelClient(FEEDS, [variant(serve(twice))])
    for _ in range(2):
        assert client.predict(FEED, timeout=TIMEOUT).tag == "v"
        client.close()
