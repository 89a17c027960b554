"""The service for ``test_refused.py``: each of its routes, ops and executors fails in its own ways.

The collector is off, so that an object in a cycle stays until ``GET /garbage`` looks for it.
``census`` counts the objects of ours, and finds those that only a collection would free.
"""

import gc
import os
import threading
from collections import Counter
from types import FrameType, TracebackType
from typing import Annotated

import numpy as np
from pydantic import BaseModel, field_validator

from penstock import (
    App,
    Array,
    CustomException,
    CustomExceptionCode,
    Image,
    Op,
    Service,
    Signature,
    WebService,
    op,
    run,
)
from penstock.api.general_model import GeneralModelApplication
from penstock.executors.external.program import WorkerProgram
from penstock.protocols import media
from penstock.protocols.heads import RequestHead
from penstock.service.external_worker import bound_op

gc.disable()

KEPT = RequestHead  # those of the latest requests, for the live page


class Item(BaseModel):
    value: int

    @field_validator("value")
    @classmethod
    def check(cls, value: int) -> int:
        if value < 0:
            raise ValueError("no negative numbers")
        return value


app = App("typed")


@app.route("/picture")
def picture(image: Annotated[np.ndarray, Image()]) -> list[int]:
    return list(image.shape)


@app.route("/rows")
def rows(x: Annotated[np.ndarray, Array("float32", (None, 3))]) -> float:
    return float(x.sum())


@app.route("/batches", batch=4, wait=5)
def batches(items: list[Item]) -> list[int]:
    return [1 // each.value for each in items]


class And(BaseModel):
    left: "And | Or | float"


class Or(BaseModel):
    left: "And | Or | float"


And.model_rebuild()


@app.route("/tree")
def tree(tree: And | Or) -> float:
    return 1.0


@app.route("/coroutine")
async def coroutine(item: Item) -> int:
    return 1 // item.value


@app.route("/inline", executor="inline")
def inline(item: Item) -> int:
    return 1 // item.value


@app.route("/process", executor="process")
def process(item: Item) -> int:
    return 1 // item.value


@app.route("/lies")
def lies(item: Item) -> int:
    return "no number"  # type: ignore[return-value]


class Steps:
    def preprocess(self, item: Item) -> int:
        return 1 // item.value

    def predict(self, value: int) -> int:
        return value

    def postprocess(self, value: int) -> int:
        raise IndexError(value)


app.route("/steps")(Steps)


def outside(item: Item) -> int:
    return 1 // item.value


app.route("/external", executor="external", socket=os.environ["REFUSING_SOCKET"])(outside)


class Census(Op):
    def init_op(self):
        # Not before: a program with threads cannot be forked.
        path = os.environ["REFUSING_SOCKET"]
        program = WorkerProgram(bound_op(outside, batched=False), path, media.JSON)
        threading.Thread(target=program.run, daemon=True).start()

    def process(self, feed_batch, typical_logid):
        return census()


def census() -> dict:
    found = gc.get_objects()
    ours = Counter(
        name
        for each in found
        if (name := _name(type(each))) is not None and not issubclass(type(each), KEPT)
    )
    del found
    return {"ours": dict(ours), "unreachable": gc.collect()}


def _name(kind: type) -> str | None:
    # Not isinstance: objects of other libraries warn when their ``__class__`` is read.
    module = type.__getattribute__(kind, "__module__")
    wanted = issubclass(kind, (BaseException, FrameType, TracebackType, BaseModel))
    return kind.__qualname__ if wanted or str(module).startswith("penstock") else None


@op()
def model(feed: dict) -> dict:
    return {"x": feed["x"][:, :2]}  # not as declared: fails for OIP with three columns


class Failing(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, feed),) = input_dicts.items()
        match feed.get("do"):
            case "raise before":
                raise ValueError("before")
            case "product":
                return {}, False, 52, "not for you"
            case "declared":
                raise CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "said", True)
            case "pieces":
                return [{"do": "raise"}, {"do": ""}]
        return feed

    def process(self, feed_batch, typical_logid):
        if any(each.get("do") == "raise" for each in feed_batch):
            raise ValueError("process")
        return feed_batch[0] if feed_batch[0].get("do") != "nothing" else None

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        if fetch_dict.get("do") == "raise after":
            raise ValueError("after")
        return fetch_dict


class Pipeline(WebService):
    def get_pipeline_response(self, read_op):
        first = Failing(name="first", input_ops=[read_op])
        return Failing(name="second", input_ops=[first], batch_size=4)


class Remote(WebService):
    """Calls a server that is not there."""

    def get_pipeline_response(self, read_op):
        return Op(
            name="away",
            input_ops=[read_op],
            server_endpoints=["127.0.0.1:1"],
            fetch_list=["y"],
            client_type="brpc",
        )


if __name__ == "__main__":
    tensor = {"x": ("FP32", [-1, 3])}
    declared = Signature(inputs=tensor, outputs=tensor)
    services = [Pipeline(name="pipeline"), Remote(name="remote")]
    for service in services:
        service.prepare_pipeline_config(yml_dict={"http_port": 0, "rpc_port": 0})
    run(
        app,
        Service("model", model, signature=declared, applications=[GeneralModelApplication]),
        Service("census", Census(name="census")),
        *services,
    )
