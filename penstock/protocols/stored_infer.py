"""``penstock.ExternalStore/ModelInfer``: ``ModelInfer`` of the Open Inference Protocol between two
Penstocks, with the raw bytes of large tensors in an external store that both use.

    request   1  a ModelInferRequest without raw_input_contents
              2  for each of its inputs: the raw bytes, or where they are stored
              3  a key under which large outputs may be stored; empty: they are wanted inline
              4  the bytes from which on an output is large
              5  the mark, see below
    response  1  a ModelInferResponse without raw_output_contents
              2  for each of its outputs: the raw bytes, or where they are stored, under key 3
              3  why the request was refused; nothing has run then
    tensor    1  the raw bytes
              2  the key                 3  the number of the value     4  its bytes

The mark is an HMAC-SHA256 of field 1, field 3, and of all keys, numbers and sizes, with a secret of
both services: a caller without it cannot make a server read or write a key of its choice. Raw bytes
are not covered, and who records a request can repeat it while its keys exist; TLS prevents both.

Decides what is signed; does not know the store. Pure; safe from any thread.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias

from penstock.errors import Undecodable
from penstock.protocols.oip import MAX_TENSORS
from penstock.protocols.protobuf import (
    LENGTH,
    VARINT,
    Buffer,
    Walker,
    decode_text,
    encode_field,
    join_bytes,
    varint,
)

METHOD: Final = "/penstock.ExternalStore/ModelInfer"

_MOST_FIELDS: Final = 10 * MAX_TENSORS
_DOMAIN: Final = b"penstock.ExternalStore/ModelInfer 1"
_RAW_INPUT: Final = 7


class Place(NamedTuple):
    """Where a value is stored: under a key, with a number among those of the key."""

    key: str
    number: int
    nbytes: int


Raw: TypeAlias = Buffer | Place
"""The raw bytes of a tensor, or where they are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRequest:
    """A decoded request.

    Attributes:
        message: the ModelInferRequest without raw bytes.
        raws: for each of its inputs.
        answer: the key for large outputs; empty for none.
        least: the bytes of a large output.
        mark: see the module.
    """

    message: bytes
    raws: Sequence[Raw]
    answer: str
    least: int
    mark: bytes

    @property
    def places(self) -> list[Place]:
        """Those of the stored inputs."""
        return [each for each in self.raws if isinstance(each, Place)]

    def is_marked(self, secret: bytes) -> bool:
        """Whether its mark was made with this secret."""
        mark = _mark(secret, self.message, self.raws, self.answer)
        return hmac.compare_digest(mark, self.mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A decoded response.

    Attributes:
        message: the ModelInferResponse without raw bytes.
        raws: for each of its outputs.
        refusal: why nothing has run; empty if it has.
    """

    message: bytes = b""
    raws: Sequence[Raw] = ()
    refusal: str = ""


def encode_request(
    secret: bytes, message: bytes, raws: Sequence[Raw], answer: str = "", least: int = 0
) -> bytes:
    """Encode a request; the arguments are those of ``StoredRequest``, and the secret."""
    return join_bytes(
        [
            *encode_field(1, [message]),
            *_tensors(raws),
            *encode_field(3, [answer.encode()]),
            *_number(4, least),
            *encode_field(5, [_mark(secret, message, raws, answer)]),
        ]
    )


def encode_response(response: StoredResponse) -> bytes:
    """Encode a response."""
    pieces = [*encode_field(1, [response.message]), *_tensors(response.raws)]
    if response.refusal:
        pieces += encode_field(3, [response.refusal.encode(errors="replace")])
    return join_bytes(pieces)


def decode_request(data: bytes) -> StoredRequest:
    """Decode a request.

    Raises:
        Undecodable: the bytes are none.
    """
    try:
        found = _Fields(data)
        return StoredRequest(
            message=found.message,
            raws=found.raws,
            answer=found.text,
            least=found.number,
            mark=found.mark,
        )
    except (ValueError, IndexError):
        raise Undecodable("the bytes are no request of penstock.ExternalStore") from None


def decode_response(data: bytes) -> StoredResponse:
    """Decode a response.

    Raises:
        Undecodable: the bytes are none.
    """
    try:
        found = _Fields(data)
    except (ValueError, IndexError):
        raise Undecodable("the bytes are no response of penstock.ExternalStore") from None
    return StoredResponse(message=found.message, raws=found.raws, refusal=found.text)


def whole_request(message: bytes, raws: Iterable[Buffer]) -> bytes:
    """A ModelInferRequest with these raw bytes of all its inputs."""
    pieces: list[Buffer] = [message]
    for each in raws:
        pieces += encode_field(_RAW_INPUT, [each])
    return join_bytes(pieces)


class _Fields:
    """The fields of a message, of either kind.

    Raises:
        ValueError, IndexError: the bytes are no message, or contradict themselves.
    """

    def __init__(self, data: bytes) -> None:
        self.message = self.mark = b""
        self.raws: list[Raw] = []
        self.text = ""
        self.number = 0
        walker = Walker(data, _MOST_FIELDS)
        for number, wire_type, begin, end in walker.fields(0, len(data)):
            if number == 4 and wire_type == VARINT:
                self.number = begin
            elif wire_type != LENGTH:
                continue
            elif number == 1:
                self.message = data[begin:end]
            elif number == 2:
                self.raws.append(_raw(walker, begin, end))
                if len(self.raws) > MAX_TENSORS:
                    raise ValueError("there are too many tensors")
            elif number == 3:
                self.text = decode_text(data, begin, end)
            elif number == 5:
                self.mark = data[begin:end]


def _raw(walker: Walker, start: int, stop: int) -> Raw:
    raw: memoryview | None = None
    key, number, nbytes = "", 0, 0
    for field, wire_type, begin, end in walker.fields(start, stop):
        if field == 1 and wire_type == LENGTH:
            raw = memoryview(walker.data)[begin:end]
        elif field == 2 and wire_type == LENGTH:
            key = decode_text(walker.data, begin, end)
        elif field == 3 and wire_type == VARINT:
            number = begin
        elif field == 4 and wire_type == VARINT:
            nbytes = begin
    if (raw is None) == (key == ""):
        raise ValueError("a tensor has raw bytes, or a key")
    return Place(key, number, nbytes) if raw is None else raw


def _tensors(raws: Iterable[Raw]) -> list[Buffer]:
    pieces: list[Buffer] = []
    for each in raws:
        if isinstance(each, Place):
            inner = encode_field(2, [each.key.encode()])
            inner += [*_number(3, each.number), *_number(4, each.nbytes)]
        else:
            inner = encode_field(1, [each])
        pieces += encode_field(2, inner)
    return pieces


def _number(field: int, value: int) -> list[bytes]:
    return [varint(field << 3 | VARINT), varint(value)]


def _mark(secret: bytes, message: bytes, raws: Iterable[Raw], answer: str) -> bytes:
    signed = [_DOMAIN, message, answer.encode()]
    for each in raws:
        if isinstance(each, Place):
            signed += [each.key.encode(), b"%d" % each.number, b"%d" % each.nbytes]
        else:
            signed += [b"", b"", b""]
    made = hmac.new(secret, digestmod=sha256)
    for part in signed:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()
