"""The SDK: endpoints with several variants of a model, and replicas of each.

A variant is a set of equal servers, its replicas. Each call goes to one variant, by weight or by
name, and there to one replica; see ``docs/clients.md``. All calls of a process run on the thread of
its clients.

Source: ``docs/compatibility.md`` (SDK).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
)

from google.protobuf.message import DecodeError, Message

from penstock.client.baidu_std import baidu_std
from penstock.client.call import METHOD as PIPELINE_METHOD
from penstock.client.channels import Channel
from penstock.client.codecs import (
    Codec,
    GeneralCodec,
    OipCodec,
    OipHttpCodec,
    PipelineCodec,
)
from penstock.client.connection import CallProtocol
from penstock.client.endpoints import own_address
from penstock.client.errors import CallFailed, garbage
from penstock.client.grpc import GRPC
from penstock.client.messages import MAX_MESSAGE_BYTES
from penstock.client.model_feeds import ModelFeeds
from penstock.client.predictors import (
    HTTP_PROTOCOLS,
    Split,
    VariantConf,
    parse_predictors,
    parse_replicas,
)
from penstock.client.routed_call import Ended, Sent
from penstock.client.routed_channel import RoutedCalls, RoutedFuture
from penstock.client.routing import HEDGE_SHARE, STRATEGIES, Attempts, HedgeBudget, weighted
from penstock.client.tls import Tls
from penstock.client.token import Token, metadata
from penstock.errors import ModelError, RequestError, TooLarge, UnknownEncoding
from penstock.protocols.baidu_std import Compression
from penstock.protocols.standard_messages import GENERAL_MODEL
from penstock.runtimes.model import read_client_conf

if TYPE_CHECKING:
    from penstock.client.trace import Trace, TraceLog

T = TypeVar("T")
M = TypeVar("M", bound=Message)

_log = logging.getLogger(__name__)

_PIPELINE: Final = PIPELINE_METHOD.removeprefix("/").partition("/")[0]


class ConfOptions(TypedDict, total=False):
    """Options of an endpoint's calls; see ``VariantConf``."""

    connect_timeout_ms: int
    rpc_timeout_ms: int
    connect_retry_count: int
    hedge_request_timeout_ms: int
    load_balance_strategy: str
    protocol: str
    compress_type: int


class CallOptions(TypedDict, total=False):
    """Options of a call; see ``Endpoint.predict``."""

    tag: str | None
    split: Mapping[str, str] | None
    key: str | None
    idempotent: bool | None
    timeout: float | None


class Answer(NamedTuple, Generic[T]):
    """The result of a call.

    Attributes:
        outputs: the outputs by name, or the message of ``inference``.
        tag: of the variant that answered.
        replica: the ``host:port`` that answered.
        attempts: how often the call was sent; 1 is the usual.
    """

    outputs: T
    tag: str
    replica: str
    attempts: int


@dataclass(frozen=True)
class Variant:
    """A set of equal servers, such as one version of a model.

    Attributes:
        tag: its name, unique in its endpoint.
        cluster: the servers, ``host:port`` each; with ``split``, tags ``name:value`` behind it.
            ``dns:///name:port`` is all servers behind a name, which may come and go.
        variant_weight: its share of the calls, relative to the other variants; 0 for those calls
            only that name it.
        conf: how it is called; None: as the endpoint says.
        split: which calls it is for; None: for those without such a value.
    """

    tag: str
    cluster: Sequence[str]
    variant_weight: int = 1
    conf: VariantConf | None = None
    split: Split | None = None


class AnswerFuture(RoutedFuture[Answer[T]]):
    """The future of a call. Any thread; callbacks run on the thread of the clients."""

    def __init__(self, tag: str, calls: RoutedCalls) -> None:
        super().__init__(calls)
        self._tag = tag

    def _result_of(self, ended: Ended) -> Answer[T]:
        return Answer(ended.value, self._tag, ended.replica, ended.attempts)


