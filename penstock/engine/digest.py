"""Short names of what an op is given: equal for equal inputs, and for others only by design.

A digest is an outline and the rest. The outline tells of large parts only how large they are and
how they begin and end: who has another outline need not be read.

Guarantees:
    - inputs of up to 1 MiB and some 100,000 values in lists have one digest only if they are equal
      in every octet, unless somebody breaks BLAKE2;
    - larger ones have one digest only if they are equal in types, lengths and shapes; in some
      256 KiB, or 30,000 values, from the ends of their parts and evenly between them; and, for
      texts, bytes and arrays without gaps, in a checksum of 256 MiB, of which each part has an even
      share. So a single changed octet of a picture or a text still makes another digest, and nobody
      is taken for a neighbour but by his own making. There is no checksum of longer lists, of
      arrays with gaps, of texts beyond that share, and of such arrays only one of some rows: who
      differs from a culprit just there is refused with it. That is borne: such two are as good as
      one, and to read all of them would hold up every other request whenever one arrives;
    - the work is bounded whatever the inputs are, and what raises has no digest.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.request import Feed

OUTLINE: Final = 16
"""Octets of an outline."""
_REST: Final = 16  # 128 bits: nobody finds two inputs of one digest
_DEEPEST: Final = 64
_FIELDS: Final = 256  # of a record, whose description is written out

# Guesses at what is worth a pause of the loop: measured, an outline takes 0.2 ms at most, a digest
# 20 ms at most and 1 ms as a rule. A value that is told by itself costs as much as 64 in a list of
# plain ones, which C code writes.
_BY_ITSELF: Final = 64
_GLANCE: Final = (2048, 32 * _BY_ITSELF)  # octets and values, as below
_WHOLE: Final = (1 << 20, 2048 * _BY_ITSELF)
_SAMPLE: Final = (1 << 18, 512 * _BY_ITSELF)
_SUMMED: Final = 1024  # as many octets go into a checksum for each that is told
_WORDS: Final = 521  # of 8 octets in a row of it; a prime, so it is not the row of a picture
_BOUNDLESS: Final = 1 << 62

_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})

_Tell: TypeAlias = Callable[[Any], None]


def digest_of(inputs: dict[str, Feed]) -> bytes | None:
    """The digest of an op's inputs; None where they hold objects, which have no stable form."""
    outline, rest = outline_of(inputs), blake2b(digest_size=_REST)
    if outline is None:
        return None
    try:
        try:
            _Teller(rest.update, *_WHOLE).tell(inputs, _BOUNDLESS, _BOUNDLESS)
        except _TooLargeError:
            rest = blake2b(b"sample", digest_size=_REST)
            _Teller(rest.update).tell(inputs, *_SAMPLE)
    except Exception:  # noqa: BLE001 - see outline_of
        return None
    return outline + rest.digest()


def outline_of(inputs: dict[str, Feed]) -> bytes | None:
    """The beginning of their digest, for little."""
    outline = blake2b(digest_size=OUTLINE)
    try:
        _Teller(outline.update, ends=True).tell(inputs, *_GLANCE)
    except Exception:  # noqa: BLE001 - odd values raise anything, and who has no digest is served
        return None
    return outline.digest()


class _UnstableError(Exception):
    """Met what has no stable form."""


class _TooLargeError(Exception):
    """There is more to tell than may be told."""


