"""Remembers the inputs that a worker process died with: who may have killed it, and who has.

Pure: it knows the times that it is told, and of inputs nothing but a digest.

Guarantees:
    - inputs are a culprit only when a worker died while it ran them and nothing else, after another
      had died with them among others: nobody is refused for what a neighbour did;
    - what was remembered is forgotten after LIFE, and at most MOST inputs are remembered, of which
      the oldest go first.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.request import Feed

LIFE: Final = 600.0
"""Seconds for which inputs are remembered, and culprits refused."""
MOST: Final = 10_000
"""Inputs of one op, in some 2 MB; a guess at what nobody reaches who does not mean to."""
_DIGEST: Final = 16  # 128 bits: nobody finds two inputs of one digest
_DEEPEST: Final = 64


class Verdict(Enum):
    """What is known of some inputs."""

    UNKNOWN = "unknown"
    SUSPECT = "suspect"
    CULPRIT = "culprit"


class Suspects:
    """One op's.

    Attributes:
        latest: when something was remembered last; what arrived later was judged as it arrived.
    """

    __slots__ = ("_known", "latest")

    def __init__(self) -> None:
        self.latest = float("-inf")
        # Since all live equally long, the order of entry is that of expiry.
        self._known: dict[bytes, tuple[Verdict, float]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        culprits = sum(verdict is Verdict.CULPRIT for verdict, _ in self._known.values())
        return f"<Suspects {len(self._known)}, of whom {culprits} are culprits>"

    def verdict(self, digest: bytes | None, now: float) -> Verdict:
        """What is known of the inputs with this digest; nothing of those that have none."""
        self._forget(now)
        if digest is None:
            return Verdict.UNKNOWN
        return self._known.get(digest, _NOTHING)[0]

    def accuse(self, digest: bytes, now: float) -> None:
        """A worker died with these inputs among others, or for the first time."""
        verdict = self.verdict(digest, now)
        self._remember(digest, Verdict.SUSPECT if verdict is Verdict.UNKNOWN else verdict, now)

    def convict(self, digest: bytes, now: float) -> None:
        """A worker died with these inputs alone, and they had been suspects."""
        self._remember(digest, Verdict.CULPRIT, now)

    def clear(self, digest: bytes) -> None:
        """They ran alone, and the worker lives."""
        self._known.pop(digest, None)

    def _remember(self, digest: bytes, verdict: Verdict, now: float) -> None:
        self.latest = now
        self._known.pop(digest, None)
        self._known[digest] = (verdict, now + LIFE)
        self._forget(now)

    def _forget(self, now: float) -> None:
        known = self._known
        while known:
            oldest = next(iter(known))
            if len(known) <= MOST and known[oldest][1] > now:
                return
            del known[oldest]


_NOTHING: Final = (Verdict.UNKNOWN, 0.0)


def digest_of(inputs: dict[str, Feed]) -> bytes | None:
    """A short name of what an op is given; None where it holds objects, which have no stable form.

    Costs a pass over all of its bytes.
    """
    digest = blake2b(digest_size=_DIGEST)
    try:
        _write(digest.update, inputs, 0)
    except _Unstable:
        return None
    return digest.digest()


class _Unstable(Exception):
    """Met what has no stable form."""


def _write(update: Callable[[Any], None], value: Any, depth: int) -> None:
    """Every value is told with its type and its length, so that no two are told alike."""
    kind = type(value)
    if kind is str:
        data = value.encode("utf-8", "surrogatepass")
        update(b"str %d " % len(data))
        update(data)
    elif kind is bytes:
        update(b"bytes %d " % len(value))
        update(value)
    elif kind is np.ndarray or isinstance(value, np.generic):
        _write_array(update, np.asarray(value), kind.__name__, depth)
    elif value is None or kind in (bool, int, float):
        update(f"{kind.__name__} {value!r} ".encode())
    elif kind in (dict, list, tuple) and depth < _DEEPEST:
        update(f"{kind.__name__} {len(value)} ".encode())
        for item in value:
            _write(update, item, depth + 1)
            if kind is dict:
                _write(update, value[item], depth + 1)
    else:
        raise _Unstable


def _write_array(update: Callable[[Any], None], array: NDArray[Any], kind: str, depth: int) -> None:
    # The description of a record tells its fields, its str does not.
    update(f"{kind} {array.dtype.descr} {array.shape} ".encode())
    if array.dtype == object:  # texts, as models give them
        _write(update, array.reshape(-1).tolist(), depth + 1)
    elif array.dtype.hasobject:
        raise _Unstable
    else:
        update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
