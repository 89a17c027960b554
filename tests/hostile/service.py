"""The service for tests of bad input: one op that does what the request's ``do`` names.

A held request waits on the named pipe ``HOSTILE_PIPE``: opening that for writing succeeds at the
moment the op reads it, and writing to it releases the op, so that tests need no sleeps.
"""

import os
import sys

import numpy as np

from penstock import CustomException, CustomExceptionCode, Op, WebService
from penstock.errors import InputMismatch
from penstock.protocols.array_text import parse_array
from penstock.runtimes.model import Model
from penstock.tensor import TensorSpec
from tests.kit.python_session import PythonSession

NOT_FOR_YOU = 52
CODE = CustomExceptionCode.INPUT_PARAMS_ERROR
# Without the probe a client of HTTP/1.1 that closes its connection counts as half-closed.
DOOR = {"half_close_probe": True}


def twice(feeds):
    return {"y": feeds["x"] * 2}


class Obedient(Op):
    def init_op(self):
        self.model = Model(
            PythonSession(
                twice,
                [TensorSpec(name="x", alias="x", dtype=np.dtype("float32"), shape=(None, 2))],
                [TensorSpec(name="y", alias="y", dtype=np.dtype("float32"), shape=(None, 2))],
            )
        )

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, feed),) = input_dicts.items()
        match feed.get("do"):
            case "raise":
                raise ValueError(feed.get("x"))
            case "refuse":
                return {}, False, NOT_FOR_YOU, "not for you"
            case "declare":
                raise CustomException(CODE, "said aloud", True)
            case "hide":
                raise CustomException(CODE, "kept secret")
            case "exit":
                sys.exit(3)
        return feed, False, None, ""

    def process(self, feed_batch, typical_logid):
        (feed,) = feed_batch
        do = feed.pop("do", "echo")
        match do:
            case "hold":
                second = feed.pop("second", "")
                with open(os.environ["HOSTILE_PIPE"] + second, "rb", buffering=0) as pipe:
                    pipe.read(1)
            case "break":
                raise RuntimeError(feed["x"])
            case "model":
                return self.model.run(feed)
            case "fetch":
                return self.model.run({"x": feed["x"]}, [feed["output"]])
            case "parse":
                try:
                    return {"x": parse_array(feed["x"])}
                except ValueError as error:
                    raise InputMismatch(str(error)) from error
            case "large":
                return {"x": "x" * (int(feed["x"]) << 20)}
        return feed

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        shown = {
            name: value if isinstance(value, str) else repr(value.tolist())
            for name, value in fetch_dict.items()
        }
        return shown, None, ""


class Hostile(WebService):
    def get_pipeline_response(self, read_op):
        return Obedient(name="obedient", input_ops=[read_op], concurrency=4)


if __name__ == "__main__":
    service = Hostile(name="uci")
    service.prepare_pipeline_config(yml_dict={"http_port": 0, "rpc_port": 0, "door": DOOR})
    service.run_service()
