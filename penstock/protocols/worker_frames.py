"""The protocol between a service and external workers: frames of msgpack over a socket. Pure.

    frame    length of the payload, 4 octets, big-endian | payload
    ready    a worker's first frame; its payload is empty
    batch    service to worker: a map of ids (texts of 36 characters) to requests' bodies
    answer   worker to service: a map of the same ids to answers' bodies

An answer names the requests that the worker refuses under ``error_ids``: their ids, one after the
other without anything between them. The value of such an id says why. Some workers write
``error_id`` instead, or give a list of ids, which are read as well.

Two further keys are ours, and a service that does not know them ignores them: ``failed_ids`` names
those of ``error_ids`` for which the worker is to blame; ``leaving`` says that the worker ends as
soon as it has answered what it was sent.

Guarantees: however the bytes are cut, the same frames come out; no more is kept than one frame that
is not yet whole; a payload over the limit is refused when its length is there.
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
"""Of a payload: some workers read its length as a signed number."""

_LENGTH: Final = Struct(">I")
_ERRORS: Final = ("error_ids", "error_id")
_FAILED: Final = "failed_ids"
_LEAVING: Final = "leaving"


class FrameError(Exception):
    """Bytes that break the protocol; whoever sent them is cut off. Names no content."""


class FrameReader:
    """Bytes to payloads.

    Args:
        limit: the largest payload that is taken, in bytes; may be changed between frames.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()  # of the frame that is not whole

    def __repr__(self) -> str:
        return f"<FrameReader {len(self._buffer)} bytes>"

    def __bool__(self) -> bool:
        """Whether a frame has begun and is not whole."""
        return bool(self._buffer)

    def receive(self, data: bytes) -> list[bytes]:
        """Take the next bytes, cut anywhere.

        Returns:
            The payloads of the frames that are whole now.

        Raises:
            FrameError: a payload is too large. Nothing more can be read from this sender.
        """
        buffer = self._buffer
        buffer += data  # grows with what arrives: to promise many bytes is no use
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
    """A batch's frame in two pieces: ids to bodies, all of them below ``MOST_BYTES`` together."""
    return _frame(jobs)


def read_batch(payload: bytes) -> dict[str, bytes]:
    """The worker's side: ids to requests' bodies.

    Raises:
        FrameError: the payload is no batch.
    """
    return _bodies(_map(payload))


class Answer(NamedTuple):
    """What a worker says of a batch.

    Attributes:
        bodies: by id, of answers and of refusals.
        refused: ids of requests that it refuses, or failed with.
        failed: those of them for which it is to blame.
        leaving: whether it wants no further batch.
    """

    bodies: dict[str, bytes]
    refused: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    leaving: bool = False


def answer_frame(answer: Answer) -> list[bytes]:
    """An answer's frame in two pieces.

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
    return _frame(value)


def read_answer(payload: bytes) -> Answer:
    """The service's side.

    Raises:
        FrameError: the payload is no answer.
    """
    found = _map(payload)
    leaving = found.pop(_LEAVING, None) is not None
    refused = frozenset[str]().union(*(_ids(found.pop(key, "")) for key in _ERRORS))
    failed = frozenset(_ids(found.pop(_FAILED, "")))
    return Answer(_bodies(found), refused | failed, failed, leaving)


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


def _bodies(found: dict[str, Any]) -> dict[str, bytes]:
    """Texts are bytes as well: old msgpack has one type for both."""
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
