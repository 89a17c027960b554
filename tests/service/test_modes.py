"""One graph in threads, in processes and mixed: equal replies to every request."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import PipelineClient
from tests.service.scripts import post, script, until
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

OPS = ("first", "mid", "side", "last")
MODES = {
    "thread": ("thread",) * 4,
    "process": ("process",) * 4,
    "mixed": ("process", "thread", "inline", "process"),
}
GRAPH = '''
import hashlib, json, os
import numpy as np
from penstock import Op, PipelineServer, RequestOp, ResponseOp
from penstock.ops.product import CustomException, CustomExceptionCode

PLAIN = {
    "none": None, "yes": True, "whole": 2**70, "half": 0.1, "text": "\\u00e9\\U0001f600\\0",
    "bytes": b"\\xff\\0", "list": [1, [2.5, None], {"a": (1, "b")}], "tuple": (1, (2,)),
    "scalar": np.float32(0.1), "truth": np.bool_(True), "numpy text": np.str_("a"),
    "texts": np.array([["a", "\\u00e9"]], dtype=object), "fixed": np.array(["a", "bcd"]),
    "empty": np.zeros((0, 3), np.int16), "zero axes": np.array(7, np.uint8),
    "nan": np.array([np.nan, -0.0, np.inf]), "large": np.arange(30_000, dtype=np.float64),
    "complex": np.array([1j]), "half floats": np.array([0.1], np.float16), "empty text": "",
    "dates": np.array(["2026-01-01"], "M8[D]"), "big endian": np.array([1, 2], ">i4"),
    "dict": {"": {1: 2, None: 3}},
}

def told(value):
    if isinstance(value, np.ndarray):
        data = value.tolist() if value.dtype == object else value.tobytes()
        return f"{value.dtype.str} {value.shape} {hashlib.sha1(repr(data).encode()).hexdigest()}"
    return f"{type(value).__name__} {value!r}"

def reply_of(feed):
    """Arrays alone, or what everything is, in texts."""
    if feed.get("reply") == "arrays":
        return {key: value for key, value in feed.items() if isinstance(value, np.ndarray)}
    return {key: value if type(value) is str else told(value) for key, value in feed.items()}

class Acting(Op):
    """Does what the request's ``do`` says, where that is meant for it."""

    def told_to(self, feed):
        op, _, do = str(feed.get("do", "")).partition(":")
        return do if op == self.name else ""

    def preprocess(self, input_dicts, data_id, log_id):
        feed = {}
        for name, given in input_dicts.items():
            feed.update(given)
        self.got = {name: sorted(given) for name, given in input_dicts.items()}
        feed["ids"] = f"{data_id} {log_id}"
        do = self.told_to(feed)
        if do == "raise before":
            raise KeyError("told 'so'")
        if do == "product before":
            return {}, False, 51, "no such thing"
        if do == "declare":
            raise CustomException(CustomExceptionCode.PRODUCT_ERROR, "declared: so", True)
        if do == "skip":
            return {**feed, "skipped": "yes"}, True, None, ""
        if do == "pieces":
            return [{**feed, "piece": n} for n in range(3)]
        if do == "no feed":
            return 7
        if do == "three":
            return {}, 1, 2
        return feed

    def process(self, feed_batch, typical_logid):
        (feed,) = feed_batch
        do = self.told_to(feed)
        if do == "raise" or do == "pieces" and feed.get("bad") == str(feed["piece"]):
            raise ValueError("as told")
        if do == "code":
            return None, 7000, "a code"
        if do == "no dict":
            return [1]
        if do == "exit":
            raise SystemExit(3)
        if do == "plain":
            return {**feed, **PLAIN}
        if do == "told":
            return {**feed, **{f"{key} is": told(value) for key, value in feed.items()}}
        if do == "double":
            arrays = {k: v * 2 for k, v in feed.items() if isinstance(v, np.ndarray)}
            return {**feed, **arrays}
        arrived = {f"{key} in {self.name}": told(feed[key]) for key in "xyz" if key in feed}
        return {**feed, **arrived, f"in {self.name}": told(sorted(feed))}

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        if isinstance(fetch_dict, list):
            pieces, fetch_dict = fetch_dict, {}
            for piece in pieces:
                fetch_dict.update(piece)
            fetch_dict["pieces"] = [piece["piece"] for piece in pieces]
        do = self.told_to(fetch_dict)
        if do == "product after":
            return {}, 52, "too late"
        if do == "raise after":
            raise OSError(5, "told")
        if do == "no dict after":
            return "text"
        if self.name == "last":
            return reply_of(fetch_dict), None, ""
        return {**fetch_dict, f"{self.name} got": str(self.got)}, None, ""

    def check_jumping(self, input_data):
        dos = [str(each.parse().get("do")) for each in input_data.values() if not each.error_code]
        if "first:raise in jump" in dos:
            raise RuntimeError("told")
        return dos == ["first:jump"]