class Endpoint:
    """A model or pipeline with its variants. Thread-safe; a forked child connects anew.

        endpoint = Endpoint("uci", [
            Variant("stable", ["10.0.0.1:9993", "10.0.0.2:9993"], 75),
            Variant("new", ["10.0.0.3:9993"], 25),
        ])
        answer = endpoint.predict({"x": "[1.0, 2.0]"})

    Nothing is sent before the first call.

    Args:
        name: its name; for ``oip`` also the model's, unless ``model`` says another.
        variants: at least one of them with a weight.
        service_name: with ``baidu_std`` and ``h2:grpc``: the full name of the service, by default
            ``GeneralModelService``. Of another service only ``inference`` can be called.
        model: the name of the model or pipeline in the servers.
        client_config: a model's ``serving_client_conf.prototxt``, or its folder, or what was read
            of it, for ``GeneralModelService``; without it names and types of a feed are sent as
            they are.
        pack_tensor_format: a pipeline gets values as tensors instead of texts, see
            ``PipelineClient.predict``.
        idempotent: whether calls may run twice, so that they are repeated after failures in which
            it is not known whether they have run. A call can say otherwise.
        hedge_budget: backup requests per call, on the average; the first calls may have five more.
            0 for none.
        tls: encrypts connections; None for plain text.
        token: a key or token for servers with ``security``, see ``PipelineClient``.
        **conf: the fields of ``VariantConf``, for variants without one of their own.

    Raises:
        TypeError, ValueError: an argument makes no sense; the text names the variant.
        ModelError: ``client_config`` cannot be read.
        UnknownEncoding: the compression is not supported here.
    """

    def __init__(
        self,
        name: str,
        variants: Iterable[Variant],
        *,
        service_name: str = GENERAL_MODEL,
        model: str | None = None,
        client_config: str | Path | ModelFeeds | None = None,
        pack_tensor_format: bool = False,
        idempotent: bool = False,
        hedge_budget: float = HEDGE_SHARE,
        tls: Tls | None = None,
        token: Token | None = None,
        **conf: Unpack[ConfOptions],
    ) -> None:
        _check_budget(hedge_budget)
        self.name = name
        self._idempotent = idempotent
        default = VariantConf(**conf)
        if isinstance(client_config, str | Path):
            client_config = ModelFeeds(read_client_conf(Path(client_config)))
        codecs = _Codecs(name, model, service_name, client_config, tensors=pack_tensor_format)
        self._variants: dict[str, _Variant] = {}
        for each in variants:
            if each.tag in self._variants:
                raise ValueError(f"two variants have the tag {each.tag!r}")
            try:
                made = _Variant(each, default, codecs, HedgeBudget(hedge_budget), tls, token)
            except UnknownEncoding as error:
                raise UnknownEncoding(f"variant {each.tag!r}: {error}") from error
            except ValueError as error:
                raise ValueError(f"variant {each.tag!r}: {error}") from error
            self._variants[each.tag] = made
        weighted([each.weight for each in self._variants.values()] or [0], 0.0)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of its variants."""
        return (*self._variants,)

    def predict(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str] = (),
        *,
        batch: bool = True,
        log_id: int = 0,
        **options: Unpack[CallOptions],
    ) -> Answer[dict[str, Any]]:
        """Make one call and wait for its answer.

        Args:
            feed: the inputs by name; only read.
            fetch: names of the wanted outputs; empty for all.
            batch: for ``GeneralModelService``: whether the values have a batch axis.
            log_id: for the server's log.
            **options: ``tag`` chooses a variant; otherwise the weights do. ``split`` has values by
                name, for variants with a ``Split``. ``key``: calls with the same key go to the same
                replica, if the strategy is sticky. ``idempotent``: whether the call may run twice;
                None: as the endpoint says. ``timeout``: seconds for the call with all its
                repetitions; None: as the variant's ``rpc_timeout_ms`` says.

        Returns:
            The outputs: of a pipeline texts, or arrays if it answers with tensors; of a model
            arrays.

        Raises:
            CallFailed: there was no answer.
            RequestError: the server answered with an error, or the feed does not fit.
            TypeError, ValueError: the feed cannot be sent, or an option makes no sense.
        """
        return self.predict_future(feed, fetch, batch=batch, log_id=log_id, **options).result()

    def predict_future(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str] = (),
        *,
        batch: bool = True,
        log_id: int = 0,
        **options: Unpack[CallOptions],
    ) -> AnswerFuture[dict[str, Any]]:
        """Begin one call; as ``predict``, whose failures the future's ``result`` raises."""
        began = time.monotonic()
        variant = self._chosen(options)
        message, decode = variant.codec_of_feeds().encode(
            feed, [fetch] if isinstance(fetch, str) else fetch, log_id, batch=batch
        )
        return self._begin(variant, message, decode, began, options)

    async def predict_async(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str] = (),
        *,
        batch: bool = True,
        log_id: int = 0,
        **options: Unpack[CallOptions],
    ) -> Answer[dict[str, Any]]:
        """``predict`` for any event loop. Cancelling the task cancels the call, also on the
        server.
        """
        future = self.predict_future(feed, fetch, batch=batch, log_id=log_id, **options)
        return await asyncio.wrap_future(future)

    def debug(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str] = (),
        *,
        batch: bool = True,
        log_id: int = 0,
        **options: Unpack[CallOptions],
    ) -> Trace:
        """Make one call, and bring back where it went and how long each part took.

            print(endpoint.debug({"x": array}))

        Arguments and errors as of ``predict``, but a call that fails is no error here: its trace
        has it.
        """
        future, log = self._debug(feed, fetch, log_id, options, batch=batch)
        try:
            return log.trace(future.result(), None)
        except (CallFailed, RequestError) as error:
            return log.trace(None, error)

    async def debug_async(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str] = (),
        *,
        batch: bool = True,
        log_id: int = 0,
        **options: Unpack[CallOptions],
    ) -> Trace:
        """``debug`` for any event loop."""
        future, log = self._debug(feed, fetch, log_id, options, batch=batch)
        try:
            return log.trace(await asyncio.wrap_future(future), None)
        except (CallFailed, RequestError) as error:
            return log.trace(None, error)

    def _debug(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str],
        log_id: int,
        options: CallOptions,
        *,
        batch: bool,
    ) -> tuple[AnswerFuture[dict[str, Any]], TraceLog]:
        from penstock.client.trace import ASKING, TraceLog

        began = time.monotonic()
        variant = self._chosen(options)
        codec = variant.codec_of_feeds()
        message, decode = codec.encode(
            feed, [fetch] if isinstance(fetch, str) else fetch, log_id, batch=batch, times=True
        )
        log = TraceLog(variant.tag, codec.times_of)
        asking = variant.protocol.encode_fields(ASKING)
        return self._begin(variant, message, decode, began, options, log, asking), log

    def inference(
        self, request: Message | bytes, response: type[M], **options: Unpack[CallOptions]
    ) -> Answer[M]:
        """Call the service with a message of its own, as the C++ SDK does.

        Args:
            request: the message, or its bytes.
            response: the class of the answer.
            **options: see ``predict``.

        Raises:
            CallFailed: there was no answer, or it is no such message.
            ValueError: an option makes no sense.
            TypeError: the protocol has no messages.
        """
        return self.inference_future(request, response, **options).result()

    def inference_future(
        self, request: Message | bytes, response: type[M], **options: Unpack[CallOptions]
    ) -> AnswerFuture[M]:
        """Begin a call; as ``inference``."""
        began = time.monotonic()
        message = request if isinstance(request, bytes) else request.SerializeToString()
        variant = self._chosen(options)
        if not variant.takes_messages:
            raise TypeError("this protocol has no messages: call predict(feed)")
        return self._begin(variant, message, partial(_parsed, response), began, options)

    async def inference_async(
        self, request: Message | bytes, response: type[M], **options: Unpack[CallOptions]
    ) -> Answer[M]:
        """``inference`` for any event loop."""
        return await asyncio.wrap_future(self.inference_future(request, response, **options))

    def close(self) -> None:
        """Disconnect; calls in flight end with ``CallFailed``. A later call connects again."""
        for each in self._variants.values():
            each.close()

    def _chosen(self, options: CallOptions) -> _Variant:
        tag, split = options.get("tag"), options.get("split") or {}
        if tag is not None:
            found = self._variants.get(tag)
            if found is None:
                raise ValueError(f"{self.name} has the variants {[*self._variants]}, not {tag!r}")
            return found
        variants = [each for each in self._variants.values() if each.is_for(split)]
        if not variants:
            variants = [each for each in self._variants.values() if each.split is None]
        weights = [each.weight for each in variants]
        if not any(weights):
            raise ValueError(f"{self.name} has no variant for calls with {dict(split)}")
        return variants[weighted(weights, random.random())]  # noqa: S311 (not for cryptography)

    def _begin(
        self,
        variant: _Variant,
        message: bytes,
        decode: Callable[[bytes], T],
        began: float,
        options: CallOptions,
        log: TraceLog | None = None,
        asking: bytes = b"",
    ) -> AnswerFuture[T]:
        if len(message) > MAX_MESSAGE_BYTES:
            raise TooLarge(f"the request is over {MAX_MESSAGE_BYTES} bytes")
        timeout = options.get("timeout")
        if timeout is None:
            timeout = variant.timeout
        elif not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout must be a positive number of seconds or None, got {timeout}")
        idempotent = options.get("idempotent")
        if idempotent is None:
            idempotent = self._idempotent
        deadline = None if timeout is None else began + timeout
        calls = variant.calls()
        frame, fields = calls.channel.framed(message, asking)
        sent = Sent(
            frame=frame,
            method=variant.codec.method,
            fields=fields,
            deadline=deadline,
            decode=decode,
            key=options.get("key"),
            without=variant.without(options.get("split") or {}),
            hedge_after=variant.hedge_after if idempotent else None,
            log=log,
        )
        future: AnswerFuture[T] = AnswerFuture(variant.tag, calls)
        future.begin(sent, Attempts(variant.retries, deadline, idempotent=idempotent))
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Endpoint {self.name}: {', '.join(self._variants)}>"


