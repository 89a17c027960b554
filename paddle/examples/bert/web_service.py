import numpy as np

from paddle_serving_app.reader import ChineseBertReader
from paddle_serving_server.web_service import Op, WebService


class BertOp(Op):
    def init_op(self):
        self.reader = ChineseBertReader({"vocab_file": "vocab.txt", "max_seq_len": 128})

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, input_dict),) = input_dicts.items()
        feed_res = {}
        for i in range(len(input_dict.keys())):
            feed_dict = self.reader.process(input_dict[str(i)].encode("utf-8"))
            for key in feed_dict.keys():
                value = np.array(feed_dict[key]).reshape((1, 128, 1))
                if key in feed_res:
                    feed_res[key] = np.concatenate([feed_res[key], value], axis=0)
                else:
                    feed_res[key] = value
        feed_res["input_mask"] = feed_res["input_mask"].astype("float32")
        return feed_res, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"pooled_output": str(fetch_dict["pooled_output"])}, None, ""


class BertService(WebService):
    def get_pipeline_response(self, read_op):
        return BertOp(name="bert", input_ops=[read_op])


bert_service = BertService(name="bert")
bert_service.prepare_pipeline_config("config.yml")
bert_service.run_service()