class _Teller:
    """Tells values one after another, each so that no two are told alike.

    Args:
        out: gets the octets.
        octets: how many may be told in all; more raise.
        values: the same, of values.
        ends: whether to pass over the middles of what is too large for its share.
    """

    def __init__(
        self, out: _Tell, octets: int = _BOUNDLESS, values: int = _BOUNDLESS, *, ends: bool = False
    ) -> None:
        self._out = out
        self._octets = octets
        self._values = values
        self._ends = ends

    def tell(self, value: Any, octets: int, values: int, depth: int = 0) -> None:
        """Tell a value, of which that many octets and values are its share: beyond, samples."""
        kind = type(value)
        if kind is str or kind is bytes:
            self._tell_text(value, octets)
        elif kind is np.ndarray or isinstance(value, np.generic):
            self._tell_array(kind.__name__, np.asarray(value), octets, values, depth)
        elif kind is int:
            self._tell_int(value, octets)
        elif kind in _PLAIN:
            self._out(b"one " + marshal.dumps(value, 2))
        elif kind is list or kind is tuple:
            self._out(b"%s %d " % (kind.__name__.encode(), len(value)))
            self._tell_parts(value.__getitem__, len(value), octets, values, depth)
        elif kind is dict:
            self._tell_dict(value, octets, values, depth)
        else:
            raise _UnstableError

    def _charge(self, octets: int, values: int) -> None:
        self._octets -= octets
        self._values -= values
        if self._octets < 0 or self._values < 0:
            raise _TooLargeError

    def _parts(self, length: int, share: int) -> list[slice]:
        """All of a sequence, or its ends and, evenly, what is between them."""
        if length <= share:
            return [slice(None)]
        many = share // 3
        if not many:
            return []
        ends = [slice(many), slice(-many, None)]
        return ends if self._ends else [*ends, slice(None, None, -(-length // many) | 1)]

    def _tell_dict(self, value: dict[Any, Any], octets: int, values: int, depth: int) -> None:
        self._out(b"dict %d " % len(value))
        self._charge(0, 2 * len(value))
        sides: list[Iterable[Any]] = [value]
        if len(value) > values:
            sides.append(reversed(value))  # its middle cannot be reached without what is before it
            octets, values = octets // 2, values // 2
        for side in sides:
            names = list(islice(side, values))
            self._tell_run(names, octets, values, depth)
            self._tell_run([value[name] for name in names], octets, values, depth)

    def _tell_parts(
        self, cut: Callable[[slice], Any], length: int, octets: int, values: int, depth: int
    ) -> None:
        self._charge(0, length)  # before anything is cut: that copies
        parts = self._parts(length, values)
        for part in parts:
            self._tell_run(cut(part), octets // len(parts), values // len(parts), depth)

    def _tell_run(self, run: Any, octets: int, values: int, depth: int) -> None:
        """Values of a list, told at once where all are plain and short, else each by itself."""
        if depth >= _DEEPEST:
            raise _UnstableError
        kinds = set(map(type, run))
        if kinds <= _PLAIN:
            size = _octets_in(run, kinds)
            if size <= octets:
                self._charge(size, 0)
                self._out(b"run ")
                self._out(marshal.dumps(run, 2))  # of that version, it tells values and no more
                return
        self._out(b"each ")
        self._charge(0, _BY_ITSELF * len(run))
        many = min(len(run), values // _BY_ITSELF)  # which all parts together do not exceed
        for part in self._parts(len(run), many):
            for item in run[part]:
                self.tell(item, octets // many, values // many - _BY_ITSELF, depth + 1)

    def _tell_int(self, value: int, octets: int) -> None:
        bits = value.bit_length()  # not its digits, of which Python writes no more than 4,300
        if bits > 8 * _WHOLE[0]:
            raise _UnstableError
        self._charge(bits // 8, 0)
        if bits > 8 * octets:
            shown = 4 * octets
            self._out(b"int %d " % bits)
            self._out(marshal.dumps([value >> (bits - shown), value & ((1 << shown) - 1)], 2))
        else:
            self._out(b"one " + marshal.dumps(value, 2))

    def _tell_text(self, text: str | bytes, octets: int) -> None:
        self._out(b"%s %d " % (type(text).__name__.encode(), len(text)))
        if len(text) <= octets:
            self._charge(len(text), 0)
        elif not self._ends and len(text) <= _SUMMED * octets:
            self._out(b"%d " % hash(text))
        for part in self._parts(len(text), octets):
            some = text[part]
            self._out(some if isinstance(some, bytes) else some.encode("utf-8", "surrogatepass"))

    def _tell_array(
        self, kind: str, array: NDArray[Any], octets: int, values: int, depth: int
    ) -> None:
        dtype = array.dtype
        if dtype.names is not None and len(dtype.names) > _FIELDS:
            raise _UnstableError
        # The str of a record does not tell its fields.
        name = dtype.str if dtype.names is None else repr(dtype)
        self._out(f"{kind} {name} {array.shape} ".encode())
        if dtype.kind == "O":  # texts, as models give them
            self._tell_parts(
                lambda part: array.flat[part].tolist(), array.size, octets, values, depth + 1
            )
        elif dtype.hasobject:
            raise _UnstableError
        elif array.nbytes <= octets:
            self._charge(array.nbytes, 0)
            self._out(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        else:
            for part in self._parts(array.size, octets // dtype.itemsize):
                self._out(array.flat[part].view(np.uint8).data)  # copies no more than that
            if not self._ends:
                self._sum_up(array, _SUMMED * octets)

    def _sum_up(self, array: NDArray[Any], most: int) -> None:
        """A checksum of an array without gaps, in the order in which it lies in memory."""
        laid = array.transpose(np.argsort(array.strides, kind="stable")[::-1])
        if not laid.flags.c_contiguous:
            return
        octets = laid.reshape(-1).view(np.uint8)
        until = octets.size - octets.size % (8 * _WORDS)
        rows = octets[:until].view(np.uint64).reshape(-1, _WORDS)
        some = rows[:: max(1, -(-octets.size // max(1, most)))]
        self._out(f"{array.strides} ".encode())
        self._out(np.add.reduce(some, axis=0, dtype=np.uint64).data)
        self._out(octets[until:].data)


def _octets_in(run: Any, kinds: set[type]) -> int:
    octets = 0
    if kinds <= {str, bytes}:
        return sum(map(len, run))
    if str in kinds or bytes in kinds:
        octets += sum([len(item) for item in run if type(item) is str or type(item) is bytes])
    if int in kinds:
        octets += sum([item.bit_length() for item in run if type(item) is int]) // 8
    return octets