read = RequestOp()
first = Acting("first", input_ops=[read])
mid, side = Acting("mid", input_ops=[first]), Acting("side", input_ops=[first])
last = Acting("last", input_ops=[mid, side])
first.set_jump_to_ops([mid])
modes = json.loads(os.environ["MODES"])
config = {"rpc_port": 0, "op": {name: {"executor": mode} for name, mode in modes.items()}}
server = PipelineServer("work")
server.set_response_op(ResponseOp(input_ops=[last]))
server.prepare_server(yml_dict=config)
server.run_server()
'''


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServiceProcess]]:
    """The same script, running in each mode."""
    path = tmp_path_factory.mktemp("modes") / "service.py"
    path.write_text(GRAPH)
    with ExitStack() as stack:
        started = {}
        for mode, places in MODES.items():
            environment = {"MODES": json.dumps(dict(zip(OPS, places, strict=True)))}
            server = running(path, environment=environment, ready=False)
            started[mode] = stack.enter_context(server)
        for server in started.values():
            server.wait_ready()
        yield started
        for server in started.values():
            server.send_signal(signal.SIGTERM)
        assert {mode: server.wait_exit() for mode, server in started.items()} == dict.fromkeys(
            started, 0
        )


@pytest.fixture(scope="module")
def clients(services: dict[str, ServiceProcess]) -> Iterator[dict[str, PipelineClient]]:
    with ExitStack() as stack:
        made = {}
        for mode, server in services.items():
            client = made[mode] = stack.enter_context(PipelineClient())
            client.connect([server.rpc_endpoint])
        yield made


@contextmanager
def serving(folder: Path, text: str, **environment: str) -> Iterator[ServiceProcess]:
    """A service that must exit with 0 at the end of the test."""
    path = script(folder, text=text.replace("{", "{{").replace("}", "}}"))
    with running(path, environment=environment) as server:
        yield server
        assert server.stop() == 0


DTYPES = ("int64", "float32", "int32", "float64", "int16", "float16", "uint16", "uint8", "int8")
WORDS = ("", "a", "\u00e9\U0001f600", "[1, 2]", "x" * 70_000, "\0", "0.5")
DOS = (
    *("raise before", "product before", "declare", "skip", "pieces", "no feed", "three", "raise"),
    *("code", "no dict", "exit", "plain", "told", "double", "product after", "raise after"),
    *("no dict after", "jump", "raise in jump", "nothing"),
)


def array_of(rng: random.Random) -> np.ndarray[Any, Any]:
    dtype = np.dtype(rng.choice((*DTYPES, "bool")))
    shape = [rng.randint(0, 4) for _ in range(rng.randint(0, 4))]
    if rng.random() < 0.1:
        shape = [rng.choice((8_000, 70_000))]
    numbers = np.random.default_rng(rng.randrange(2**32)).integers(0, 100, shape)
    return np.asarray(numbers).astype(dtype)


def requests(seed: int, count: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Feeds, and the options to send each with."""
    rng = random.Random(seed)
    for number in range(count):
        op, do = rng.choice(OPS), DOS[number % len(DOS)]
        feed: dict[str, Any] = {"do": f"{op}:{do}", "bad": rng.choice("012345")}
        as_tensors = rng.random() < 0.6
        if rng.random() < 0.3:
            feed["reply"] = "arrays"
        for name in "xyz"[: rng.randint(0, 3)]:
            feed[name] = array_of(rng) if as_tensors else rng.choice(WORDS)
            if as_tensors and feed[name].ndim and rng.random() < 0.3:
                feed[f"{name}.lod"] = [[0, feed[name].shape[0]]]
        options = {"pack_tensor_format": True, "use_tensor_bytes": rng.random() < 0.3}
        yield feed, {"log_id": rng.randint(0, 2**60), **(options if as_tensors else {})}


@pytest.mark.parametrize("seed", range(3))
def test_every_request_gets_the_same_reply_in_every_mode(
    clients: dict[str, PipelineClient], seed: int
) -> None:
    outcomes = set()
    for feed, options in requests(seed, 6 * len(DOS)):
        replies = {mode: client.predict(feed, **options) for mode, client in clients.items()}
        expected = replies["thread"]
        outcomes.add((feed["do"].partition(":")[2], expected.err_no))
        for mode, reply in replies.items():
            assert reply == expected, f"{mode}: {feed['do']}"
    assert {do for do, _ in outcomes} == set(DOS)
    assert {number for _, number in outcomes} >= {0, 50, 51, 52, 7000, 10000}


THINGS = """
import os
class Thing:
    def __init__(self, name):
        self.name = name

from penstock import Op, PipelineServer, RequestOp, ResponseOp

class Making(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {"who": fetch_dict["who"], "thing": Thing(fetch_dict["who"])}, None, ""

class Opening(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (given,) = input_dicts.values()
        if given["who"] == "keep":
            return given
        return {"opened": f"{type(given['thing']).__qualname__} {given['thing'].name}"}

making = Making("making", input_ops=[RequestOp()])
opening = Opening("opening", input_ops=[making])
server = PipelineServer("work")
server.set_response_op(ResponseOp(input_ops=[opening]))
places = dict(zip(("making", "opening"), os.environ["PLACES"].split()))
config = {"rpc_port": 0, "op": {name: {"executor": place} for name, place in places.items()}}
server.prepare_server(yml_dict=config)
server.run_server()
"""


@pytest.mark.parametrize("places", ["process process", "thread process", "thread thread"])
def test_objects_of_the_script_s_classes_are_passed_to_ops_that_can_unpickle_them(
    tmp_path: Path, places: str
) -> None:
    with serving(tmp_path, THINGS, PLACES=places) as server:
        reply = post(server, who="Ada").json
        assert (reply["err_no"], reply["value"]) == (0, ["Thing Ada"])


@pytest.mark.parametrize(
    ("places", "who", "maker", "reader"),
    [
        ("process thread", "Ada", "making", "op 'opening'"),
        ("process inline", "Ada", "making", "op 'opening'"),
        ("process process", "keep", "opening", "the ResponseOp"),
    ],
)
def test_other_ops_get_an_error_with_op_key_and_type(
    tmp_path: Path, places: str, who: str, maker: str, reader: str
) -> None:
    with serving(tmp_path, THINGS, PLACES=places) as server:
        reply = post(server, who=who).json
        assert reply["err_no"] == 7000
        assert reply["err_msg"].startswith(
            f"[{maker}] failed to predict. its output 'thing': a value of type __main__.Thing"
            f" cannot be sent to {reader}: only ops that run in processes could unpickle it"
        )
        until(lambda: "__main__.Thing cannot be sent" in server.log(), "a line of the worker")
        assert server.log().count("__main__.Thing cannot be sent") == 1
