"""``HttpClient``: calls a model server over HTTP, or over gRPC."""

import gzip
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, Final

from google.protobuf.message import DecodeError

from paddle_serving_client.configured import ConfiguredClient
from penstock.client.channels import Channel
from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import CallFailed
from penstock.client.messages import MAX_MESSAGE_BYTES
from penstock.client.token import NoRedirects, Token, bearer, with_token
from penstock.errors import InputMismatch, RequestError, WrongType
from penstock.protocols import general_model_json, general_model_message
from penstock.protocols.general_model import Output
from penstock.protocols.gzip import unpack
from penstock.protocols.standard_messages import GENERAL_METHOD, general_model_messages

__all__ = ["HttpClient"]

_log = logging.getLogger(__name__)

_PACKED_FROM: Final = 512
"""Minimum size of a compressed request in bytes."""
_MOST_SAID: Final = 4096
"""Maximum bytes of a failed response in the log."""


class HttpClient(ConfiguredClient):
    """Calls one model server. Thread-safe; a forked child may use the parent's client.

    Args:
        ip, port: the server.
        service_name: the path of the URL.
        token: a key or token for a server with ``security``, or a function that returns the current
            one; sent over HTTP and gRPC.

    Raises:
        ValueError: a header field cannot hold the token.
    """

    def __init__(
        self,
        ip: str = "127.0.0.1",
        port: str = "9393",
        service_name: str = "/GeneralModelService/inference",
        *,
        token: Token | None = None,
    ) -> None:
        super().__init__()
        if isinstance(token, str):
            bearer(token)
        self._token = token
        self._scheme = "http"
        self._endpoint = f"{ip}:{port}"
        self._service_name = service_name
        self._timeout = 20.0
        self._retries = 0
        self._as_proto = True
        self._over_grpc = False
        self._packs = self._wants_packed = False
        self._headers: dict[str, str] = {}
        self._calls: Channel | None = None

    def connect(self, url: str | Sequence[str] | None = None, encryption: bool = False) -> None:
        """Set the server's address. Connections are made by the first call.

        Args:
            url: ``host:port``, ``http://host:port``, ``https://host:port``, or a list of one.
            encryption: send the model's key at once.

        Raises:
            ValueError: ``url`` has none of these forms.
        """
        if url is not None:
            given = url if isinstance(url, str) else url[0]
            scheme, separator, endpoint = given.rpartition("://")
            if separator and scheme not in ("http", "https"):
                raise ValueError(f"give host:port, or a URL of http or https, got {given!r}")
            self._scheme = scheme or "http"
            self._endpoint = str(parse_endpoints([endpoint.rstrip("/")])[0])
        if encryption:
            self._endpoint = self.port_for_key(self._endpoint)

    def set_http_proto(self, http_proto: bool) -> None:
        """Send protobuf, the default, or JSON."""
        self._as_proto = http_proto

    def set_use_grpc_client(self, use_grpc_client: bool) -> None:
        """Set whether ``predict`` calls over gRPC."""
        self._over_grpc = use_grpc_client

    def set_service_name(self, service_name: str) -> None:
        """Set the path of the URL."""
        self._service_name = service_name

    def set_timeout_ms(self, timeout_ms: int) -> None:
        """Set the timeout of calls; the default is 20 seconds."""
        if not isinstance(timeout_ms, int):
            raise ValueError("timeout_ms must be an int of milliseconds")
        self._timeout = timeout_ms / 1000

    def set_max_retries(self, retry_times: int = 3) -> None:
        """Set the number of retries when no connection can be made; the default is 0."""
        if not isinstance(retry_times, int):
            raise ValueError("retry_times must be an int")
        self._retries = retry_times

    def set_max_body_size(self, max_body_size: int) -> None:
        """No effect: the limit of a response over gRPC is 512 MiB, the original's default."""

    def add_http_headers(self, headers: Mapping[str, str]) -> None:
        """Send these header fields with every request."""
        self._headers |= headers

    def set_request_compress(self, try_request_gzip: bool) -> None:
        """Set whether requests of more than 512 bytes are compressed; the default is no."""
        self._packs = try_request_gzip

    def set_response_compress(self, try_response_gzip: bool) -> None:
        """Set whether compressed responses are accepted; the default is no."""
        self._wants_packed = try_response_gzip

    def get_serving_port(self) -> None:
        """Send the key, and call the port that the server then serves the model on."""
        self._endpoint = self.port_for_key(self._endpoint)

    def predict(
        self,
        feed: Any = None,
        fetch: str | Sequence[str] | None = None,
        batch: bool = False,
        need_variant_tag: bool = False,
        log_id: int = 0,
    ) -> Any:
        """Make one call over HTTP or gRPC; see ``http_client_predict``."""
        call = self.grpc_client_predict if self._over_grpc else self.http_client_predict
        return call(feed, fetch, batch, need_variant_tag, log_id)

    def http_client_predict(
        self,
        feed: Any = None,
        fetch: str | Sequence[str] | None = None,
        batch: bool = False,
        need_variant_tag: bool = False,
        log_id: int = 0,
    ) -> Any:
        """Make one call over HTTP.

        Args:
            feed: as in ``Client.predict``; or a list or tuple of the inputs' values, in order.
            fetch: aliases of outputs; None or an empty list selects all.
            batch: whether the values have a batch axis.
            need_variant_tag: no effect; there are no variants.
            log_id: for the server's log.

        Returns:
            The ``Response`` message, or a dict if JSON is sent. None if the call fails; the reason
            is logged.

        Raises:
            ValueError: the feed does not fit the model.
        """
        tensors, wanted = self._tensors(feed, batch), self.wanted(fetch)
        headers = {"Content-Type": "application/proto" if self._as_proto else "application/json"}
        if self._wants_packed:
            headers["Accept-Encoding"] = "gzip"
        form = general_model_message if self._as_proto else general_model_json
        body = form.encode_request(tensors, wanted, log_id=log_id)
        if self._packs and len(body) > _PACKED_FROM:
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        headers |= dict(with_token([*self._headers.items()], self._token))
        try:
            answer = self._post(body, headers)
            return _message(answer) if self._as_proto else json.loads(answer)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(_MOST_SAID).decode(errors="replace")
            _log.error("http post error: HTTP %s: %s", error.code, text)
        except (OSError, HTTPException) as error:
            _log.error("http post error: %s: %s", self._endpoint, getattr(error, "reason", error))
        except (RequestError, DecodeError, ValueError) as error:
            _log.error("http post error: the answer cannot be read: %s", error)
        return None

    def grpc_client_predict(
        self,
        feed: Any = None,
        fetch: str | Sequence[str] | None = None,
        batch: bool = False,
        need_variant_tag: bool = False,
        log_id: int = 0,
    ) -> Any:
        """Make one call over gRPC; arguments and result as in ``http_client_predict``."""
        request = general_model_message.encode_request(
            self._tensors(feed, batch), self.wanted(fetch), log_id=log_id
        )
        calls = self._calls
        if calls is None or not calls.is_ours():
            calls = self._calls = Channel(
                parse_endpoints([self._endpoint]), None, token=self._token
            )
        deadline = time.monotonic() + self._timeout
        try:
            return _message(calls.call(request, deadline=deadline, method=GENERAL_METHOD))
        except (CallFailed, DecodeError) as error:
            _log.error("Grpc inference error occur: %s", error)
            return None

    def _tensors(self, feed: Any, batch: bool) -> list[Output]:
        names = self.model.feed_names
        is_row = isinstance(feed, list | tuple) and len(names) > 1 and len(feed) == len(names)
        if is_row and not isinstance(feed[0], Mapping):
            feed = dict(zip(names, feed, strict=True))
        try:
            return self.model.inputs(self.feed_of(feed), batch=batch)
        except (InputMismatch, WrongType) as error:
            raise ValueError(str(error)) from error

    def _post(self, body: bytes, headers: dict[str, str]) -> bytes:
        url = f"{self._scheme}://{self._endpoint}{self._service_name}"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirects())
        for left in range(self._retries, -1, -1):
            request = urllib.request.Request(url, body, headers)  # noqa: S310 (connect checks it)
            try:
                with direct.open(request, timeout=self._timeout) as reply:
                    answer: bytes = reply.read(MAX_MESSAGE_BYTES)
                    packed = reply.headers.get("Content-Encoding") == "gzip"
                    return unpack(answer, MAX_MESSAGE_BYTES) if packed else answer
            except urllib.error.HTTPError:
                raise
            except (OSError, HTTPException):
                if not left:
                    raise
        raise AssertionError("the last turn returns or raises")


def _message(data: bytes) -> Any:
    response = general_model_messages()[1]
    return response.FromString(data)