class Service:
    """Endpoints by name. Thread-safe, as they are.

        from penstock.client import Service  # not penstock.Service, which is a graph

        with Service.read("conf/predictors.prototxt", client_config="uci_client") as service:
            answer = service["general_model"].predict({"x": array})

    Args:
        endpoints: each with a name of its own.

    Raises:
        ValueError: two have the same name.
    """

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints: dict[str, Endpoint] = {}
        for each in endpoints:
            if each.name in self._endpoints:
                raise ValueError(f"two endpoints have the name {each.name!r}")
            self._endpoints[each.name] = each

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        client_config: str | Path | Mapping[str, str | Path] | None = None,
        idempotent: bool = False,
        hedge_budget: float = HEDGE_SHARE,
        tls: Tls | None = None,
        token: Token | None = None,
    ) -> Self:
        """Read ``predictors.prototxt``, the configuration of Paddle Serving's C++ SDK.

        Args:
            path: of the file, or of its folder.
            client_config: as of ``Endpoint``, for all endpoints, or by their names.
            idempotent: as of ``Endpoint``, for all endpoints; so are the following.
            hedge_budget: backup requests per call.
            tls: encrypts connections.
            token: a key or token. With one, no variant may have the protocol ``baidu_std``.

        Raises:
            ModelError: a file cannot be read, or has something that is not supported; the text has
                the file and, if known, the line.
            OSError: a file of ``tls`` cannot be read.
            ValueError: the token or the budget makes no sense.
        """
        if token is not None:
            metadata(token)  # before errors are blamed on the file
        _check_budget(hedge_budget)
        file = Path(path)
        if file.is_dir():
            file /= "predictors.prototxt"
        found = parse_predictors(_text(file), str(file))
        for warning in found.warnings:
            _log.warning("%s", warning)
        configs = client_config if isinstance(client_config, Mapping) else None
        if configs is not None and (unknown := {*configs} - {p.name for p in found.predictors}):
            raise ModelError(f"{file}: has no predictor {', '.join(sorted(unknown))}")
        endpoints = []
        for each in found.predictors:
            config = client_config if configs is None else configs.get(each.name)
            try:
                endpoints.append(
                    Endpoint(
                        each.name,
                        [
                            Variant(tag, cluster, weight, conf, split)
                            for tag, cluster, weight, conf, split in each.variants
                        ],
                        service_name=each.service_name,
                        client_config=cast("str | Path | None", config),
                        idempotent=idempotent,
                        hedge_budget=hedge_budget,
                        tls=tls,
                        token=token,
                        model="",
                    )
                )
            except (ValueError, UnknownEncoding) as error:
                where = f"{file}:{each.line}: predictor {each.name!r}"
                raise ModelError(f"{where}: {error}") from error
        return cls(endpoints)

    def __getitem__(self, name: str) -> Endpoint:
        """Return an endpoint.

        Raises:
            KeyError: there is none of this name.
        """
        found = self._endpoints.get(name)
        if found is None:
            raise KeyError(f"there is no endpoint {name!r}, but {[*self._endpoints]}")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._endpoints)

    def __len__(self) -> int:
        return len(self._endpoints)

    def close(self) -> None:
        """Disconnect all endpoints."""
        for each in self._endpoints.values():
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Codecs:
    """The codec of each protocol, for one endpoint."""

    def __init__(
        self,
        name: str,
        model: str | None,
        service_name: str,
        feeds: ModelFeeds | None,
        *,
        tensors: bool,
    ) -> None:
        self.service_name = service_name
        self._name = name
        self._model = model
        self._feeds = feeds
        self._tensors = tensors

    def of(self, protocol: str) -> Codec:
        model = self._model or self._name
        if protocol == "oip":
            return OipCodec(model)
        if protocol in HTTP_PROTOCOLS:
            return OipHttpCodec(model, binary=HTTP_PROTOCOLS[protocol])
        pipeline = protocol == "pipeline" or self.service_name == _PIPELINE
        if pipeline:
            return PipelineCodec(self._model or "", cache(own_address), tensors=self._tensors)
        return GeneralCodec(self._feeds, self._model or "", self.service_name)

    def can_feed(self, protocol: str) -> bool:
        """Whether the messages of the service are known."""
        return protocol in ("oip", "pipeline", *HTTP_PROTOCOLS) or self.service_name in (
            GENERAL_MODEL,
            _PIPELINE,
        )


