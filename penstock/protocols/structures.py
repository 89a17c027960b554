"""Counts the arrays and objects of a JSON or msgpack body before it is decoded.

Decoding blocks all other threads of the process, and an empty object of two bytes takes some
hundred bytes of memory. Bodies need not be valid: the decoder refuses those that are not.

Source: RFC 8259, the msgpack specification.
"""

from __future__ import annotations

import re
from typing import Final

_SHORT: Final = b"|".join(b"[\\x%02x].{%d}" % (0xA0 + size, size) for size in range(32))
_SCALARS: Final = re.compile(
    rb"(?:[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|[\xcc\xd0].|[\xcd\xd1].{2}|[\xca\xce\xd2].{4}"
    rb"|[\xcb\xcf\xd3].{8}|" + _SHORT + rb")*+",
    re.DOTALL,
)
"""Numbers, truth values, nil and short texts of msgpack."""
_OBJECTS: Final = bytes((*range(0x80, 0x90), 0xDE, 0xDF))
_ARRAYS: Final = bytes((*range(0x90, 0xA0), 0xDC, 0xDD))
_SIZED: Final = {
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4,
}  # fmt: skip
"""Bytes of the length of texts, bytes and extensions."""
_EXTENSIONS: Final = range(0xC7, 0xCA)


def cost(arrays: int, objects: int, width: int) -> int:
    """What arrays and objects cost, in empty arrays.

    Args:
        arrays: their number.
        objects: their number.
        width: the most members that an object gets, by defaults.
    """
    return arrays + objects * (4 + width // 4)


def cost_of_json(body: bytes, width: int, most: int) -> int:
    """Return the cost of a JSON body; see ``cost``. Exact where it exceeds ``most``."""
    found = cost(body.count(b"["), body.count(b"{"), width)
    if found <= most:
        return found
    # Without texts. A regular expression would take several times as long.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    bare = b"".join(plain.split(b'"')[::2])
    return cost(bare.count(b"["), bare.count(b"{"), width)


def cost_of_msgpack(body: bytes, width: int, most: int) -> int:
    """Return the cost of a msgpack body; see ``cost``. It is counted until it exceeds ``most``."""
    size = len(body)
    most_arrays, most_objects = (
        size - len(body.translate(None, each)) for each in (_ARRAYS, _OBJECTS)
    )
    found = cost(most_arrays, most_objects, width)
    if found <= most:
        return found
    arrays = objects = at = 0
    try:
        while cost(arrays, objects, width) <= most:
            scalars = _SCALARS.match(body, at)
            at = at if scalars is None else scalars.end()
            kind = body[at]
            if kind in _SIZED:
                size = _SIZED[kind]
                length = int.from_bytes(body[at + 1 : at + 1 + size])
                at += 1 + size + length + (kind in _EXTENSIONS)
            elif 0x80 <= kind < 0x90 or kind >= 0xDE:
                objects += 1
                at += 1 if kind < 0x90 else 3 if kind == 0xDE else 5
            elif 0x90 <= kind < 0xA0 or kind >= 0xDC:
                arrays += 1
                at += 1 if kind < 0xA0 else 3 if kind == 0xDC else 5
            elif kind >= 0xD4:  # an extension of a fixed size
                at += 2 + (1 << kind - 0xD4)
            else:  # no msgpack
                break
    except IndexError:  # the end, perhaps of a body that is cut off
        pass
    return cost(arrays, objects, width)
