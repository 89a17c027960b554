"""The protobuf encoding of the model server's protocol, for servers and clients.

Source: ``docs/compatibility.md`` (the model server's protocol). Pure; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.errors import Undecodable
from penstock.protocols import oip
from penstock.protocols.general_model import (
    CODES,
    MAX_TENSORS,
    NUMBERS,
    RAW,
    TEXTS,
    TYPES,
    GeneralRequest,
    GeneralResponse,
    InTensor,
    Output,
    listed,
    output_of,
)
from penstock.protocols.protobuf import (
    LENGTH,
    VARINT,
    Buffer,
    TooManyFields,
    Walker,
    decode_text,
    encode_field,
    join_bytes,
    pack_numbers,
    varint,
)
from penstock.protocols.tensors import DecodeBudget, numbers_of

_MOST_FIELDS: Final = 100_000
_FIELDS: Final = {
    **dict(enumerate(NUMBERS, 1)),
    11: "shape",
    12: "lod",
}
"""The repeated number fields of a tensor; data fields first, in the table's order."""
_NUMBER_OF: Final = {name: number for number, name in _FIELDS.items()}
_INT32: Final = np.dtype("<i4")
_INT64: Final = np.dtype("<i8")
_MODEL: Final = 100


def decode(data: bytes, budget: DecodeBudget) -> GeneralRequest:
    """Decode a ``Request`` message.

    Raises:
        Undecodable: the bytes are not such a message, or it has too many fields.
        PackageError: a shape or a lod is too long.
        TooLarge: the numbers would take too much memory.
    """
    try:
        return _decode(data, budget)
    except TooManyFields:
        raise Undecodable(
            f"the message has more than {_MOST_FIELDS} fields: numbers must be packed"
        ) from None
    except (ValueError, IndexError):
        raise Undecodable("the bytes are not a general_model.Request message") from None


def _decode(data: bytes, budget: DecodeBudget) -> GeneralRequest:
    found = GeneralRequest()
    walker = Walker(data, _MOST_FIELDS)
    for number, wire_type, begin, end in walker.fields(0, len(data)):
        if wire_type == LENGTH:
            if number == 1:
                found.tensors.append(_tensor(walker, begin, end, budget))
            elif number == 2:
                found.fetch.append(decode_text(data, begin, end))
            elif number == _MODEL:
                found.model = decode_text(data, begin, end)
        elif wire_type == VARINT:
            if number == 3:
                found.profile = bool(begin)
            elif number == 4:
                found.log_id = begin
        if max(len(found.tensors), len(found.fetch)) > MAX_TENSORS:
            raise Undecodable(f"the request has more than {MAX_TENSORS} tensors")
    return found


def _tensor(walker: Walker, start: int, stop: int, budget: DecodeBudget) -> InTensor:
    tensor = InTensor()
    data = walker.data
    numbers: dict[str, list[tuple[int, int, int]]] = {}
    texts: list[str] = []
    for number, wire_type, begin, end in walker.fields(start, stop):
        if number in _FIELDS:
            numbers.setdefault(_FIELDS[number], []).append((wire_type, begin, end))
        elif number == 10 and wire_type == VARINT:
            tensor.elem_type = (begin + 2**31) % 2**32 - 2**31
        elif wire_type != LENGTH:
            continue
        elif number == 9:
            texts.append(decode_text(data, begin, end))
        elif number == 13:
            tensor.name = decode_text(data, begin, end)
        elif number == 14:
            tensor.alias = decode_text(data, begin, end)
        elif number == 15 and end > begin:
            tensor.data[RAW] = memoryview(data)[begin:end]
    if texts:
        tensor.data[TEXTS] = texts
    for name, pieces in numbers.items():
        array = numbers_of(data, NUMBERS.get(name, _INT32), pieces, budget)
        if name == "shape":
            tensor.shape = listed("shape", array)
        elif name == "lod":
            tensor.lod = listed("lod", array)
        elif array.size:
            tensor.data[name] = array
    return tensor


