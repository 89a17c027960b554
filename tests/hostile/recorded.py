"""The services of ``tests.hostile.run``, in one engine, with recorded events.

The first has no name and gets every request that is not for the other: two joined branches, one of
them batched. The second has ops of the same names with other settings: a batched one in processes,
followed by a plain one. Each answers with its name.
"""

import os
import time

import numpy as np

from penstock import Op, PipelineServer, RequestOp, ResponseOp, run
from tests.kit.record import recorder

FIRST, OTHER = "uci", "other"
SWAPPED = 53


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
        return {"x": str(fetch_dict["n"].item()), "by": OTHER}, None, ""


class Plain(Op):
    def process(self, feed_batch, typical_logid):
        (feed,) = feed_batch
        if "slow" in feed:
            time.sleep(
                0.08
            )  # long enough for a client to disconnect meanwhile, and for its cancellation
        return {name: feed[name] for name in ("x", "by") if name in feed}


class Joined(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        left, right = (input_dicts[name]["x"] for name in ("batched", "plain"))
        if left != right:
            return {}, False, SWAPPED, f"{left} and {right} met"
        return {"x": left, "by": FIRST}, False, None, ""

    def process(self, feed_batch, typical_logid):
        return feed_batch[0]


def batched(read):
    window = {"batch_size": 8, "auto_batching_timeout": 1}
    return Batched(name="batched", input_ops=[read], concurrency=2, **window)


def plain(earlier):
    return Plain(name="plain", input_ops=[earlier], concurrency=2)


def joined(read):
    return Joined(name="joined", input_ops=[batched(read), plain(read)], concurrency=2)


if __name__ == "__main__":
    written = recorder(os.environ["HOSTILE_EVENTS"])
    process = {"batched": {"executor": "process"}}
    services = []
    for name, graph, op in (
        (None, joined, {}),
        (OTHER, lambda read: plain(batched(read)), process),
    ):
        services.append(PipelineServer(name, instruments=[written]))
        services[-1].set_response_op(ResponseOp(input_ops=[graph(RequestOp())]))
        services[-1].prepare_server(yml_dict={"http_port": 0, "rpc_port": 0, "op": op})
    run(*services)
