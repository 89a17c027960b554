"""The protocol between a service and external workers: frames of msgpack over a socket. Pure.

    frame    length of the payload, 4 octets, big-endian | payload
    ready    a worker's first frame; its payload is empty
    batch    service to worker: a map of ids (texts of 36 characters) to requests' bodies
    answer   worker to service: a map of the same ids to answers' bodies

An answer has the ids of refused requests under ``error_ids``, concatenated without separators. The
value of such an id is the reason. Some workers send ``error_id`` instead, or a list of ids; both
are accepted.

Three further keys are extensions of ours, which other services ignore: ``failed_ids`` are those of
``error_ids`` that failed because of the worker; ``leaving`` says that the worker exits when it has
answered its batches; ``heads`` is a JSON object of ids to the media type, the status and the header
fields (pairs) of their answers.

An answer in pieces is an extension as well. The value of an id in ``more_ids`` is a piece, and more
may follow in further frames; an id in ``end_ids`` has no value: its last piece was sent. Only to a
worker that has sent a piece, the service sends two other kinds of frames:

    credit   the id in ``credit_ids`` with the number of pieces that its caller has got, as text
    cancel   the id in ``cancel_ids``: nobody waits for further pieces

Guarantees: frames do not depend on the boundaries of reads; at most one partial frame is buffered;
a payload over the limit is refused as soon as its length is known. An answer is not decoded unless
every value is bytes, a text or a short list of ids, and there are few of them: so its objects take
little more memory than its bytes.
Source: the socket protocol of kemingy's ``batching`` and ``ventu``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

import ormsgpack

ID_LENGTH: Final = 36
READY: Final = b"\0\0\0\0"
MOST_BYTES: Final = (1 << 31) - 1
"""Maximum bytes of a payload: some workers read its length as a signed number."""

_LENGTH: Final = Struct(">I")
_ERRORS: Final = ("error_ids", "error_id")
_FAILED: Final = "failed_ids"
_LEAVING: Final = "leaving"
_HEADS: Final = "heads"
_MORE: Final = "more_ids"
_ENDED: Final = "end_ids"
_CREDIT: Final = "credit_ids"
_CANCEL: Final = "cancel_ids"
_KEYS: Final = 7
"""Most keys of an answer that are no ids."""

# First octets of msgpack values, with the number of octets of their length.
_MAPS: Final = {**dict.fromkeys(range(0x80, 0x90), 0), 0xDE: 2, 0xDF: 4}
_ARRAYS: Final = {**dict.fromkeys(range(0x90, 0xA0), 0), 0xDC: 2, 0xDD: 4}
_TEXTS: Final = {
    **dict.fromkeys(range(0xA0, 0xC0), 0),
    0xC4: 1,
    0xC5: 2,
    0xC6: 4,
    0xD9: 1,
    0xDA: 2,
    0xDB: 4,
}
_SCALARS: Final = frozenset((*range(0x80), 0xC0, 0xC2, 0xC3))
"""Small numbers, nil, false and true: values of ``leaving``, refused for an id."""


class FrameError(Exception):
    """The peer broke the protocol; its connection is closed. The text contains no payload."""


class FrameReader:
    """Decodes received bytes to payloads.

    Args:
        limit: maximum bytes of a payload; may be changed between frames.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()  # the partial frame

    def __repr__(self) -> str:
        return f"<FrameReader {len(self._buffer)} bytes>"

    def __bool__(self) -> bool:
        """Whether a partial frame is buffered."""
        return bool(self._buffer)

    def receive(self, data: bytes) -> list[bytes]:
        """Process received bytes.

        Returns:
            The payloads of the frames that are complete now.

        Raises:
            FrameError: a payload is too large. The reader must not be used again.
        """
        buffer = self._buffer
        buffer += data  # grows with received bytes, not with announced lengths
        payloads: list[bytes] = []
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            begin = at + _LENGTH.size
            end = begin + self._length_at(at)
            if end > len(buffer):
                break
            with memoryview(buffer) as view:
                payloads.append(bytes(view[begin:end]))
            at = end
        del buffer[:at]
        return payloads

    def _length_at(self, at: int) -> int:
        (length,) = _LENGTH.unpack_from(self._buffer, at)
        if length > self.limit:
            raise FrameError(f"a frame has {length} bytes, over the {self.limit} allowed here")
        return int(length)


def batch_frame(jobs: Mapping[str, bytes]) -> list[bytes]:
    """Encode a batch as two pieces: ids to bodies, together at most ``MOST_BYTES``."""
    return _frame(jobs)


def read_batch(payload: bytes) -> dict[str, bytes]:
    """Decode a batch, for workers: ids to requests' bodies.

    Raises:
        FrameError: the payload is not a batch.
    """
    return _bodies(_map(payload))


class Told(NamedTuple):
    """What the service says about an answer in pieces.

    Attributes:
        credit: the number of pieces that the callers have got, by id.
        cancelled: ids of requests for whose further pieces nobody waits.
    """

    credit: dict[str, int]
    cancelled: frozenset[str]


def told_frame(told: Told) -> list[bytes]:
    """Encode it as two pieces."""
    value: dict[str, Any] = {key: b"%d" % count for key, count in told.credit.items()}
    if told.credit:
        value[_CREDIT] = "".join(told.credit)
    if told.cancelled:
        value[_CANCEL] = "".join(told.cancelled)
    return _frame(value)


def read_told(payload: bytes) -> Told | None:
    """Decode a frame of the service, for workers; None if it is a batch.

    Raises:
        FrameError: it is neither.
    """
    found = _map(payload)
    if _CREDIT not in found and _CANCEL not in found:
        return None
    try:
        credit = {key: int(found[key]) for key in _ids(found.get(_CREDIT, ""))}
    except (KeyError, TypeError, ValueError):
        raise FrameError("a credit is no number") from None
    return Told(credit, frozenset(_ids(found.get(_CANCEL, ""))))


