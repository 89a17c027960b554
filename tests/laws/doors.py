"""The doors of a service: one request for a model by each protocol, with clients that exist.

A new door is a class with ``call`` and ``carries``, and one line in ``DOORS``.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from typing import Any, Final

import grpc
import httpx
import msgpack
import numpy as np
from google.protobuf import json_format

from penstock import PipelineClient
from penstock.client import CallFailed, response_arrays
from penstock.client.baidu_std import over_baidu_std
from penstock.client.endpoints import parse_endpoints
from penstock.client.messages import pack_request
from penstock.errors import RequestError
from penstock.protocols import oip, oip_message, pb
from penstock.protocols.array_text import format_array, parse_array
from penstock.protocols.general_model import Output
from penstock.protocols.general_model_message import decode_response, encode_request
from penstock.protocols.oip import OutTensor
from penstock.protocols.standard_messages import GENERAL_METHOD
from penstock.tensor import LOD_SUFFIX
from tests.laws.bare import Arrays, Bare
from tests.services.process import KEPT, ServiceProcess

TIMEOUT: Final = 30.0
_NOT_IN_PIPELINES: Final = frozenset({"UINT16", "UINT32", "UINT64", "BYTES"})


class Refused(Exception):
    """The service answered with an error."""


class Door(ABC):
    """A client of a running service; thread-safe."""

    without: frozenset[str] = frozenset()
    """Datatypes that the protocol has not."""

    lods = True
    """Whether an array may have a lod that is no input of its own."""

    def __init__(self, server: ServiceProcess) -> None:
        self.url = server.http_url
        self.endpoint = server.rpc_endpoint
        self.http = httpx.Client(
            timeout=TIMEOUT,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEPT),
        )

    @abstractmethod
    def call(self, model: Bare, feed: Arrays) -> dict[str, Any]:
        """Send one request; return the answer's arrays, or nested lists where the protocol has
        no dtypes.

        Raises:
            Refused: the answer is an error.
        """

    def carries(self, model: Bare, feed: Arrays) -> str | None:
        """Why the protocol cannot carry a request or its answer; None if it can."""
        missing = self.without & model.datatypes
        if not self.lods and feed.keys() - model.inputs.keys():
            return "it has no lods"
        return f"it has no {', '.join(sorted(missing))}" if missing else None

    def sendable(self, arrays: Arrays) -> Arrays:
        """Arrays as the protocol can send them: rounded, where it has fewer digits."""
        return arrays

    def close(self) -> None:
        """Disconnect."""
        self.http.close()

    def post(self, path: str, content: bytes, **headers: str) -> httpx.Response:
        """Send a body.

        Raises:
            Refused: the status is not 200.
        """
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = self.http.post(f"{self.url}/{path}", content=content, headers=named)
        if reply.status_code != 200:
            raise Refused(f"{reply.status_code}: {reply.text[:300]}")
        return reply


class PlainJson(Door):
    """``POST /{model}``: nested lists, whose dtypes are those of the model's inputs."""

    def call(self, model: Bare, feed: Arrays) -> dict[str, Any]:
        body = {name: value.tolist() for name, value in feed.items()}
        answer: dict[str, Any] = self.post(model.name, json.dumps(body).encode()).json()
        return answer

    def carries(self, model: Bare, feed: Arrays) -> str | None:
        if any(0 in value.shape[:-1] for value in feed.values()):
            return "a list without elements has lost its further axes"
        return super().carries(model, feed)


class PlainMsgpack(PlainJson):
    """The same in msgpack."""

    def call(self, model: Bare, feed: Arrays) -> dict[str, Any]:
        body = msgpack.packb({name: value.tolist() for name, value in feed.items()})
        media = {"content_type": "application/msgpack", "accept": "application/msgpack"}
        answer: dict[str, Any] = msgpack.unpackb(self.post(model.name, body, **media).content)
        return answer


