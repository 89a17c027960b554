import logging

import numpy as np

from paddle_serving_app.reader.imdb_reader import IMDBDataset
from paddle_serving_server.pipeline import Op, PipelineServer, RequestOp, ResponseOp
from paddle_serving_server.pipeline.channel import ChannelDataErrcode
from paddle_serving_server.pipeline.proto import pipeline_service_pb2

_LOGGER = logging.getLogger()
LENGTH = 16


class ImdbRequestOp(RequestOp):
    def init_op(self):
        self.imdb_dataset = IMDBDataset()
        self.imdb_dataset.load_resource("imdb.vocab")

    def unpack_request_package(self, request):
        dictdata = {}
        log_id = None
        for idx, key in enumerate(request.key):
            if key == "logid":
                log_id = request.value[idx]
            if key != "words":
                continue
            word_ids = self.imdb_dataset.get_words_only(request.value[idx])[:LENGTH]
            padded = word_ids + [len(self.imdb_dataset._vocab)] * (LENGTH - len(word_ids))
            dictdata[key] = np.array(padded, dtype="int64")[np.newaxis]
        return dictdata, log_id, None, ""


class CombineOp(Op):
    def preprocess(self, input_data, data_id, log_id):
        combined_prediction = 0
        for op_name, data in input_data.items():
            _LOGGER.info("%s: %s", op_name, data["prediction"])
            combined_prediction += data["prediction"]
        return {"prediction": combined_prediction / 2}, False, None, ""


class ImdbResponseOp(ResponseOp):
    def pack_response_package(self, channeldata):
        resp = pipeline_service_pb2.Response()
        resp.err_no = channeldata.error_code
        if channeldata.error_code == ChannelDataErrcode.OK.value:
            feed = channeldata.parse()
            np.set_printoptions(threshold=np.inf)
            for name, var in feed.items():
                resp.value.append(var.__repr__())
                resp.key.append(name)
        else:
            resp.err_msg = channeldata.error_info
        return resp


read_op = ImdbRequestOp()
bow_op = Op("bow", input_ops=[read_op])
cnn_op = Op("cnn", input_ops=[read_op])
combine_op = CombineOp("combine", input_ops=[bow_op, cnn_op])
response_op = ImdbResponseOp(input_ops=[combine_op])

server = PipelineServer()
server.set_response_op(response_op)
server.prepare_server("config.yml")
server.run_server()
