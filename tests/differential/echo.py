"""The service that is asked through both ports: ops that answer with all kinds of values."""

import numpy as np

from penstock import CustomException, CustomExceptionCode, Op, WebService


class Various(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (feed,) = input_dicts.values()
        match feed.get("do"):
            case "refuse":
                return {}, False, 51, "no cat"
            case "raise":
                raise ValueError("it is broken")
            case "declare":
                raise CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "say it", True)
        return feed, False, None, ""

    def process(self, feed_batch, typical_logid):
        (feed,) = feed_batch
        if feed.get("do") == "break":
            raise RuntimeError("planted in process")
        if feed.get("do") == "various":
            return {
                "floats": np.array([[0.1, -2.5e-8], [1e20, np.pi]], np.float32),
                "integers": np.arange(-3, 3, dtype=np.int64),
                "texts": np.array(["grün", "", 'quote " and \\'], dtype=object),
                "flag": np.array([True, False]),
                "nothing": np.zeros((0, 4), np.float64),
                "plain": "text",
                "number": 7,
            }
        return feed

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return (
            {
                name: repr(value.tolist()) if name == "shown" else value
                for name, value in fetch_dict.items()
            },
            None,
            "",
        )


class Echo(WebService):
    def get_pipeline_response(self, read_op):
        return Various(name="various", input_ops=[read_op])


if __name__ == "__main__":
    service = Echo(name="echo")
    service.prepare_pipeline_config(yml_dict={"http_port": 0, "rpc_port": 0})
    service.run_service()