class _Variant:
    """A variant, and its connections in this process."""

    def __init__(
        self,
        given: Variant,
        default: VariantConf,
        codecs: _Codecs,
        budget: HedgeBudget,
        tls: Tls | None,
        token: Token | None,
    ) -> None:
        conf = given.conf or default
        if token is not None and conf.protocol == "baidu_std":
            raise ValueError("a token is for gRPC: baidu_std has no header fields")
        if given.variant_weight < 0:
            raise ValueError(f"its weight is negative: {given.variant_weight}")
        cluster = parse_replicas(given.cluster)
        self.tag = given.tag
        self.weight = given.variant_weight
        self.split = given.split
        self.codec = codecs.of(conf.protocol)
        self.timeout = conf.rpc_timeout_ms / 1000 if conf.rpc_timeout_ms > 0 else None
        self.retries = conf.connect_retry_count
        after = conf.hedge_request_timeout_ms
        self.hedge_after = after / 1000 if after >= 0 else None
        self.protocol = _protocol(conf)
        self.takes_messages = conf.protocol not in HTTP_PROTOCOLS
        self._unknown = None if codecs.can_feed(conf.protocol) else codecs.service_name
        self._by_value = _by_value(given.split, [each.tags for each in cluster])
        self._named = {at: each.endpoint for at, each in enumerate(cluster) if each.named}
        if self._named and given.split is not None:
            raise ValueError("its servers are divided by tags, which names of several have not")
        self._strategy = STRATEGIES[conf.load_balance_strategy]
        self._budget = budget
        self._channel = partial(
            Channel, tuple(each.endpoint for each in cluster), tls, self.protocol, token
        )
        self._open: RoutedCalls | None = None
        self._channel()  # raises what is wrong with files and token

    def codec_of_feeds(self) -> Codec:
        """The codec, if feeds can be encoded for the service."""
        if self._unknown is not None:
            text = (
                f"the messages of {self._unknown} are not known: call inference(request, response)"
            )
            raise TypeError(text)
        return self.codec

    def is_for(self, split: Mapping[str, str]) -> bool:
        """Whether calls with these values are for it in particular."""
        return self.split is not None and split.get(self.split.split_tag_name) in self._by_value

    def without(self, split: Mapping[str, str]) -> frozenset[int]:
        """The replicas that do not get a call with these values."""
        if self.split is None:
            return frozenset()
        value = split.get(self.split.split_tag_name)
        return frozenset() if value is None else self._by_value.get(value, frozenset())

    def calls(self) -> RoutedCalls:
        """Calls to its replicas, by this process."""
        # Without a lock, which a fork could leave locked: if two threads connect at once, one wins,
        # and the other's connections are closed when its call has ended.
        found = self._open
        if found is None or not found.channel.is_ours():
            found = self._open = RoutedCalls(
                self._channel(), self._strategy, self._budget, self._named
            )
        return found

    def close(self) -> None:
        found, self._open = self._open, None
        if found is not None and found.channel.is_ours():
            found.close()


