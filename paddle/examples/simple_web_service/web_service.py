import logging

import numpy as np

from paddle_serving_server.web_service import Op, WebService

_LOGGER = logging.getLogger()


class UciOp(Op):
    def init_op(self):
        self.separator = ","
        self.batch_separator = ";"

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, input_dict),) = input_dicts.items()
        _LOGGER.info("UciOp::preprocess >>> log_id:%s, input:%s", log_id, input_dict)
        rows = input_dict["x"].split(self.batch_separator)
        x = [[float(number) for number in row.split(self.separator)] for row in rows]
        return {"x": np.array(x, dtype="float32")}, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        fetch_dict["price"] = str(fetch_dict["price"])
        return fetch_dict, None, ""


class UciService(WebService):
    def get_pipeline_response(self, read_op):
        return UciOp(name="uci", input_ops=[read_op])


uci_service = UciService(name="uci")
uci_service.prepare_pipeline_config("config.yml")
uci_service.run_service()
