"""Penstock with one op that computes in pure Python, for as long as it is told."""

from __future__ import annotations

from typing import Any

from benchmarks.compute_loop import added
from benchmarks.servers.options import server_options
from penstock import Op, WebService


class ComputeOp(Op):
    """Adds numbers, one by one."""

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> dict[str, Any]:
        return {**feed_batch[0], "sum": str(added(options.steps))}


class ComputeService(WebService):
    """request -> compute -> response."""

    def get_pipeline_response(self, read_op: Op) -> Op:
        return ComputeOp(name="compute", input_ops=[read_op])


if __name__ == "__main__":
    options = server_options()
    service = ComputeService(name="echo")
    service.prepare_pipeline_config(yml_dict=options.config({"compute": {}}))
    service.run_service()
