"""Copies of requests to a version for another one, whose answers are compared with those that
callers got.

A copy starts after the answer to its request, and nobody waits for it. It takes no place of
callers' requests: copies have a budget of their own, start only while nothing waits in the other
version, and leave its queues when a caller's request comes. What a copy costs its request is the
copy of its inputs, as ops may change those.

Requests that name a version are not copied, nor those whose inputs are not plain values and arrays,
nor graphs whose answers come in pieces.

Belongs to the engine's loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from penstock.api.graph_call import is_large
from penstock.engine.engine import Engine
from penstock.engine.graph import GraphState, OnAnswer, ServedGraph
from penstock.engine.submission import Submission
from penstock.protocols import media
from penstock.repository.comparison import Comparison, NotComparable
from penstock.repository.rollout import Shadow as Options
from penstock.request import Feed, Outcome
from penstock.typed.op import ANSWER, BODY

_log = logging.getLogger(__name__)

EXAMPLES: Final = 16
"""Disagreements that are kept of each version."""

_MOST_BYTES: Final = 64 << 20
"""Bytes of arrays in the inputs of all open copies; further requests are not copied."""
_MOST_TEXT: Final = 500  # characters of a feed that an example shows


class Comparisons:
    """The answers of one version to copies.

    Attributes:
        compared: answers that were compared.
        differed: those that differ from the answer that a caller got.
        dropped: copies that were not run, or whose answers were not compared.
        examples: the latest differences.
    """

    def __init__(self) -> None:
        self.compared = self.differed = self.dropped = 0
        self.examples: deque[dict[str, Any]] = deque(maxlen=EXAMPLES)

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "compared": self.compared,
            "differed": self.differed,
            "dropped": self.dropped,
            "examples": [*self.examples],
        }


class Copy(Submission):
    """A copy of a request in the other version."""

    __slots__ = ()

    copied = True


@dataclass(slots=True, eq=False)
class _Held:
    """A request that is to be copied when it has ended.

    Attributes:
        feed: a copy of its inputs.
        size: bytes of the arrays in it.
        answer: what its caller got; None before, or if it failed.
        copy: None before it runs.
    """

    feed: Feed
    size: int
    answer: Feed | None = None
    copy: Copy | None = None


class Shadow:
    """See the module.

    Args:
        engine: runs the copies.
        source: the version whose requests are copied.
        target: the version that runs the copies.
        options: how many, and when answers are the same.
        comparisons: of the target.
        threads: compare large answers.
    """

    def __init__(
        self,
        engine: Engine,
        source: ServedGraph,
        target: ServedGraph,
        options: Options,
        comparisons: Comparisons,
        threads: Executor,
    ) -> None:
        self._engine = engine
        self._source = source
        self._target = target
        self._options = options
        self._comparisons = comparisons
        self._threads = threads
        self._open: set[_Held] = set()
        self._bytes = 0
        source.watch_requests(self._watch)
        target.watch_requests(self._make_way)

    def close(self) -> None:
        """End, with all open copies."""
        for graph in (self._source, self._target):
            graph.watch_requests(None)
        for held in [*self._open]:
            self._drop(held)

    def _watch(self, request: Submission, on_answer: OnAnswer) -> OnAnswer:
        """A request of the source is admitted: decide whether it is copied. Returns what to call
        with its answer.
        """
        options = self._options
        if request.asked is not None or random.random() * 100 >= options.share:  # noqa: S311
            return on_answer
        size = 0 if len(self._open) >= options.most else _size_of(request.feed)
        if len(self._open) >= options.most or size is None or self._bytes + size > _MOST_BYTES:
            self._comparisons.dropped += 1
            return on_answer
        held = _Held(_copy_of(request.feed), size)
        self._open.add(held)
        self._bytes += size

        def answered(request: Submission, outcome: Outcome) -> None:
            # Before the protocol gets it, which may change it.
            held.answer = None if outcome.value is None else dict.copy(outcome.value)
            on_answer(request, outcome)

        request.at_end(lambda: self._start(held, request.log_id))
        return answered

    def _start(self, held: _Held, log_id: int) -> None:
        """The request has ended."""
        if held not in self._open:  # closed meanwhile
            return
        target = self._target
        busy = target.state is not GraphState.SERVING or self._engine.is_full
        if held.answer is None or busy or any(len(each.batcher) for each in target.stages):
            self._drop(held)
            return
        copy = held.copy = Copy(target, held.feed, None, log_id)
        copy.asked = target.version
        self._engine.add_room(copy)
        copy.at_end(lambda: self._forget(held))
        copy.start(lambda copy, outcome: self._answered(held, log_id, outcome))

    def _make_way(self, request: Submission, on_answer: OnAnswer) -> OnAnswer:
        """A request of the target is admitted: copies that wait for the same workers leave."""
        if not request.copied:
            for held in [*self._open]:
                copy = held.copy
                if copy is not None and all(each.waiting for each in copy.samples):
                    self._drop(held)
        return on_answer

    def _drop(self, held: _Held) -> None:
        self._comparisons.dropped += 1
        if held.copy is not None:
            held.copy.cancel()
        self._forget(held)

    def _forget(self, held: _Held) -> None:
        if held in self._open:
            self._open.discard(held)
            self._bytes -= held.size

    def _answered(self, held: _Held, log_id: int, outcome: Outcome) -> None:
        answer, other = held.answer, outcome.value
        if answer is None or other is None:  # it failed, which the counters have
            return
        kind = held.feed.get(ANSWER)
        difference = partial(_difference, self._options.comparison, answer, other, kind)
        count = partial(self._count, log_id, answer, other)
        if is_large(answer, as_text=False):
            done = asyncio.get_running_loop().run_in_executor(self._threads, difference)
            done.add_done_callback(lambda done: done.cancelled() or count(done.result()))
        else:
            count(difference())

    def _count(self, log_id: int, answer: Feed, other: Feed, difference: str | None) -> None:
        found = self._comparisons
        if difference == _UNKNOWN:
            found.dropped += 1
            return
        found.compared += 1
        if difference is not None:
            found.differed += 1
            shown = {"answer": _shown(answer), "other": _shown(other)}
            found.examples.append({"log_id": log_id, "difference": difference, **shown})


_UNKNOWN: Final = ""
"""The difference of answers that cannot be compared."""


def _difference(comparison: Comparison, answer: Feed, other: Feed, kind: str | None) -> str | None:
    """The difference of two answers; ``kind``: the media type of a typed function's answers."""
    try:
        if kind is not None and (media.is_json(kind) or media.is_msgpack(kind)):
            answer, other = _decoded(answer, kind), _decoded(other, kind)
        return comparison.difference(answer, other)
    except NotComparable:
        return _UNKNOWN
    except Exception:  # noqa: BLE001 - of a user's own kind of value
        _log.exception("two answers cannot be compared")
        return _UNKNOWN


def _decoded(answer: Feed, kind: str) -> Feed:
    body = answer.get(BODY)
    return {**answer, BODY: media.decode(body, kind)} if isinstance(body, bytes) else answer


def _size_of(value: Any) -> int | None:
    """The bytes of the arrays in a value; None if it has anything that cannot be copied."""
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else value.nbytes
    if value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        return 0
    if type(value) is dict:
        sizes = [*map(_size_of, value.values())]
    elif type(value) in (list, tuple):
        sizes = [*map(_size_of, value)]
    else:
        return None
    return None if None in sizes else sum(filter(None, sizes))


def _copy_of(value: Any) -> Any:
    """A copy of a value that ``_size_of`` knows."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) is dict:
        return {key: _copy_of(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copy_of, value))
    return value


def _shown(feed: Feed) -> str:
    with np.printoptions(threshold=8, edgeitems=4, precision=6):
        text = ", ".join(f"{name}={value!r}" for name, value in feed.items())
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} …"
