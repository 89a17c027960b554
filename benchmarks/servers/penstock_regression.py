"""Penstock with a small regression model: thirteen numbers as text in, a price as text out."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.servers.options import server_options
from penstock import Op, WebService


class RegressionOp(Op):
    """Numbers by commas to one row; the price to text."""

    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        (given,) = input_dicts.values()
        row = np.array([float(number) for number in given["x"].split(",")], dtype=np.float32)
        return {"x": row[np.newaxis]}, False, None, ""

    def postprocess(
        self, input_data: Any, fetch_data: dict[str, Any], data_id: int = 0, log_id: int = 0
    ) -> Any:
        return {"price": str(fetch_data["price"][0, 0])}, None, ""


class RegressionService(WebService):
    """request -> regression -> response."""

    def get_pipeline_response(self, read_op: Op) -> Op:
        return RegressionOp(name="regression", input_ops=[read_op])


if __name__ == "__main__":
    options = server_options()
    service = RegressionService(name="regression")
    service.prepare_pipeline_config(yml_dict=options.config({"regression": options.model()}))
    service.run_service()
