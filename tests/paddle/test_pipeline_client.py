"""Responses of ``PipelineClient`` under the original's name."""

from __future__ import annotations

import numpy as np
import pytest

from paddle_serving_client.pipeline import PipelineClient
from penstock.protocols import pb


def test_a_response_has_the_keys_of_the_first_releases() -> None:
    assert PipelineClient is not None
    array = "array([[18.5]], dtype=float32)"
    response = pb.Response(err_no=0, key=["price", "name"], value=[array, "a, b"])
    assert response["ecode"] == 0  # type: ignore[index]
    assert response["price"] == np.float32([[18.5]])  # type: ignore[index]
    assert response["name"] == "a, b"  # type: ignore[index]
    with pytest.raises(KeyError, match="cost"):
        response["cost"]  # type: ignore[index]
    failed = pb.Response(err_no=5000, err_msg="why")
    assert (failed["ecode"], failed["error_info"]) == (5000, "why")  # type: ignore[index]
    assert failed.err_no == 5000


def test_tensors_are_found_by_name() -> None:
    tensor = pb.Tensor(name="y", elem_type=1, shape=[2], float_data=[1, 2])
    assert pb.Response(tensors=[tensor])["y"].tolist() == [1.0, 2.0]  # type: ignore[index]
