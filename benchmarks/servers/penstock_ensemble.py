"""Penstock with two models on the same input, joined by a function that takes their mean."""

from __future__ import annotations

from typing import Any

from benchmarks.servers.options import server_options
from penstock import Op, WebService


class MeanOp(Op):
    """The mean of what its predecessors predict."""

    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        predictions = [output["prediction"] for output in input_dicts.values()]
        return {"prediction": sum(predictions) / len(predictions)}, False, None, ""


class EnsembleService(WebService):
    """request -> (a, b) -> mean -> response."""

    def get_pipeline_response(self, read_op: Op) -> Op:
        models = [Op(name="a", input_ops=[read_op]), Op(name="b", input_ops=[read_op])]
        return MeanOp(name="mean", input_ops=models)


if __name__ == "__main__":
    options = server_options()
    service = EnsembleService(name="ensemble")
    ops = {"a": options.model(0), "b": options.model(1)}
    service.prepare_pipeline_config(yml_dict=options.config(ops))
    service.run_service()
