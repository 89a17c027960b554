"""A model, or a pipeline, in another server, as an op calls it.

A model is called by the Open Inference Protocol. What it takes is asked once and kept until the
server refuses a feed: so a feed is checked and cast here as that of a model in this process is. A
model server of Paddle Serving is called by its own protocol, over baidu_std, and a pipeline by its.

Every failure becomes an error of ours that names the endpoint; ``Unreachable`` where a call may
have run, or can run nowhere. The loop's thread only.
Source: ``docs/compatibility.md`` (remote ops).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from penstock.client.call import METHOD
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.client.messages import (
    decode_reply,
    encode_request,
    pack_request,
    raise_for_error,
    response_arrays,
)
from penstock.client.model_client import METHOD as GENERAL_METHOD
from penstock.client.model_feeds import ModelFeeds
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
from penstock.protocols.oip import BF16, OutTensor
from penstock.protocols.standard_messages import INFERENCE, inference_messages
from penstock.protocols.status import GrpcCode, error_for
from penstock.request import Feed
from penstock.runtimes.model_input import ModelInput
from penstock.runtimes.prototxt import ModelConf, Variable
from penstock.tensor import LOD_SUFFIX, TensorSpec

RemoteKind: TypeAlias = Literal["model", "general_model", "pipeline"]

_ERRORS: Final[dict[GrpcCode, type[RequestError]]] = {
    GrpcCode.INVALID_ARGUMENT: InputMismatch,
    GrpcCode.OUT_OF_RANGE: InputMismatch,
    GrpcCode.RESOURCE_EXHAUSTED: ServiceBusy,
    GrpcCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    GrpcCode.UNAVAILABLE: Unreachable,
    GrpcCode.CANCELLED: Unreachable,
    GrpcCode.ABORTED: Unreachable,
}
"""By the status of a call; others are an ``InferenceFailed``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """What an op calls.

    Attributes:
        kind: which protocol the endpoints speak.
        endpoints: where.
        name: of the model or the pipeline there; None: the op's for a model, none for a pipeline.
        op: the op's name.
        fetch_list: outputs that are wanted; None is all.
        client_config: path of the file of aliases, or of its folder.
        encryption_key: where the key of the encrypted model there is; None: it has none.
    """

    kind: RemoteKind
    endpoints: tuple[Endpoint, ...]
    name: str | None
    op: str
    fetch_list: tuple[str, ...] | None = None
    client_config: str | None = None
    encryption_key: str | None = None

    def __str__(self) -> str:
        what = self.kind if self.name is None else f"{self.kind} {self.name}"
        return f"{what} at {', '.join(map(str, self.endpoints))}"


class CallsMethods(Protocol):
    """Makes calls of any method at some of the endpoints: ``AsyncChannel``."""

    async def call(
        self, request: bytes, *, deadline: float | None, method: str = ..., fields: bytes = ...
    ) -> bytes:
        """The reply's message.

        Raises:
            CallFailed: there is none.
        """


def error_of(failed: CallFailed) -> RequestError:
    """The error of a request whose call failed."""
    kind = _ERRORS.get(failed.status, InferenceFailed)
    return kind(str(failed))