class Answer(NamedTuple):
    """A worker's answer to a batch.

    Attributes:
        bodies: bodies of answers and refusals, by id.
        refused: ids of requests that it refused or failed.
        failed: those of them that failed because of the worker.
        leaving: whether the worker accepts no further batch.
        heads: JSON, see the module; empty if all answers have the usual ones.
        more: ids whose bodies are pieces of their answers, after which more may follow.
        ended: ids whose answers in pieces have ended, without a further piece.
    """

    bodies: dict[str, bytes]
    refused: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    leaving: bool = False
    heads: bytes = b""
    more: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()


def answer_frame(answer: Answer) -> list[bytes]:
    """Encode an answer as two pieces.

    Raises:
        FrameError: it is over ``MOST_BYTES``.
    """
    value: dict[str, Any] = dict(answer.bodies)
    if answer.refused:
        value[_ERRORS[0]] = "".join(answer.refused)
    if answer.failed:
        value[_FAILED] = "".join(answer.failed)
    if answer.leaving:
        value[_LEAVING] = b""
    if answer.heads:
        value[_HEADS] = answer.heads
    if answer.more:
        value[_MORE] = "".join(answer.more)
    if answer.ended:
        value[_ENDED] = "".join(answer.ended)
    return _frame(value)


def read_answer(payload: bytes, most: int) -> Answer:
    """Decode an answer, for the service.

    Args:
        payload: of the frame.
        most: number of ids that the worker was sent.

    Raises:
        FrameError: the payload is not an answer, or has more ids.
    """
    _check_answer(payload, most)
    found = _map(payload)
    leaving = found.pop(_LEAVING, None) is not None
    refused = frozenset[str]().union(*(_ids(found.pop(key, "")) for key in _ERRORS))
    failed = frozenset(_ids(found.pop(_FAILED, "")))
    more = frozenset(_ids(found.pop(_MORE, "")))
    ended = frozenset(_ids(found.pop(_ENDED, "")))
    heads = found.pop(_HEADS, b"")
    if not isinstance(heads, bytes | str):
        raise FrameError("the heads are no JSON")
    heads = heads.encode() if isinstance(heads, str) else heads
    bodies = _bodies(found)
    if not bodies.keys() >= more or more & (refused | failed) or ended & bodies.keys():
        raise FrameError("its pieces and ends contradict each other")
    return Answer(bodies, refused | failed, failed, leaving, heads, more, ended)


def _frame(value: Mapping[str, Any]) -> list[bytes]:
    payload = ormsgpack.packb(value)
    if len(payload) > MOST_BYTES:
        raise FrameError(f"a frame would have {len(payload)} bytes, over {MOST_BYTES}")
    return [_LENGTH.pack(len(payload)), payload]


def _map(payload: bytes) -> dict[str, Any]:
    try:
        found = ormsgpack.unpackb(payload)
    except ValueError as error:
        raise FrameError("a payload is no msgpack") from error
    if type(found) is not dict:
        raise FrameError("a payload is no map of ids")
    return found


def _check_answer(payload: bytes, most: int) -> None:
    """Check the sizes in an answer that could decode to far more objects than it has bytes.

    Raises:
        FrameError: it has too many keys, or a value that an answer never has.
    """
    try:
        count, at = _header(payload, 0, _MAPS)
        if count > most + _KEYS:
            raise FrameError("its answer has ids that it was not sent")
        for _ in range(count):
            size, at = _header(payload, at, _TEXTS)
            at += size
            first = payload[at]
            if first in _SCALARS:
                at += 1
            elif first in _ARRAYS:
                size, at = _header(payload, at, _ARRAYS)
                if size > most:
                    raise FrameError("a list of ids is none")
                for _ in range(size):
                    length, at = _header(payload, at, _TEXTS)
                    at += length
            else:
                size, at = _header(payload, at, _TEXTS)
                at += size
    except (IndexError, KeyError):
        raise FrameError("a payload is no msgpack of ids and bytes") from None
    if at != len(payload):
        raise FrameError("a payload is no msgpack of ids and bytes")


def _header(payload: bytes, at: int, kinds: Mapping[int, int]) -> tuple[int, int]:
    """The length that a msgpack value begins with, and where the rest begins.

    Args:
        payload: has the value.
        at: where it begins.
        kinds: octets of the length by the first octet; 0 for a first octet that has the length.
    """
    first = payload[at]
    octets = kinds[first]
    if not octets:
        return first & (0x1F if first & 0xE0 == 0xA0 else 0x0F), at + 1
    end = at + 1 + octets
    if end > len(payload):
        raise IndexError
    return int.from_bytes(payload[at + 1 : end], "big"), end


def _bodies(found: dict[str, Any]) -> dict[str, bytes]:
    """Convert texts to bytes too: old msgpack has one type for both."""
    kinds = set(map(type, found.values()))
    if kinds <= {bytes}:
        return found
    if kinds <= {bytes, str}:
        return {key: v if type(v) is bytes else v.encode() for key, v in found.items()}
    raise FrameError("the value of an id is no bytes")


def _ids(given: Any) -> Iterable[str]:
    if isinstance(given, bytes):
        given = given.decode("latin-1")
    if isinstance(given, str) and len(given) % ID_LENGTH == 0:
        return [given[at : at + ID_LENGTH] for at in range(0, len(given), ID_LENGTH)]
    if isinstance(given, list) and all(isinstance(each, str) for each in given):
        return given
    raise FrameError("a list of ids is none")
