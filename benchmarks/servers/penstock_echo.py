"""Penstock with one op that gives back what it gets."""

from __future__ import annotations

from typing import Any

from benchmarks.servers.options import server_options
from penstock import Op, WebService


class EchoOp(Op):
    """Its result is its input."""

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> dict[str, Any]:
        return feed_batch[0]


class EchoService(WebService):
    """request -> echo -> response."""

    def get_pipeline_response(self, read_op: Op) -> Op:
        return EchoOp(name="echo", input_ops=[read_op])


if __name__ == "__main__":
    service = EchoService(name="echo")
    service.prepare_pipeline_config(yml_dict=server_options().config({"echo": {}}))
    service.run_service()
