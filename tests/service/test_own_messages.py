"""Fields that a service adds to the pipeline's messages, through the whole service."""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
import httpx
import pytest

from tests.kit import own_messages
from tests.services.process import running

SCRIPT = Path(__file__).parent.parent / "services" / "own_messages.py"

pytestmark = pytest.mark.real


def test_own_fields_reach_the_request_op_and_are_sent_over_grpc_and_http() -> None:
    command = (sys.executable, "-m", "penstock", "run")
    with running(SCRIPT, command=command) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.http_port}") as channel:
            infer = channel.unary_unary(
                "/baidu.paddle_serving.pipeline_serving.PipelineService/inference",
                request_serializer=own_messages.Request.SerializeToString,
                response_deserializer=own_messages.Response.FromString,
            )
            request = own_messages.Request(key=["x"], value=["1"], user="ada", top_scores=[2, 3])
            reply = infer(request, timeout=20)
            assert dict(zip(reply.key, reply.value, strict=True)) == {
                "user": "ada",
                "sum": "5",
                "x": "1",
            }
            assert reply.cost == 2.5
        url = f"{server.http_url}/own/prediction"
        # Without key and value, and under the field's name in JSON.
        sent = httpx.post(url, json={"user": "bob", "topScores": [4]})
        assert sent.json() == {
            "err_no": 0,
            "err_msg": "",
            "key": ["user", "sum"],
            "value": ["bob", "4"],
            "tensors": [],
            "cost": 2.5,
        }
        refused = httpx.post(url, json={"user": 7}).json()
        assert refused["err_no"] == 8000
        assert "user" in refused["err_msg"]
        assert "Traceback" not in server.log()
