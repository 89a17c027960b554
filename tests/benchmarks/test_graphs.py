"""The graphs of models: their requests, their expected answers, their bare models."""

import numpy as np
import pytest

from benchmarks.graphs import GRAPHS, is_right, requests
from penstock.protocols.paddle import unpack
from penstock.protocols.pb import Request, Response, Tensor

CHEAP = ("texts", "ragged")


@pytest.mark.parametrize("graph", CHEAP)
def test_requests_contain_the_bare_models_inputs(graph: str) -> None:
    messages, bare = requests(graph), GRAPHS[graph]
    for message, expected in zip(messages, bare.inputs(), strict=True):
        feed, _ = unpack(Request.FromString(message))
        assert np.array_equal(feed[bare.name], expected)


def test_a_right_answer_equals_that_of_the_bare_models() -> None:
    right = np.array([0.25, 0.75], np.float32)

    def answer(*values: float) -> bytes:
        tensor = Tensor(name="y", elem_type=1, shape=[1, 2], float_data=values)
        return Response(tensors=[tensor]).SerializeToString()

    assert is_right(answer(0.25, 0.75), right)
    assert not is_right(answer(0.25, 0.76), right)
    assert not is_right(answer(0.25), right)
    assert not is_right(Response(err_no=5000).SerializeToString(), right)
    assert is_right(Response(key=["text"], value=["ABC"]).SerializeToString(), "ABC")
    assert not is_right(Response(key=["text"], value=["ABX"]).SerializeToString(), "ABC")
