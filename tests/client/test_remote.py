"""An op's requests to other servers, and its handling of their answers, without connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from penstock.client.call import METHOD
from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import CallFailed
from penstock.client.remote import (
    RemoteGeneralModel,
    RemoteModel,
    RemotePipeline,
    error_of,
)
from penstock.client.remote_options import RemoteKind, RemoteOptions
from penstock.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InputMismatch,
    ProductError,
    RequestError,
    ServiceBusy,
    Unreachable,
    WrongType,
)
from penstock.protocols import oip_message, pb
from penstock.protocols.oip import OutTensor
from penstock.protocols.standard_messages import (
    GENERAL_MODEL,
    INFERENCE,
    general_model_messages,
    inference_messages,
)
from penstock.protocols.status import GrpcCode
from penstock.protocols.tensors import encode
from penstock.runtimes.prototxt import ModelConf, parse_model_conf

ROW = np.array([[1.0, 2.0, 3.0]], np.float32)
CONF = parse_model_conf(
    """
    feed_var { name: "x" alias_name: "row" feed_type: 1 shape: 3 }
    fetch_var { name: "y" alias_name: "doubled" fetch_type: 1 shape: 3 }
    """
)


def options(
    kind: RemoteKind = "model", name: str | None = "m", fetch: tuple[str, ...] | None = None
) -> RemoteOptions:
    endpoints = parse_endpoints(["h:1"])
    return RemoteOptions(kind=kind, endpoints=endpoints, name=name, op="scale", fetch_list=fetch)


class Server:
    """A fake of our model server whose models double ``x``; records the calls."""

    def __init__(self, *models: str, bf16: bool = False, strings: bool = False) -> None:
        self.models = models
        self.datatype = "BYTES" if strings else "BF16" if bf16 else "FP32"
        self.calls: list[str] = []
        self.fields: list[bytes] = []
        self.deadlines: list[float | None] = []
        self.fails: CallFailed | None = None
        self.request: Any = None

    async def call(
        self, request: bytes, *, deadline: float | None, method: str = METHOD, fields: bytes = b""
    ) -> bytes:
        name = method.rpartition("/")[2]
        assert method == f"/{INFERENCE}/{name}"
        self.calls.append(name)
        self.fields.append(fields)
        self.deadlines.append(deadline)
        request_type, answer = inference_messages(name)
        request = request_type.FromString(request)
        if name == "ModelStatistics":
            return self._statistics(answer)
        self.request = request
        model = request.name if name == "ModelMetadata" else request.model_name
        if model not in self.models:
            raise CallFailed(GrpcCode.NOT_FOUND, f"h:1: there is no model {model!r}")
        if name == "ModelMetadata":
            found = answer(name=model)
            found.inputs.add(name="x", datatype=self.datatype, shape=[-1, 3])
            found.outputs.add(name="y", datatype=self.datatype, shape=[-1, 3])
            found.outputs.add(name="twice", datatype=self.datatype, shape=[-1, 3])
            return bytes(found.SerializeToString())
        if self.fails is not None:
            raise self.fails
        return self._infer(request)

    def _statistics(self, answer: Any) -> bytes:
        found = answer()
        for model in self.models:
            found.model_stats.add(name=model)
        return bytes(found.SerializeToString())

    def _infer(self, request: Any) -> bytes:
        decoded, raw = oip_message.decode(request.SerializeToString())
        value = decoded.feed["x"]
        if value.dtype != object:
            value = value * 2
        outputs = decoded.outputs or ("y", "twice")
        tensors = [OutTensor(each, self.datatype, value) for each in outputs]
        return oip_message.encode(decoded, raw, request.model_name, "1", tensors)


async def run(
    server: Server,
    feed: Mapping[str, Any],
    *,
    conf: ModelConf | None = None,
    fetch: tuple[str, ...] | None = None,
    name: str | None = "m",
) -> dict[str, Any]:
    model = RemoteModel(options(name=name, fetch=fetch), conf, server)
    return await model.run(dict(feed), None, 7.0, 5)


async def test_a_models_metadata_is_requested_once() -> None:
    server = Server("m")
    model = RemoteModel(options(), None, server)
    for _ in range(3):
        found = await model.run({"x": ROW}, None, 7.0, 5, b"block")
        np.testing.assert_array_equal(found["y"], ROW * 2)
        assert [*found] == ["y", "twice"]
    assert server.calls == ["ModelMetadata", *["ModelInfer"] * 3]
    assert server.fields == [b"", *[b"block"] * 3]
    assert set(server.deadlines) == {7.0}
    assert (server.request.id, server.request.model_name) == ("5", "m")


async def test_feeds_are_cast_as_for_a_local_model() -> None:
    found = await run(Server("m"), {"x": ROW.astype(np.float64), "x.lod": [0, 1]})
    assert found["y"].dtype == np.float32
    found = await run(Server("m", bf16=True), {"x": ROW})
    np.testing.assert_array_equal(found["y"], ROW * 2)
    found = await run(Server("m", strings=True), {"x": np.array([["a", "b", "ä"]])})
    assert found["y"].tolist() == [["a", "b", "ä"]]


async def test_what_a_json_document_has_becomes_arrays_as_for_a_local_model() -> None:
    for value in ([[1, 2, 3]], [[1.0, 2.0, 3.0]], "[[1, 2, 3]]"):
        found = await run(Server("m"), {"x": value})
        np.testing.assert_array_equal(found["y"], ROW * 2)
        assert found["y"].dtype == np.float32
    found = await run(Server("m"), {"x": [[None, "NaN", "Infinity"]]})
    np.testing.assert_array_equal(found["y"], [[np.nan, np.nan, np.inf]])
    found = await run(Server("m", strings=True), {"x": [["a", "b", "ä"]]})
    assert found["y"].tolist() == [["a", "b", "ä"]]


async def test_aliases_are_accepted_in_feeds_and_used_in_outputs() -> None:
    found = await run(Server("m"), {"row": ROW}, conf=CONF)
    assert [*found] == ["doubled"]
    found = await run(Server("m"), {"x": ROW}, conf=CONF, fetch=("y", "doubled", "twice"))
    assert [*found] == ["y", "doubled", "twice"]


@pytest.mark.parametrize(
    ("feed", "fetch", "error", "text"),
    [
        ({"z": ROW}, None, InputMismatch, "takes ['x'], got ['z']"),
        ({"x": ROW, "z": ROW}, None, InputMismatch, "got ['x', 'z']"),
        ({}, None, InputMismatch, "got []"),
        ({"x": ROW[0]}, None, InputMismatch, "expected the shape [?, 3]"),
        ({"x": [1.0]}, None, InputMismatch, "expected the shape [?, 3], got [1]"),
        ({"x": [["a", 1, 2]]}, None, InputMismatch, "'x' is no array: 'a' is not a number"),
        ({"x": [[1], [1, 2]]}, None, InputMismatch, "'x' is no array: "),
        ({"x": "abc"}, None, InputMismatch, "'x' is no array: "),
        ({"x": None}, None, InputMismatch, "'x' is no array: it is of type NoneType"),
        ({"x": {"y": 1}}, None, InputMismatch, "'x' is no array: it is of type dict"),
        ({"x": object()}, None, WrongType, "feed_batch must be npdata"),  # by no caller
        ({"x": ROW}, ("z",), InputMismatch, "outputs ['twice', 'y'], requested ['z']"),
    ],
)
async def test_a_feed_that_does_not_match_the_metadata_is_not_sent(
    feed: Any, fetch: Any, error: type[RequestError], text: str
) -> None:
    server = Server("m")
    with pytest.raises(error) as caught:
        await run(server, feed, fetch=fetch)
    assert text in str(caught.value)
    assert server.calls == ["ModelMetadata"]


async def test_the_default_model_is_that_with_the_ops_name_else_the_only_one() -> None:
    server = Server("scale", "other")
    await run(server, {"x": ROW}, name=None)
    assert server.request.model_name == "scale"
    server = Server("other")
    await run(server, {"x": ROW}, name=None)
    assert server.request.model_name == "other"
    for several in (Server(), Server("other", "another")):
        with pytest.raises(InferenceFailed, match="NOT_FOUND: h:1: there is no model 'scale'"):
            await run(several, {"x": ROW}, name=None)
    named = Server("other")
    with pytest.raises(InferenceFailed, match="no model 'm'"):
        await run(named, {"x": ROW})
    assert named.calls == ["ModelMetadata"]


async def test_metadata_is_requested_again_after_a_model_refused_a_feed() -> None:
    server = Server("m")
    model = RemoteModel(options(), None, server)
    server.fails = CallFailed(GrpcCode.INVALID_ARGUMENT, "h:1: it has four columns now")
    with pytest.raises(InputMismatch, match="h:1: it has four columns now"):
        await model.run({"x": ROW}, None, None, 0)
    server.fails = None
    await model.run({"x": ROW}, None, None, 0)
    assert server.calls == ["ModelMetadata", "ModelInfer"] * 2


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (GrpcCode.INVALID_ARGUMENT, InputMismatch),
        (GrpcCode.RESOURCE_EXHAUSTED, ServiceBusy),
        (GrpcCode.DEADLINE_EXCEEDED, DeadlineExceeded),
        (GrpcCode.UNAVAILABLE, Unreachable),
        (GrpcCode.CANCELLED, Unreachable),
        (GrpcCode.NOT_FOUND, InferenceFailed),
        (GrpcCode.INTERNAL, InferenceFailed),
    ],
)
def test_each_grpc_status_becomes_its_exception(
    status: GrpcCode, error: type[RequestError]
) -> None:
    found = error_of(CallFailed(status, "h:1: why"))
    assert type(found) is error
    assert str(found) == f"{status.name}: h:1: why"


class General:
    """A fake of Paddle Serving's model server with a given answer; records the request."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.request: Any = None

    async def call(
        self, request: bytes, *, deadline: float | None, method: str = METHOD, fields: bytes = b""
    ) -> bytes:
        assert (method, deadline) == (f"/{GENERAL_MODEL}/inference", 7.0)
        self.request = GENERAL.FromString(request)
        if isinstance(self._answer, Exception):
            raise self._answer
        return bytes(self._answer.SerializeToString())


