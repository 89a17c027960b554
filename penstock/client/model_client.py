"""The client of a model server by ``GeneralModelService``, for threads."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from penstock.client.channels import Channel
from penstock.client.endpoints import Endpoint
from penstock.client.model_feeds import ModelFeeds
from penstock.protocols.general_model_message import decode_response, encode_request
from penstock.protocols.standard_messages import GENERAL_MODEL
from penstock.protocols.status import error_for
from penstock.request import Feed

METHOD = f"/{GENERAL_MODEL}/inference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Servers that answer alike.

    Attributes:
        tag: its name, of its own.
        endpoints: where they are.
        weight: its share of the calls, relative to the other variants'; 0 gets none.
    """

    tag: str
    endpoints: tuple[Endpoint, ...]
    weight: int = 1


class Prediction(NamedTuple):
    """What a call gave: the arrays by engine and alias, and the tag of the variant asked."""

    outputs: dict[str, Feed]
    tag: str


class Calls(Protocol):
    """Makes calls at some endpoints; ``Channel`` for gRPC."""

    def call(self, request: bytes, *, deadline: float | None, method: str) -> bytes:
        """The reply's message.

        Raises:
            CallFailed: there is none.
        """

    def is_ours(self) -> bool:
        """Whether this process made it."""

    def close(self) -> None:
        """Disconnect."""


Connects: TypeAlias = Callable[[Sequence[Endpoint]], Calls]


def over_grpc(endpoints: Sequence[Endpoint]) -> Calls:
    """Calls by gRPC, in clear text."""
    return Channel(endpoints, None)


class ModelClient:
    """Calls a model server. Any thread; a forked child connects anew by itself.

    Args:
        feeds: what the model takes and gives.
        variants: who is asked: each call one of them, drawn by weight; within it, the endpoints
            take turns.
        connects: makes the calls.

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
            fetch: aliases of the wanted outputs; none is all.
            batch: whether the values have a batch axis; see there.
            log_id: a uint64, for the server's log.
            timeout: seconds for the whole call; None means no limit of the client's.

        Raises:
            InputMismatch, WrongType: the feed does not fit.
            RequestError: the answer cannot be read, or says what is wrong.
            CallFailed: there is no answer.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        request = encode_request(self.feeds.inputs(feed, batch=batch), fetch, log_id=log_id)
        (variant,) = random.choices(self._variants, self._weights)  # noqa: S311 (no secret)
        reply = self._calls(variant).call(request, deadline=deadline, method=METHOD)
        response = decode_response(reply)
        if response.err_no:
            raise error_for(response.err_no, response.err_msg)
        return Prediction(self.feeds.outputs(response), variant.tag)

    def close(self) -> None:
        """Disconnect; calls under way end with ``CallFailed``. A later call connects again."""
        open_now, self._open = self._open, {}
        for each in open_now.values():
            if each.is_ours():
                each.close()

    def _calls(self, variant: Variant) -> Calls:
        # Without a lock, which a fork could leave held: of two threads that connect at once one
        # wins, and what the other opened is closed when its call has ended.
        found = self._open.get(variant.tag)
        if found is None or not found.is_ours():
            found = self._open[variant.tag] = self._connects(variant.endpoints)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
