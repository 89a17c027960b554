"""The attacked service: one op that echoes, or answers with ``large`` KiB.

Environment: ``ATTACKS_CONFIG`` is the configuration as JSON.
"""

import json
import os

from penstock import Op, WebService


class Echo(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, feed),) = input_dicts.items()
        return feed, False, None, ""

    def process(self, feed_batch, typical_logid):
        (feed,) = feed_batch
        if "load" in feed:
            return {"length": str(len(feed["load"]))}
        if "large" in feed:
            return {"x": "x" * (int(feed["large"]) << 10)}
        return feed

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return fetch_dict, None, ""


class Attacked(WebService):
    def get_pipeline_response(self, read_op):
        return Echo(name="echo", input_ops=[read_op], concurrency=2)


if __name__ == "__main__":
    service = Attacked(name="attacked")
    service.prepare_pipeline_config(yml_dict=json.loads(os.environ["ATTACKS_CONFIG"]))
    service.run_service()