GENERAL, GENERAL_ANSWER = general_model_messages()


def general_answer(*engines: str, **more: Any) -> Any:
    tensor = {"name": "y", "alias_name": "y", "elem_type": 1, "shape": [1, 3]}
    tensors = [{**tensor, "float_data": [2, 4, 6]}]
    texts = {"name": "t", "alias_name": "t", "elem_type": 20, "shape": [1], "data": ["a"]}
    outputs = [{"tensor": [*tensors, texts], "engine_name": engine} for engine in engines]
    return GENERAL_ANSWER(outputs=outputs, **more)


async def general(
    server: General,
    feed: Mapping[str, Any],
    conf: ModelConf | None = None,
    fetch: tuple[str, ...] | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    remote_options = options("general_model", name, fetch)
    return await RemoteGeneralModel(remote_options, conf, server).run(dict(feed), None, 7.0, 5)


async def test_a_general_model_request_has_the_configured_names_and_types() -> None:
    server = General(general_answer("op_0"))
    found = await general(server, {"row": ROW.astype(np.float64)}, CONF, ("doubled", "t"), "m")
    assert [*found] == ["doubled", "t"]
    np.testing.assert_array_equal(found["doubled"], ROW * 2)
    assert found["t"].tolist() == ["a"]
    (tensor,) = server.request.tensor
    assert (tensor.name, tensor.alias_name, tensor.elem_type) == ("x", "row", 1)
    assert ([*tensor.shape], [*tensor.float_data]) == ([1, 3], [1, 2, 3])
    assert [*server.request.fetch_var_names] == ["doubled", "t"]
    assert (server.request.log_id, server.request.model) == (5, "m")
    with pytest.raises(InputMismatch, match="Wrong feed name: x"):
        await general(server, {"x": ROW}, CONF)


async def test_without_a_configuration_values_are_sent_unchanged() -> None:
    server = General(general_answer("op_0"))
    found = await general(server, {"x": ROW, "n": np.array([[1]]), "n.lod": [0, 1]})
    assert [*found] == ["y", "t"]
    tensors = {each.name: each for each in server.request.tensor}
    assert (tensors["x"].elem_type, [*tensors["x"].float_data]) == (1, [1, 2, 3])
    assert (tensors["n"].elem_type, [*tensors["n"].int64_data]) == (0, [1])
    assert [*tensors["n"].lod] == [0, 1]
    assert [*server.request.fetch_var_names] == []


async def test_outputs_of_several_engines_are_separate() -> None:
    found = await general(General(general_answer("a", "b")), {"x": ROW}, None, ("y",))
    assert [*found] == ["a", "b"]
    np.testing.assert_array_equal(found["b"]["y"], ROW * 2)


async def test_errors_of_a_general_model_server_become_exceptions() -> None:
    with pytest.raises(InputMismatch, match="bad"):
        await general(General(GENERAL_ANSWER(err_no=5000, err_msg="bad")), {"x": ROW})
    with pytest.raises(InferenceFailed, match=r"the server's answer lacks \['z'\]"):
        await general(General(general_answer("a")), {"x": ROW}, None, ("z",))
    stopped = CallFailed(GrpcCode.UNAVAILABLE, "h:1: gone")
    with pytest.raises(Unreachable, match="h:1: gone"):
        await general(General(stopped), {"x": ROW})
    tensor = {"name": "y", "elem_type": 99, "shape": [1]}
    unread = GENERAL_ANSWER(outputs=[{"tensor": [tensor]}])
    with pytest.raises(InferenceFailed, match="the server's answer cannot be read"):
        await general(General(unread), {"x": ROW})


class Pipeline:
    """A fake pipeline service with a given reply function."""

    def __init__(self, answer: Callable[[pb.Request], pb.Response]) -> None:
        self._answer = answer

    async def call(
        self, request: bytes, *, deadline: float | None, method: str = METHOD, fields: bytes = b""
    ) -> bytes:
        assert method == METHOD
        return self._answer(pb.Request.FromString(request)).SerializeToString()


async def ask(
    answer: Callable[[pb.Request], pb.Response],
    feed: Mapping[str, Any],
    fetch: tuple[str, ...] | None = None,
    *,
    tensors: bool = False,
) -> dict[str, Any]:
    remote_options = options("pipeline", "inner", fetch)
    pipeline = RemotePipeline(remote_options, Pipeline(answer), "10.0.0.1", tensors=tensors)
    return await pipeline.run(dict(feed), None, None, 5)


async def test_a_pipeline_receives_texts_and_returns_lists_of_one() -> None:
    def answer(request: pb.Request) -> pb.Response:
        assert (request.name, request.logid, request.clientip) == ("inner", 5, "10.0.0.1")
        return pb.Response(key=[*request.key, "more"], value=[*request.value, "1"])

    assert await ask(answer, {"x": "look"}) == {"x": ["look"], "more": ["1"]}
    assert await ask(answer, {"x": "look"}, ("more",)) == {"more": ["1"]}
    with pytest.raises(InferenceFailed, match="the pipeline's answer has"):
        await ask(answer, {"x": "look"}, ("missing",))


async def test_a_pipeline_that_receives_tensors_returns_arrays() -> None:
    def answer(request: pb.Request) -> pb.Response:
        assert [each.name for each in request.tensors] == ["x"]
        return pb.Response(tensors=[encode("y", ROW).message()])

    found = await ask(answer, {"x": ROW}, tensors=True)
    np.testing.assert_array_equal(found["y"], ROW)


async def test_a_pipelines_error_number_is_kept() -> None:
    with pytest.raises(ProductError) as caught:
        await ask(lambda _: pb.Response(err_no=51, err_msg="no cat"), {"x": "look"})
    assert (caught.value.number, str(caught.value)) == (51, "no cat")
    with pytest.raises(ServiceBusy):
        await ask(lambda _: pb.Response(err_no=3004, err_msg="later"), {"x": "look"})
    with pytest.raises(WrongType, match="the feed cannot be sent"):
        await ask(lambda _: pb.Response(), {"x": object()})
