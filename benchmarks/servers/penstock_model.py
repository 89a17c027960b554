"""Penstock with one model and no code of the user's: arrays in, arrays out."""

from __future__ import annotations

from benchmarks.servers.options import server_options
from penstock import Op, WebService


class ModelService(WebService):
    """request -> model -> response."""

    def get_pipeline_response(self, read_op: Op) -> Op:
        return Op(name="model", input_ops=[read_op])


if __name__ == "__main__":
    options = server_options()
    service = ModelService(name="model")
    service.prepare_pipeline_config(yml_dict=options.config({"model": options.model()}))
    service.run_service()