def _by_value(split: Split | None, tags: Sequence[Mapping[str, str]]) -> dict[str, frozenset[int]]:
    """The replicas that do not serve a value, by value; replicas without any tags serve all."""
    if split is None:
        return {}
    name = split.split_tag_name
    if not any(tags):
        return dict.fromkeys(split.tag_candidates, frozenset())
    found = {}
    for value in split.tag_candidates:
        found[value] = frozenset(at for at, each in enumerate(tags) if each.get(name) != value)
        if len(found[value]) == len(tags):
            raise ValueError(f"no server of the cluster has the tag {name}:{value}")
    return found


def _check_budget(share: float) -> None:
    """Check that backup requests are a share of the calls.

    Raises:
        ValueError: they are not.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"hedge_budget is a share of the calls, 0 to 1: got {share}")


def _protocol(conf: VariantConf) -> CallProtocol:
    chosen = GRPC
    if conf.protocol == "baidu_std":
        chosen = baidu_std(Compression(conf.compress_type))
    elif conf.protocol in HTTP_PROTOCOLS:
        from penstock.client.http1 import HTTP1

        chosen = HTTP1
    return chosen._replace(connect_seconds=conf.connect_timeout_ms / 1000)


def _parsed(response: type[M], reply: bytes) -> M:
    try:
        return response.FromString(reply)
    except DecodeError as error:
        raise garbage(error) from None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ModelError(f"{path}: cannot be read: {why}") from error
