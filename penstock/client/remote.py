"""Calls a model or a pipeline in another server, for remote ops.

A model is called by the Open Inference Protocol. Its metadata is requested once and cached until
the server refuses a feed, so that feeds are checked and cast here, as for a local model. A model
server of Paddle Serving is called by its own protocol over baidu_std, a pipeline by the pipeline
protocol.

Every failure becomes a ``RequestError`` that names the endpoint; ``Unreachable`` if the call may
have run, or if no endpoint is available. Use on the loop's thread only.
Source: ``docs/compatibility.md`` (remote ops).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from google.protobuf.message import DecodeError

from penstock.client.call import METHOD
from penstock.client.errors import CallFailed
from penstock.client.messages import (
    decode_reply,
    encode_request,
    pack_request,
    raise_for_error,
    response_arrays,
)
from penstock.client.model_feeds import ModelFeeds, conf_of
from penstock.client.model_stream import as_texts
from penstock.client.remote_options import RemoteOptions
from penstock.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InputMismatch,
    RequestError,
    ServiceBusy,
    Unreachable,
    WrongType,
)
from penstock.protocols import oip, oip_message
from penstock.protocols.general_model_message import decode_response as decode_general
from penstock.protocols.general_model_message import encode_request as encode_general
from penstock.protocols.json_arrays import array_of
from penstock.protocols.oip import BF16, OutTensor
from penstock.protocols.standard_messages import GENERAL_METHOD, INFERENCE, inference_messages
from penstock.protocols.status import GrpcCode, error_for
from penstock.request import Feed
from penstock.runtimes.model_input import ModelInput
from penstock.runtimes.prototxt import ModelConf, Variable
from penstock.tensor import LOD_SUFFIX, TensorSpec

_ERRORS: Final[dict[GrpcCode, type[RequestError]]] = {
    GrpcCode.INVALID_ARGUMENT: InputMismatch,
    GrpcCode.OUT_OF_RANGE: InputMismatch,
    GrpcCode.RESOURCE_EXHAUSTED: ServiceBusy,
    GrpcCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    GrpcCode.UNAVAILABLE: Unreachable,
    GrpcCode.CANCELLED: Unreachable,
    GrpcCode.ABORTED: Unreachable,
}
"""Errors by the status of a call; any other status is an ``InferenceFailed``."""


_OF_JSON: Final = frozenset((list, str, int, float, bool, dict, type(None)))
"""Types of values in a JSON document, which may come from a caller unchanged."""


class CallsMethods(Protocol):
    """Calls methods of the endpoints: ``AsyncChannel``, or ``RoutedChannel`` of several."""

    async def call(
        self, request: bytes, *, deadline: float | None, method: str = ..., fields: bytes = ...
    ) -> bytes:
        """Make a call; return the reply's message.

        Raises:
            CallFailed: there was no reply.
        """


def error_of(failed: CallFailed) -> RequestError:
    """Return the error of a request whose remote call failed."""
    kind = _ERRORS.get(failed.status, InferenceFailed)
    return kind(str(failed))


class Interface:
    """The inputs and outputs of a remote model, under the names that an op uses. Immutable; pure.

    Args:
        inputs, outputs: from the server's metadata.
        conf: their aliases, from ``client_config``.
    """

    def __init__(
        self, inputs: Sequence[TensorSpec], outputs: Sequence[str], conf: ModelConf | None
    ) -> None:
        self._inputs: dict[str, ModelInput] = {}
        self._required = frozenset(each.name for each in inputs)
        self._outputs: dict[str, str] = {}
        feeds, fetches = (conf.feeds, conf.fetches) if conf else ((), ())
        for spec in inputs:
            for name in _names_of(spec.name, feeds):
                self._inputs[name] = ModelInput(spec)
        for output in outputs:
            self._outputs |= dict.fromkeys(_names_of(output, fetches), output)
        self._all = tuple(each.alias for each in fetches)

    def fit(self, feed: Feed) -> list[OutTensor]:
        """Check and cast a feed for the server; lods without an input are dropped. What a JSON
        document has, such as nested lists of numbers, becomes arrays, as for ``Model`` ops.

        Raises:
            InputMismatch, WrongType: the feed does not fit the model.
        """
        fitted = {}
        for name, value in feed.items():
            found = self._inputs.get(name)
            if found is not None:
                if type(value) in _OF_JSON and not found.takes_offsets:
                    value = array_of(name, value, found.dtype)
                datatype = oip.datatype_of(found.spec)
                fitted[found.name] = OutTensor(found.name, datatype, found.fit(value))
            elif not name.endswith(LOD_SUFFIX):
                fitted[name] = OutTensor(name, "", np.empty(0))
        if fitted.keys() != self._required:
            raise InputMismatch(
                f"invalid arg list: the model takes {sorted(self._required)}, got {sorted(fitted)}"
            )
        return [*fitted.values()]

    def fetched(self, names: Sequence[str] | None) -> dict[str, str]:
        """Return the server's names of the wanted outputs, by the op's names; empty for all.

        Raises:
            InputMismatch: an output does not exist.
        """
        wanted = self._all if names is None else names
        unknown = [name for name in wanted if name not in self._outputs]
        if unknown:
            there = sorted({*self._outputs.values()})
            raise InputMismatch(
                f"invalid arg list: the model has outputs {there}, requested {unknown}"
            )
        return {name: self._outputs[name] for name in wanted}


def _names_of(name: str, variables: Sequence[Variable]) -> set[str]:
    """Return all names of the input or output that the server calls ``name``."""
    return {name}.union(*({v.name, v.alias} for v in variables if name in (v.name, v.alias)))


class RemoteModel:
    """A remote model, by the Open Inference Protocol.

    Args:
        options: the op's options.
        conf: the contents of ``client_config``.
        channel: calls the endpoints.
    """

    def __init__(
        self, options: RemoteOptions, conf: ModelConf | None, channel: CallsMethods
    ) -> None:
        self._options = options
        self._conf = conf
        self._channel = channel
        self._name = options.name or options.op
        self._interface: Interface | None = None

    async def run(
        self,
        feed: Feed,
        fetch: Sequence[str] | None,
        deadline: float | None,
        log_id: int,
        fields: bytes = b"",
    ) -> Feed:
        """Call the model once.

        Args:
            feed: as for ``Model.run``; not changed.
            fetch: the outputs to return; None for those of the options.
            deadline: monotonic seconds.
            log_id: the request's trace id, sent as its id.
            fields: a header block of further fields.

        Raises:
            RequestError: the call failed; see ``error_of``.
        """
        try:
            interface = await self.interface(deadline)
            wanted = interface.fetched(self._options.fetch_list if fetch is None else fetch)
            tensors = interface.fit(feed)
            message = oip_message.encode_request(
                str(log_id), self._name, tensors, [*dict.fromkeys(wanted.values())]
            )
            reply = await self._call("ModelInfer", message, deadline, fields)
        except CallFailed as failed:
            raise self.failed(failed) from None
        return outputs_of(reply, wanted)

    @property
    def name(self) -> str:
        """The model's name at the server."""
        return self._name

    @property
    def fetch_list(self) -> Sequence[str] | None:
        """The outputs to return; None for all."""
        return self._options.fetch_list

    async def interface(self, deadline: float | None) -> Interface:
        """The model's inputs and outputs, requested if they are not cached.

        Raises:
            CallFailed: there was no reply.
        """
        self._interface = self._interface or await self._ask(deadline)
        return self._interface

    def failed(self, failed: CallFailed) -> RequestError:
        """The error of a request whose call failed; the cached inputs and outputs may be wrong."""
        if failed.status in (GrpcCode.INVALID_ARGUMENT, GrpcCode.NOT_FOUND):
            self._interface = None  # the server may have another model now
        return error_of(failed)

    async def _ask(self, deadline: float | None) -> Interface:
        """Return the model's inputs and outputs, requested if they are not cached."""
        try:
            return await self._metadata(deadline)
        except CallFailed as failed:
            if failed.status is not GrpcCode.NOT_FOUND or self._options.name is not None:
                raise
            only = await self._only_model(deadline)
            if only is None:
                raise
            self._name = only
        return await self._metadata(deadline)

    async def _metadata(self, deadline: float | None) -> Interface:
        request, response = inference_messages("ModelMetadata")
        message = request(name=self._name).SerializeToString()
        found = _parsed(response, await self._call("ModelMetadata", message, deadline))
        return Interface(
            [_spec_of(each) for each in found.inputs],
            [each.name for each in found.outputs],
            self._conf,
        )

    async def _only_model(self, deadline: float | None) -> str | None:
        """Return the name of the server's only model; None if it has several."""
        request, response = inference_messages("ModelStatistics")
        message = request().SerializeToString()
        try:
            statistics = _parsed(response, await self._call("ModelStatistics", message, deadline))
        except CallFailed:
            return None
        names = {each.name for each in statistics.model_stats}
        return names.pop() if len(names) == 1 else None

    async def _call(
        self, method: str, message: bytes, deadline: float | None, fields: bytes = b""
    ) -> bytes:
        path = f"/{INFERENCE}/{method}"
        return await self._channel.call(message, deadline=deadline, method=path, fields=fields)


