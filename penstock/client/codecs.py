"""What the SDK sends and gets, for each kind of service: feeds to messages, replies to dicts.

Pure, but for the caller's address that a pipeline gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from penstock.client.call import METHOD as PIPELINE_METHOD
from penstock.client.errors import garbage
from penstock.client.messages import (
    decode_reply,
    encode_request,
    pack_request,
    raise_for_error,
    response_arrays,
)
from penstock.client.model_feeds import ModelFeeds, conf_of
from penstock.client.model_stream import as_texts, encode_feed, inputs_of
from penstock.errors import InferenceFailed, PackageError, RequestError
from penstock.protocols import oip_json, oip_message
from penstock.protocols.general_model_message import decode_response as decode_general
from penstock.protocols.general_model_message import encode_request as encode_general
from penstock.protocols.standard_messages import INFERENCE
from penstock.protocols.status import error_for

Decode = Callable[[bytes], dict[str, Any]]


class Codec(Protocol):
    """Encodes feeds for one kind of service.

    Attributes:
        method: the path of the method.
    """

    method: str

    def encode(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str],
        log_id: int,
        *,
        batch: bool,
        times: bool = False,
    ) -> tuple[bytes, Decode]:
        """Return the message of a feed, and what decodes its reply. With ``times`` the message
        requests times, where the protocol has a place for them.

        Raises:
            TypeError, ValueError, RequestError: the feed cannot be sent. The decoder raises the
                RequestError of the reply, or CallFailed if it is no reply.
        """

    def times_of(self, reply: bytes) -> Sequence[int]:
        """Return the begins and ends in a reply, in microseconds of one clock; empty for none."""


class PipelineCodec:
    """A pipeline service.

    Args:
        name: the service's name; empty for any.
        own_address: sent as ``clientip``.
        tensors: whether values are sent as tensors instead of texts.
    """

    method = PIPELINE_METHOD

    def __init__(self, name: str, own_address: Callable[[], str], *, tensors: bool) -> None:
        self._name = name
        self._own_address = own_address
        self._tensors = tensors

    def encode(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str],
        log_id: int,
        *,
        batch: bool,
        times: bool = False,
    ) -> tuple[bytes, Decode]:
        """As ``PipelineClient.predict``; ``batch`` has no effect."""
        message = pack_request(
            feed,
            own_address=self._own_address,
            pack_tensor_format=self._tensors,
            log_id=log_id or None,
            name=self._name,
        )

        def decode(reply: bytes) -> dict[str, Any]:
            response = decode_reply(reply)
            raise_for_error(response)
            texts = dict(zip(response.key, response.value, strict=False))
            try:
                return _fetched(texts | response_arrays(response), fetch)
            except PackageError as error:
                raise garbage(error) from None

        return encode_request(message), decode

    def times_of(self, reply: bytes) -> Sequence[int]:
        """None."""
        return ()


class OipCodec:
    """A model server of the Open Inference Protocol.

    Args:
        name: the model's name.
    """

    method = f"/{INFERENCE}/ModelInfer"

    def __init__(self, name: str) -> None:
        self._name = name

    def encode(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str],
        log_id: int,
        *,
        batch: bool,
        times: bool = False,
    ) -> tuple[bytes, Decode]:
        """Arrays are sent as they are, other values as of ``model_stream.encode_feed``."""

        def decode(reply: bytes) -> dict[str, Any]:
            try:
                found = oip_message.decode_response(reply)
            except RequestError as error:
                raise garbage(error) from None
            return _fetched({name: as_texts(value) for name, value in found.items()}, fetch)

        return encode_feed(feed, self._name, _id_of(log_id), fetch), decode

    def times_of(self, reply: bytes) -> Sequence[int]:
        """None."""
        return ()


class OipHttpCodec:
    """A model server of the Open Inference Protocol, over HTTP.

    Args:
        name: the model's name.
        binary: whether tensors are raw bytes.
    """

    def __init__(self, name: str, *, binary: bool) -> None:
        self.method = f"/v2/models/{quote(name, safe='')}/infer"
        self._binary = binary

    def encode(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str],
        log_id: int,
        *,
        batch: bool,
        times: bool = False,
    ) -> tuple[bytes, Decode]:
        """As of ``OipCodec``."""
        body, size = oip_json.encode_request(
            inputs_of(feed), binary=self._binary, outputs=fetch, request_id=_id_of(log_id)
        )
        fields = [b"content-length: %d\r\n" % len(body)]
        if size is None:
            fields.append(b"content-type: application/json\r\n")
        else:
            fields.append(b"content-type: application/octet-stream\r\n")
            fields.append(b"%b: %d\r\n" % (oip_json.JSON_SIZE.encode(), size))

        def decode(reply: bytes) -> dict[str, Any]:
            size, _, body = reply.partition(b"\n")
            try:
                found = oip_json.decode_response(body, int(size) if size != b"-1" else None)
            except RequestError as error:
                raise garbage(error) from None
            return _fetched({name: as_texts(value) for name, value in found.items()}, fetch)

        return b"".join([*fields, b"\r\n", body]), decode

    def times_of(self, reply: bytes) -> Sequence[int]:
        """None."""
        return ()


class GeneralCodec:
    """Paddle Serving's ``GeneralModelService``.

    Args:
        feeds: the model's inputs and outputs; None: names and types of a feed stay as they are.
        name: the model's name; empty for the server's only one.
        service_name: the full name of the service.
    """

    def __init__(self, feeds: ModelFeeds | None, name: str, service_name: str) -> None:
        self.method = f"/{service_name}/inference"
        self._feeds = feeds
        self._name = name

    def encode(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str],
        log_id: int,
        *,
        batch: bool,
        times: bool = False,
    ) -> tuple[bytes, Decode]:
        """See ``ModelFeeds.inputs``. Of several engines each has a dict under its name."""
        feeds = self._feeds or ModelFeeds(conf_of(feed))
        tensors = feeds.inputs(feed, batch=batch)

        def decode(reply: bytes) -> dict[str, Any]:
            try:
                response = decode_general(reply)
            except RequestError as error:
                raise garbage(error) from None
            if response.err_no:
                raise error_for(response.err_no, response.err_msg)
            engines: dict[str, Any] = feeds.outputs(response)
            return engines.popitem()[1] if len(engines) == 1 else engines

        message = encode_general(tensors, fetch, log_id=log_id, model=self._name, profile=times)
        return message, decode

    def times_of(self, reply: bytes) -> Sequence[int]:
        """The ``profile_time`` of the reply."""
        return decode_general(reply).profile or ()


def _id_of(log_id: int) -> str:
    return str(log_id) if log_id else ""


def _fetched(found: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    missing = [name for name in names if name not in found]
    if missing:
        raise InferenceFailed(f"the answer has {sorted(found)}, not {missing}")
    return {name: found[name] for name in names} or found
