"""The service of the big run: two branches joined again, one of them batched, all recorded.

What its engine tells goes to the file ``HOSTILE_EVENTS`` as it happens, one line of JSON each, so
that the memory of the process is that of the service alone.
"""

import json
import os
import time

import numpy as np

from penstock import Op, WebService
from penstock.service.build import Works
from penstock.testing import Recorder

SWAPPED = 53


class Written:
    """In place of a list of events."""

    def __init__(self, file):
        self._file = file

    def append(self, event):
        self._file.write(json.dumps([type(event).__name__, *event]) + "\n")


class Batched(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, feed),) = input_dicts.items()
        if feed["x"] == "raise":
            raise ValueError("planted in preprocess")
        number = -1 if feed["x"] == "break" else int(feed["x"])
        return {"n": np.array([[number]])}, False, None, ""

    def process(self, feed_batch, typical_logid):
        (numbers,) = (feed["n"] for feed in feed_batch)
        if (numbers < 0).any():
            raise RuntimeError("planted in process")
        return {"n": numbers}

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"x": str(fetch_dict["n"].item())}, None, ""


class Plain(Op):
    def process(self, feed_batch, typical_logid):
        (feed,) = feed_batch
        if "slow" in feed:
            time.sleep(0.08)  # long enough for a client to leave meanwhile, and be noticed
        return {"x": feed["x"]}


class Joined(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        left, right = (input_dicts[name]["x"] for name in ("batched", "plain"))
        if left != right:
            return {}, False, SWAPPED, f"{left} and {right} met"
        return {"x": left}, False, None, ""

    def process(self, feed_batch, typical_logid):
        return feed_batch[0]


class Recorded(WebService):
    def get_pipeline_response(self, read_op):
        left = Batched(
            name="batched",
            input_ops=[read_op],
            concurrency=2,
            batch_size=8,
            auto_batching_timeout=1,
        )
        right = Plain(name="plain", input_ops=[read_op], concurrency=2)
        return Joined(name="joined", input_ops=[left, right], concurrency=2)


if __name__ == "__main__":
    recorder = Recorder()
    make_engine = Works.engine

    def engine(self, loop, spawner=None, instruments=()):
        return make_engine(self, loop, spawner, [*instruments, recorder])

    Works.engine = engine
    service = Recorded(name="uci")
    service.prepare_pipeline_config(yml_dict={"http_port": 0, "rpc_port": 0})
    with open(os.environ["HOSTILE_EVENTS"], "w", buffering=1 << 20) as file:
        recorder.events = Written(file)
        service.run_service()
