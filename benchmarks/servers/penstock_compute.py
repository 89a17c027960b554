"""Penstock with one op that computes in pure Python for some milliseconds."""

from __future__ import annotations

from typing import Any

from benchmarks.servers.options import server_options
from penstock import Op, WebService

STEPS = 100_000


class ComputeOp(Op):
    """Adds numbers, one by one."""

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> dict[str, Any]:
        total = 0
        for number in range(STEPS):
            total += number & 7
        return {**feed_batch[0], "sum": str(total)}


class ComputeService(WebService):
    """request -> compute -> response."""

    def get_pipeline_response(self, read_op: Op) -> Op:
        return ComputeOp(name="compute", input_ops=[read_op])


if __name__ == "__main__":
    service = ComputeService(name="echo")
    service.prepare_pipeline_config(yml_dict=server_options().config({"compute": {}}))
    service.run_service()