class OipJson(Door):
    """The Open Inference Protocol with data in JSON."""

    lods = False

    def call(self, model: Bare, feed: Arrays) -> dict[str, Any]:
        inputs = [
            {
                "name": each.name,
                "shape": each.array.shape,
                "datatype": each.datatype,
                "data": each.array.ravel().tolist(),
            }
            for each in tensors(model, feed)
        ]
        body = json.dumps({"inputs": inputs}).encode()
        answer = self.post(f"v2/models/{model.name}/infer", body).json()
        return {each["name"]: _listed(each, each["data"]) for each in answer["outputs"]}


class OipBinary(Door):
    """The Open Inference Protocol with raw bytes after the JSON."""

    lods = False

    def call(self, model: Bare, feed: Arrays) -> dict[str, Any]:
        given = tensors(model, feed)
        raws = [oip.to_raw(each) for each in given]
        inputs = [
            {
                "name": each.name,
                "shape": each.array.shape,
                "datatype": each.datatype,
                "parameters": {"binary_data_size": len(raw)},
            }
            for each, raw in zip(given, raws, strict=True)
        ]
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        path = f"v2/models/{model.name}/infer"
        size = {"inference_header_content_length": str(len(head))}
        reply = self.post(path, head + b"".join(raws), **size)
        end = int(reply.headers["inference-header-content-length"])
        rest, found = reply.content[end:], {}
        for each in json.loads(reply.content[:end])["outputs"]:
            count = each["parameters"]["binary_data_size"]
            raw, rest = rest[:count], rest[count:]
            if each["datatype"] == "BYTES":
                data = _texts(raw)
            else:
                data = np.frombuffer(raw, oip.DTYPES[each["datatype"]])
            found[each["name"]] = data.reshape(each["shape"])
        assert not rest
        return found


class OipGrpc(Door):
    """The Open Inference Protocol over gRPC, with raw bytes."""

    lods = False

    def __init__(self, server: ServiceProcess) -> None:
        super().__init__(server)
        self._channel = grpc.insecure_channel(self.endpoint)
        method = "/inference.GRPCInferenceService/ModelInfer"
        self._infer = self._channel.unary_unary(method, None, None)

    def call(self, model: Bare, feed: Arrays) -> dict[str, Any]:
        message = oip_message.encode_request("", model.name, tensors(model, feed), ())
        try:
            answer = oip_message.decode_response(self._infer(message, timeout=TIMEOUT))
        except grpc.RpcError as error:
            raise Refused(str(error)) from error
        return {
            name: np.vectorize(_text, [object])(value) if value.dtype == object else value
            for name, value in answer.items()
        }

    def close(self) -> None:
        super().close()
        self._channel.close()


class PipelineGrpc(Door):
    """The pipeline protocol over gRPC, with tensors."""

    without = _NOT_IN_PIPELINES
    as_tensors = True

    def __init__(self, server: ServiceProcess) -> None:
        super().__init__(server)
        self._client = PipelineClient()
        self._client.connect([self.endpoint])

    def call(self, model: Bare, feed: Arrays) -> dict[str, Any]:
        try:
            reply = self._client.predict(
                feed, pack_tensor_format=self.as_tensors, timeout=TIMEOUT, name=model.name
            )
        except CallFailed as error:
            raise Refused(str(error)) from error
        return _of_reply(reply)

    def carries(self, model: Bare, feed: Arrays) -> str | None:
        return _odd_lod(feed) or super().carries(model, feed)

    def close(self) -> None:
        super().close()
        self._client.close()


class PipelineTexts(PipelineGrpc):
    """The same with arrays as texts, whose floats have eight digits after the point."""

    without = frozenset({"BYTES"})
    as_tensors = False

    def carries(self, model: Bare, feed: Arrays) -> str | None:
        return Door.carries(self, model, feed)

    def sendable(self, arrays: Arrays) -> Arrays:
        return {
            name: value if value.dtype == object else parse_array(format_array(value))
            for name, value in arrays.items()
        }