class RemoteGeneralModel:
    """A remote model, by ``GeneralModelService``, which has no metadata of inputs.

    Args:
        options: the op's options.
        conf: the contents of ``client_config``; without it, inputs keep their own names and types.
        channel: calls the endpoints.
    """

    def __init__(
        self, options: RemoteOptions, conf: ModelConf | None, channel: CallsMethods
    ) -> None:
        self._options = options
        self._feeds = None if conf is None else ModelFeeds(conf)
        self._channel = channel

    async def run(
        self,
        feed: Feed,
        fetch: Sequence[str] | None,
        deadline: float | None,
        log_id: int,
        fields: bytes = b"",
    ) -> Feed:
        """Call the model once. If several engines answer, each has a dict under its name.

        Arguments and errors as in ``RemoteModel.run``; ``fields`` has no effect.
        """
        options = self._options
        names = options.fetch_list if fetch is None else fetch
        feeds = self._feeds or ModelFeeds(conf_of(feed))
        tensors = feeds.inputs(feed, batch=True)
        request = encode_general(tensors, names or (), log_id=log_id, model=options.name or "")
        try:
            reply = await self._channel.call(request, deadline=deadline, method=GENERAL_METHOD)
        except CallFailed as failed:
            raise error_of(failed) from None
        try:
            response = decode_general(reply)
        except RequestError as error:
            raise InferenceFailed(f"the server's answer cannot be read: {error}") from error
        if response.err_no:
            raise error_for(response.err_no, response.err_msg)
        engines: dict[str, Any] = feeds.outputs(response)
        for outputs in engines.values():
            missing = [name for name in names or () if name not in outputs]
            if missing:
                raise InferenceFailed(f"the server's answer lacks {missing}")
        return engines.popitem()[1] if len(engines) == 1 else engines