class Interface:
    """What a model takes and gives, under the names that an op uses. Immutable; pure.

    Args:
        inputs, outputs: as the server tells.
        conf: further names of them, from ``client_config``.
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
        """The feed as the server takes it; lods that it has no input for stay here.

        Raises:
            InputMismatch, WrongType: it does not fit.
        """
        fitted = {}
        for name, value in feed.items():
            found = self._inputs.get(name)
            if found is not None:
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
        """For each wanted output, as the op calls it, what the server calls it; empty is all.

        Raises:
            InputMismatch: there is no such output.
        """
        wanted = self._all if names is None else names
        unknown = [name for name in wanted if name not in self._outputs]
        if unknown:
            there = sorted({*self._outputs.values()})
            raise InputMismatch(
                f"invalid arg list: the model has outputs {there}, asked for {unknown}"
            )
        return {name: self._outputs[name] for name in wanted}


def _names_of(name: str, variables: Sequence[Variable]) -> set[str]:
    """All names of what the server calls so."""
    return {name}.union(*({v.name, v.alias} for v in variables if name in (v.name, v.alias)))


class RemoteModel:
    """A model behind the Open Inference Protocol.

    Args:
        options: which.
        conf: what ``client_config`` says.
        channel: to the endpoints.
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
        """Call it once.

        Args:
            feed: as ``Model.run`` takes it; not changed.
            fetch: outputs; None is those of the options.
            deadline: monotonic seconds.
            log_id: the request's trace id, sent as its id.
            fields: further ones of the call's head, as a block.

        Raises:
            RequestError: it failed; see ``error_of``.
        """
        try:
            interface = self._interface or await self._ask(deadline)
            self._interface = interface
            wanted = interface.fetched(self._options.fetch_list if fetch is None else fetch)
            tensors = interface.fit(feed)
            message = oip_message.encode_request(
                str(log_id), self._name, tensors, [*dict.fromkeys(wanted.values())]
            )
            reply = await self._call("ModelInfer", message, deadline, fields)
        except CallFailed as failed:
            if failed.status in (GrpcCode.INVALID_ARGUMENT, GrpcCode.NOT_FOUND):
                self._interface = None  # another model may be there by now
            raise error_of(failed) from None
        return _outputs_of(reply, wanted)

    async def _ask(self, deadline: float | None) -> Interface:
        """What the model takes and gives."""
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
        asked = request(name=self._name).SerializeToString()
        found = _parsed(response, await self._call("ModelMetadata", asked, deadline))
        return Interface(
            [_spec_of(each) for each in found.inputs],
            [each.name for each in found.outputs],
            self._conf,
        )

    async def _only_model(self, deadline: float | None) -> str | None:
        """The name of the only model there."""
        request, response = inference_messages("ModelStatistics")
        asked = request().SerializeToString()
        try:
            told = _parsed(response, await self._call("ModelStatistics", asked, deadline))
        except CallFailed:
            return None
        names = {each.name for each in told.model_stats}
        return names.pop() if len(names) == 1 else None

    async def _call(
        self, method: str, message: bytes, deadline: float | None, fields: bytes = b""
    ) -> bytes:
        path = f"/{INFERENCE}/{method}"
        return await self._channel.call(message, deadline=deadline, method=path, fields=fields)


class RemoteGeneralModel:
    """A model behind ``GeneralModelService``, which tells nothing of its inputs: what is known of
    them stands in ``client_config``.

    Args:
        options: which.
        conf: what ``client_config`` says; without it inputs go out under their own names and types.
        channel: to the endpoints.
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
        """Call it once. Where several engines answer, each has a dict under its name.

        Arguments and errors are those of ``RemoteModel.run``; ``fields`` cannot be sent.
        """
        options = self._options
        names = options.fetch_list if fetch is None else fetch
        feeds = self._feeds or ModelFeeds(_conf_of(feed))
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


def _conf_of(feed: Feed) -> ModelConf:
    """A feed as if a configuration named its inputs, and left their types open."""
    names = [name for name in feed if not name.endswith(LOD_SUFFIX)]
    feeds = tuple(Variable(name=name, alias=name, type=-1) for name in names)
    return ModelConf(feeds=feeds, fetches=(), source="the feed")


def _parsed(message: Any, reply: bytes) -> Any:
    try:
        return message.FromString(reply)
    except DecodeError as error:
        raise CallFailed(GrpcCode.INTERNAL, "the reply's bytes are not its message") from error


def _spec_of(told: Any) -> TensorSpec:
    dtype = oip.DTYPES.get(told.datatype)
    if dtype is None:
        text = f"the model's input {told.name!r} has the datatype {told.datatype!r}, unknown here"
        raise CallFailed(GrpcCode.INTERNAL, text)
    return TensorSpec(
        name=told.name,
        alias=told.name,
        dtype=dtype,
        shape=tuple(None if size < 0 else int(size) for size in told.shape) or None,
        bf16=told.datatype == BF16,
    )


def _outputs_of(reply: bytes, wanted: Mapping[str, str]) -> Feed:
    """The outputs in a reply, under the names that the op uses."""
    try:
        found = oip_message.decode_response(reply)
    except RequestError as error:
        raise InferenceFailed(f"the server's answer cannot be read: {error}") from error
    texts = {name: _texts(value) for name, value in found.items()}
    missing = [name for name in wanted.values() if name not in texts]
    if missing:
        raise InferenceFailed(f"the server's answer lacks {missing}")
    return {name: texts[there] for name, there in wanted.items()} or texts


def _texts(value: oip.Array) -> oip.Array:
    """Elements of BYTES as texts where all of them are UTF-8; other arrays as they are."""
    if value.dtype != object:
        return value
    texts = np.empty(value.size, object)
    try:
        texts[:] = [each.decode() for each in value.reshape(-1).tolist()]
    except UnicodeDecodeError:
        return value
    return texts.reshape(value.shape)


class RemotePipeline:
    """Another pipeline service.

    Args:
        options: which.
        channel: to the endpoints.
        own_address: what it is told of who calls.
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
        """Call it once. Its typed results are arrays; its texts stand in lists of one each.

        Raises:
            RequestError: the one that its ``err_no`` means, or see ``error_of``.
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