def encode(response: GeneralResponse) -> bytes:
    """Encode a ``Response`` message.

    Raises:
        UnicodeEncodeError: a text is not valid Unicode.
    """
    pieces: list[Buffer] = []
    for engine, outputs in response.outputs.items():
        content: list[Buffer] = []
        for each in outputs:
            content += encode_field(1, _output(each))
        content += _text(2, engine)
        pieces += encode_field(1, content)
    if response.profile is not None:
        pieces += [*encode_field(2, [varint(each) for each in response.profile]), b"\x18\x01"]
    for number, value in ((4, response.log_id), (5, response.err_no)):
        if value:
            pieces += (varint(number << 3 | VARINT), varint(value % 2**64))
    pieces += _text(6, response.err_msg)
    return join_bytes(pieces)


def encode_request(
    inputs: Sequence[Output],
    fetch: Sequence[str] = (),
    *,
    log_id: int = 0,
    profile: bool = False,
    model: str = "",
) -> bytes:
    """Encode a client's ``Request`` message.

    Args:
        inputs: the tensors.
        fetch: aliases of the requested outputs; empty for all.
        log_id: a uint64, which the answer repeats.
        profile: whether to request profile times.
        model: the model's name, if the service has several.
    """
    pieces: list[Buffer] = []
    for each in inputs:
        pieces += encode_field(1, _output(each))
    for name in fetch:
        pieces += encode_field(2, [name.encode()])
    if profile:
        pieces.append(b"\x18\x01")
    if log_id:
        pieces += (varint(4 << 3 | VARINT), varint(log_id))
    return join_bytes([*pieces, *_text(_MODEL, model)])


def decode_response(data: bytes) -> GeneralResponse:
    """Decode a ``Response`` message.

    Raises:
        Undecodable: the bytes are not such a message, or it has too many fields.
        PackageError: a tensor is inconsistent, or of an unsupported type.
        TooLarge: the numbers would take too much memory.
    """
    outputs: dict[str, list[Output]] = {}
    found = GeneralResponse(outputs=outputs)
    profile: list[int] = []
    walker = Walker(data, _MOST_FIELDS)
    budget = DecodeBudget(len(data))
    try:
        for number, wire_type, begin, end in walker.fields(0, len(data)):
            if wire_type == LENGTH:
                if number == 1:
                    _add_output(walker, begin, end, budget, outputs)
                elif number == 2:
                    profile += numbers_of(data, _INT64, [(wire_type, begin, end)], budget).tolist()
                elif number == 6:
                    found.err_msg = decode_text(data, begin, end)
            elif wire_type == VARINT:
                if number == 4:
                    found.log_id = begin
                elif number == 5:
                    found.err_no = (begin + 2**31) % 2**32 - 2**31
    except (ValueError, IndexError):
        raise Undecodable("the bytes are not a general_model.Response message") from None
    found.profile = profile or None
    return found


def _add_output(
    walker: Walker, start: int, stop: int, budget: DecodeBudget, into: dict[str, list[Output]]
) -> None:
    engine = ""
    tensors: list[Output] = []
    for number, wire_type, begin, end in walker.fields(start, stop):
        if wire_type == LENGTH and number == 1:
            tensors.append(output_of(_tensor(walker, begin, end, budget), budget))
        elif wire_type == LENGTH and number == 2:
            engine = decode_text(walker.data, begin, end)
    into.setdefault(engine, []).extend(tensors)


def _output(output: Output) -> list[Buffer]:
    name, datatype, array = output.tensor
    code = CODES[datatype]
    data = TYPES[code].field
    pieces: list[Buffer] = []
    if data == TEXTS:
        for each in array.reshape(-1).tolist():
            octets = each if isinstance(each, bytes) else str(each).encode()
            pieces += encode_field(9, [octets])
    elif data == RAW and array.size:
        pieces += encode_field(15, [oip.to_raw(output.tensor)])
    elif array.size:
        pieces += encode_field(_NUMBER_OF[data], pack_numbers(array.reshape(-1), NUMBERS[data]))
    if code:
        pieces += (b"\x50", varint(code))
    for number, sizes in ((11, array.shape), (12, output.lod)):
        if sizes:
            pieces += encode_field(number, [varint(each) for each in sizes])
    return [*pieces, *_text(13, output.name), *_text(14, name)]


def _text(number: int, text: str) -> list[Buffer]:
    return encode_field(number, [text.encode()]) if text else []