def _parsed(message: Any, reply: bytes) -> Any:
    try:
        return message.FromString(reply)
    except DecodeError as error:
        raise CallFailed(GrpcCode.INTERNAL, "the reply's bytes are not its message") from error


def _spec_of(spec: Any) -> TensorSpec:
    dtype = oip.DTYPES.get(spec.datatype)
    if dtype is None:
        text = f"the model's input {spec.name!r} has the datatype {spec.datatype!r}, unknown here"
        raise CallFailed(GrpcCode.INTERNAL, text)
    return TensorSpec(
        name=spec.name,
        alias=spec.name,
        dtype=dtype,
        shape=tuple(None if size < 0 else int(size) for size in spec.shape) or None,
        bf16=spec.datatype == BF16,
    )


def outputs_of(reply: bytes, wanted: Mapping[str, str]) -> Feed:
    """Decode the outputs of a reply, under the names that the op uses.

    Raises:
        InferenceFailed: it cannot be decoded, or lacks an output.
    """
    try:
        found = oip_message.decode_response(reply)
    except RequestError as error:
        raise InferenceFailed(f"the server's answer cannot be read: {error}") from error
    return wanted_of({name: as_texts(value) for name, value in found.items()}, wanted)


def wanted_of(outputs: Feed, wanted: Mapping[str, str]) -> Feed:
    """The outputs of a reply under the names that the op uses.

    Raises:
        InferenceFailed: one is missing.
    """
    missing = [name for name in wanted.values() if name not in outputs]
    if missing:
        raise InferenceFailed(f"the server's answer lacks {missing}")
    return {name: outputs[there] for name, there in wanted.items()} or outputs


class RemotePipeline:
    """Another pipeline service.

    Args:
        options: the op's options.
        channel: calls the endpoints.
        own_address: sent as ``clientip``.
        tensors: whether feeds are sent as tensors instead of texts.
    """

    def __init__(
        self, options: RemoteOptions, channel: CallsMethods, own_address: str, *, tensors: bool
    ) -> None:
        self._options = options
        self._channel = channel
        self._own_address = own_address
        self._tensors = tensors

    async def run(
        self,
        feed: Feed,
        fetch: Sequence[str] | None,
        deadline: float | None,
        log_id: int,
        fields: bytes = b"",
    ) -> Feed:
        """Call the pipeline once. Its tensors become arrays, each text a list of one text.

        Raises:
            RequestError: the error of its ``err_no``, or see ``error_of``.
        """
        request = _packed(feed, self._options, self._own_address, log_id, tensors=self._tensors)
        try:
            reply = await self._channel.call(
                request, deadline=deadline, method=METHOD, fields=fields
            )
            response = decode_reply(reply)
        except CallFailed as failed:
            raise error_of(failed) from None
        raise_for_error(response)
        names = self._options.fetch_list if fetch is None else fetch
        texts = zip(response.key, response.value, strict=False)
        found: Feed = {key: [value] for key, value in texts} | response_arrays(response)
        if names is None:
            return found
        missing = [name for name in names if name not in found]
        if missing:
            raise InferenceFailed(f"the pipeline's answer has {sorted(found)}, not {missing}")
        return {name: found[name] for name in names}


def _packed(
    feed: Feed, options: RemoteOptions, address: str, log_id: int, *, tensors: bool
) -> bytes:
    try:
        return encode_request(
            pack_request(
                feed,
                own_address=lambda: address,
                pack_tensor_format=tensors,
                log_id=log_id,
                name=options.name or "",
            )
        )
    except (TypeError, ValueError) as error:
        raise WrongType(f"the feed cannot be sent: {error}") from error
