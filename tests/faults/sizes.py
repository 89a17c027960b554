"""A service that returns the sizes of its inputs, or an array of a requested size."""

import numpy as np

from penstock import Op, WebService


class Sizes(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, feed),) = input_dicts.items()
        requested = feed.get("array")
        if isinstance(requested, str):
            dtype, size = requested.split()
            return {"y": np.ones(int(size), dtype)}, False, None, ""
        sizes = {name: getattr(value, "size", len(value)) for name, value in feed.items()}
        return {name: str(size) for name, size in sizes.items()}, False, None, ""


class Service(WebService):
    def get_pipeline_response(self, read_op):
        return Sizes(name="sizes", input_ops=[read_op])


if __name__ == "__main__":
    service = Service(name="sizes")
    service.prepare_pipeline_config(yml_dict={"build_dag_each_worker": False})
    service.run_service()