class PipelineHttp(Door):
    """The pipeline protocol over HTTP, with tensors."""

    without = _NOT_IN_PIPELINES

    def carries(self, model: Bare, feed: Arrays) -> str | None:
        return _odd_lod(feed) or super().carries(model, feed)

    def call(self, model: Bare, feed: Arrays) -> dict[str, Any]:
        request = pack_request(feed, own_address=lambda: "", pack_tensor_format=True)
        body = json_format.MessageToJson(request).encode()
        reply = self.post(f"{model.name}/prediction", body)
        answer = reply.json()
        # Not by protobuf, which cannot read the largest float32 that it writes itself.
        numbers = [_without_numbers(each) for each in answer.get("tensors", ())]
        message = json_format.ParseDict(answer, pb.Response())
        for tensor, floats in zip(message.tensors, numbers, strict=True):
            tensor.float_data.extend(floats)
        return _of_reply(message)


class BaiduStd(Door):
    """The original's model server over baidu_std."""

    without = frozenset({"UINT16", "UINT32", "UINT64"})

    def __init__(self, server: ServiceProcess) -> None:
        super().__init__(server)
        self._channel = over_baidu_std(parse_endpoints([self.endpoint]))

    def call(self, model: Bare, feed: Arrays) -> dict[str, Any]:
        inputs = [
            Output(name=each.name, tensor=each, lod=[*feed.get(each.name + LOD_SUFFIX, ())])
            for each in tensors(model, feed)
        ]
        message = encode_request(inputs, model=model.name)
        deadline = time.monotonic() + TIMEOUT
        try:
            reply = self._channel.call(message, deadline=deadline, method=GENERAL_METHOD)
        except (CallFailed, RequestError) as error:
            raise Refused(str(error)) from error
        response = decode_response(reply)
        if response.err_no:
            raise Refused(f"{response.err_no}: {response.err_msg}")
        found: dict[str, Any] = {}
        for engine, outputs in response.outputs.items():
            for each in outputs:
                many = len(response.outputs) > 1
                name = f"{engine}/{each.tensor.name}" if many else each.tensor.name
                found[name] = each.tensor.array
                if each.lod:
                    found[name + LOD_SUFFIX] = np.array(each.lod, np.int32)
        return found

    def close(self) -> None:
        super().close()
        self._channel.close()


DOORS: Final[dict[str, type[Door]]] = {
    "plain-json": PlainJson,
    "plain-msgpack": PlainMsgpack,
    "oip-json": OipJson,
    "oip-binary": OipBinary,
    "oip-grpc": OipGrpc,
    "pipeline-grpc": PipelineGrpc,
    "pipeline-texts": PipelineTexts,
    "pipeline-http": PipelineHttp,
    "baidu-std": BaiduStd,
}


def tensors(model: Bare, feed: Arrays) -> list[OutTensor]:
    """The inputs of the Open Inference Protocol."""
    return [
        OutTensor(name, model.inputs[name], value)
        for name, value in feed.items()
        if name in model.inputs
    ]


def _odd_lod(feed: Arrays) -> str | None:
    odd = any(name.endswith(LOD_SUFFIX) and len(value) % 2 for name, value in feed.items())
    return "a lod in a tensor has an even number of offsets" if odd else None


def _of_reply(reply: Any) -> dict[str, Any]:
    if reply.err_no:
        raise Refused(f"{reply.err_no}: {reply.err_msg}")
    found = response_arrays(reply)
    for name, text in zip(reply.key, reply.value, strict=True):
        if name not in found:  # else the tensor, which is exact
            found[name] = parse_array(text)
    return {
        name: value.reshape(-1) if name.endswith(LOD_SUFFIX) else value
        for name, value in found.items()
    }


def _without_numbers(tensor: dict[str, Any]) -> list[float]:
    """Take the numbers of float32 out of a tensor."""
    return [*np.array(tensor.pop("float_data", []), np.float32)]


def _listed(head: Any, data: Any) -> Any:
    dtype = object if head["datatype"] == "BYTES" else oip.DTYPES[head["datatype"]]
    return np.array(data, dtype).reshape(head["shape"])


def _texts(raw: bytes) -> Any:
    found = []
    while raw:
        end = 4 + int.from_bytes(raw[:4], "little")
        found.append(raw[4:end].decode())
        raw = raw[end:]
    return np.array(found, object)


def _text(value: bytes) -> str:
    return value.decode()
