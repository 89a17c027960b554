"""The client of model servers by ``GeneralModelService``, for threads."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from penstock.client.channels import Channel
from penstock.client.endpoints import Endpoint
from penstock.client.model_feeds import ModelFeeds
from penstock.client.token import Token
from penstock.protocols.general_model_message import decode_response, encode_request
from penstock.protocols.standard_messages import GENERAL_MODEL
from penstock.protocols.status import error_for
from penstock.request import Feed

METHOD = f"/{GENERAL_MODEL}/inference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Servers with the same model.

    Attributes:
        tag: the variant's unique name.
        endpoints: the servers.
        weight: its share of the calls, relative to the other variants; 0 for none.
    """

    tag: str
    endpoints: tuple[Endpoint, ...]
    weight: int = 1


class Prediction(NamedTuple):
    """The result of a call: arrays by engine and alias, and the tag of the called variant."""

    outputs: dict[str, Feed]
    tag: str


class Calls(Protocol):
    """Makes calls to endpoints; ``Channel`` for gRPC."""

    def call(self, request: bytes, *, deadline: float | None, method: str) -> bytes:
        """Make a call; return the reply's message.

        Raises:
            CallFailed: there was no reply.
        """

    def is_ours(self) -> bool:
        """Whether this process created it."""

    def close(self) -> None:
        """Disconnect."""


Connects: TypeAlias = Callable[[Sequence[Endpoint]], Calls]


def over_grpc(endpoints: Sequence[Endpoint], token: Token | None = None) -> Calls:
    """Make calls by gRPC, without TLS.

    ``token``: a key or token; for a ``ModelClient`` set it by ``partial(over_grpc, token=...)``.
    """
    return Channel(endpoints, None, token=token)


class ModelClient:
    """Calls a model server. Thread-safe; a forked child makes connections of its own.

    Args:
        feeds: the model's inputs and outputs.
        variants: for each call one is chosen at random by weight; its endpoints take turns.
        connects: makes the ``Calls`` of a variant.

    Raises:
        ValueError: no variant has a weight, or one has a negative one.
    """

    def __init__(
        self, feeds: ModelFeeds, variants: Sequence[Variant], connects: Connects = over_grpc
    ) -> None:
        weights = [each.weight for each in variants]
        if min(weights, default=0) < 0 or not sum(weights):
            raise ValueError(f"weights of variants are positive, or 0 for none: got {weights}")
        self.feeds = feeds
        self._variants = list(variants)
        self._weights = weights
        self._connects = connects
        self._open: dict[str, Calls] = {}

    def predict(
        self,
        feed: Mapping[str, Any],
        fetch: Sequence[str] = (),
        *,
        batch: bool = True,
        log_id: int = 0,
        timeout: float | None = None,
    ) -> Prediction:
        """Make one call.

        Args:
            feed: see ``ModelFeeds.inputs``.
            fetch: aliases of the outputs; empty for all.
            batch: whether the values have a batch axis; see ``ModelFeeds.inputs``.
            log_id: a uint64, for the server's log.
            timeout: seconds for the whole call; None for no timeout.

        Raises:
            InputMismatch, WrongType: the feed does not fit the model.
            RequestError: the answer cannot be decoded, or is an error.
            CallFailed: there was no answer.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        request = encode_request(self.feeds.inputs(feed, batch=batch), fetch, log_id=log_id)
        (variant,) = random.choices(self._variants, self._weights)  # noqa: S311 (not for cryptography)
        reply = self._calls(variant).call(request, deadline=deadline, method=METHOD)
        response = decode_response(reply)
        if response.err_no:
            raise error_for(response.err_no, response.err_msg)
        return Prediction(self.feeds.outputs(response), variant.tag)

    def close(self) -> None:
        """Disconnect; in-flight calls end with ``CallFailed``. A later call connects again."""
        open_now, self._open = self._open, {}
        for each in open_now.values():
            if each.is_ours():
                each.close()

    def _calls(self, variant: Variant) -> Calls:
        # Without a lock, which a fork could leave locked: if two threads connect at once, one wins,
        # and the other's connection is closed when its call has ended.
        found = self._open.get(variant.tag)
        if found is None or not found.is_ours():
            found = self._open[variant.tag] = self._connects(variant.endpoints)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
