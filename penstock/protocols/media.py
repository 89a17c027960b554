"""Media types of bodies, and plain values to bytes and back: JSON, msgpack, forms and files.

Plain values are dicts, lists, numbers, texts, truth values, None, bytes and arrays.
Source: RFC 9110 (section 8.3), RFC 8259, the msgpack specification, RFC 7578 (forms).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import ormsgpack

from penstock.errors import TooLarge, Undecodable, UnknownMediaType
from penstock.protocols import forms, json_numbers, json_values, structures

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
FORM: Final = "multipart/form-data"

MOST_STRUCTURED: Final = 4 << 20
"""Maximum bytes of JSON or msgpack: decoding so many bytes of the shortest numbers takes a fifth
of a second, during which no other thread of the process runs."""

MOST_TEXTS: Final = 16 << 20
"""Maximum bytes of JSON that may have large texts, such as pictures in Base64, and has few values:
that takes no longer."""

MOST_COST: Final = 400_000
"""Most arrays of JSON or msgpack; an object counts as four and more. So many take a fifth of a
second to be decoded and validated, and less than 100 MB."""

_CURLS: Final = "application/x-www-form-urlencoded"
"""curl's default type of a body."""
OCTETS: Final = "application/octet-stream"
_FILES: Final = {b"\xff\xd8": "image/jpeg", b"\x89PNG": "image/png"}
"""Media types of files by their first bytes."""
_JSON_BEGINS: Final = re.compile(rb'\s*(?:[\[{"]|-?[0-9]|(?:true|false|null)\s*$)')

_MSGPACK = frozenset((MSGPACK, "application/x-msgpack", "application/vnd.msgpack"))
_TYPED = ormsgpack.OPT_DATETIME_AS_TIMESTAMP_EXT | ormsgpack.OPT_NON_STR_KEYS
_ORMSGPACK = ormsgpack.OPT_SERIALIZE_NUMPY | ormsgpack.OPT_NON_STR_KEYS


# Nearly all requests have one of the same few types.
@lru_cache(maxsize=64)
def essence(kind: str) -> str:
    """Return ``type/subtype`` of a Content-Type, in lower case."""
    return kind.partition(";")[0].strip().lower()


@lru_cache(maxsize=64)
def is_json(kind: str) -> bool:
    """Whether a body of this type is JSON; true also without a type, and for curl's default."""
    if kind == JSON or not kind:
        return True
    name = essence(kind)
    return name in (JSON, _CURLS, "text/json") or name.endswith("+json")


@lru_cache(maxsize=64)
def is_msgpack(kind: str) -> bool:
    """Whether a body of this type is msgpack."""
    return kind == MSGPACK or essence(kind) in _MSGPACK


@lru_cache(maxsize=64)
def answer_kind(accept: str | None, kind: str, files: tuple[str, ...] = ()) -> str:
    """Return the media type of the answer: the first accepted one, or else a default.

    Types of Accept with a lower ``q`` come later; those with ``q=0`` are not used, unless nothing
    else is possible.

    Args:
        accept: the value of Accept.
        kind: the request's media type.
        files: the types of files that the answer may be as a whole. The first of them is the
            default; without them it is the type of the request.
    """
    default = MSGPACK if is_msgpack(kind) else JSON
    return first_accepted(accept, (*files, default, JSON if default == MSGPACK else MSGPACK))


@lru_cache(maxsize=64)
def first_accepted(accept: str | None, possible: tuple[str, ...]) -> str:
    """Return the first accepted one of some media types; the first one if none is accepted.

    Args:
        accept: the value of Accept; None accepts all.
        possible: the types, at least one; the earlier ones are preferred.
    """
    if accept is None:
        return possible[0]
    weights = _weights(accept)
    refused = {name for name, weight in weights.items() if not weight}
    allowed = [each for each in possible if each not in refused] or [*possible]
    for name in sorted(weights, key=lambda each: -weights[each]):
        if name in refused:
            continue
        for each in allowed:
            if each == name or (name.endswith("/*") and name[:-1] in ("*/", each[: len(name) - 1])):
                return each
    return allowed[0]


_WEIGHT: Final = re.compile(r";\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*(?:;|$)", re.IGNORECASE)


def _weights(accept: str) -> dict[str, float]:
    """The types of Accept in their order, with their ``q``; msgpack under one name."""
    found: dict[str, float] = {}
    for part in accept.split(","):
        weight = _WEIGHT.search(part)
        name = essence(part)
        found.setdefault(MSGPACK if name in _MSGPACK else name, float(weight[1]) if weight else 1.0)
    return found


def decode(
    body: bytes,
    kind: str,
    raw: str | None = None,
    *,
    exact: bool = True,
    dates: bool = False,
    width: int = 0,
    texts: bool = False,
) -> Any:
    """Decode a body to a plain value.

    A form becomes a dict of its fields; repeated fields become lists. Texts stay texts, unless the
    part's media type is JSON.

    Args:
        body: the decompressed body.
        kind: the value of Content-Type.
        raw: the member for the bytes of a file; None if files are refused.
        exact: whether integers of more than 64 bits in JSON stay integers; finding them takes a
            fifth of the time. If not, they become floats.
        dates: whether msgpack may have timestamps, which become datetimes, and keys that are no
            texts.
        width: see ``check_json``.
        texts: see ``check_json``.

    Raises:
        Undecodable: the body does not match its type.
        UnknownMediaType: the type, or its charset, is not supported.
        TooLarge: see ``check_json``.
    """
    if is_json(kind):
        if kind != JSON:
            check_kind(body, kind, raw)
        check_json(body, width, texts=texts)
        try:
            return json_numbers.loads_exactly(body) if exact else json_numbers.loads(body)
        except ValueError as error:
            raise Undecodable(f"the body is no JSON: {error}") from None
    if is_msgpack(kind):
        check_size(len(body))
        if structures.cost(0, len(body), width) > MOST_COST:
            check_cost(structures.cost_of_msgpack(body, width, MOST_COST))
        try:
            return ormsgpack.unpackb(body, option=_TYPED if dates else None)
        except ValueError as error:
            raise Undecodable(f"the body is no msgpack: {error}") from None
    if essence(kind) == FORM:
        return read_form(body, kind, width)[0]
    if raw is not None:
        return {raw: body}
    raise UnknownMediaType(
        f"the content-type {essence(kind)!r} is not supported: send {JSON}, {MSGPACK} or {FORM}"
    )


def check_size(size: int) -> None:
    """Refuse bodies whose decoding would block all other threads for too long.

    Raises:
        TooLarge: the size is over ``MOST_STRUCTURED`` bytes.
    """
    if size > MOST_STRUCTURED:
        raise TooLarge(
            f"JSON and msgpack may have {MOST_STRUCTURED >> 20} MiB:"
            f" send large arrays as .npy bytes"
        )


def check_json(body: bytes, width: int = 0, *, texts: bool = False) -> None:
    """Refuse JSON whose decoding would block other threads for too long, or take too much memory.

    Args:
        body: the body.
        width: the most members that an object gets when it is validated.
        texts: whether it may be larger if it has few values, as with pictures in Base64.

    Raises:
        TooLarge: it is too large, or has too many arrays and objects.
        Undecodable: it has a number of too many characters.
    """
    size = len(body)
    if size < json_values.MAX_NUMBER:
        return
    # A value has a comma, unless it is the last one; ``MOST_STRUCTURED`` is of the shortest ones.
    if not texts or body.count(b",") > MOST_STRUCTURED // 2:
        check_size(size)
    elif size > MOST_TEXTS:
        raise TooLarge(f"JSON may have {MOST_TEXTS >> 20} MiB here")
    json_values.check_numbers(body)
    if structures.cost(0, size, width) > MOST_COST:
        check_cost(structures.cost_of_json(body, width, MOST_COST))


def check_cost(cost: int) -> None:
    """Refuse a body with too many arrays and objects.

    Raises:
        TooLarge: the cost is over ``MOST_COST``.
    """
    if cost > MOST_COST:
        raise TooLarge(
            "the body has too many arrays and objects: send fewer at once, and large arrays as"
            " .npy bytes"
        )


def check_charset(kind: str) -> None:
    """Refuse texts of a media type with another charset than UTF-8.

    Raises:
        UnknownMediaType: the charset is another one.
    """
    charset = _charset(kind)
    if charset not in _UTF_8:
        raise UnknownMediaType(f"the charset {charset!r} is not supported: send UTF-8")


_UTF_8: Final = frozenset(("", "utf-8", "utf8", "us-ascii", "ascii"))


@lru_cache(maxsize=64)
def _charset(kind: str) -> str:
    found = _CHARSET.search(kind)
    return "" if found is None else found[1].lower()


_CHARSET: Final = re.compile(r""";\s*charset\s*=\s*["']?([^"';\s]*)""", re.IGNORECASE)


def check_kind(body: bytes, kind: str, raw: str | None) -> None:
    """Refuse another charset, and a body with curl's default type, unless it is JSON.

    Args:
        body: a body for which ``is_json`` is true.
        kind: its type.
        raw: see ``decode``.

    Raises:
        UnknownMediaType: the charset is not UTF-8.
        Undecodable: the body is not JSON; the text says how to send it.
    """
    check_charset(kind)
    if essence(kind) != _CURLS or _JSON_BEGINS.match(body) or not body:
        return
    if raw is None:
        how = """send JSON, such as -d '{"x": 1}', or a form: -F x=1"""
    else:
        file = next((name for magic, name in _FILES.items() if body.startswith(magic)), OCTETS)
        how = f"send a file with -H 'Content-Type: {file}', or in a form: -F {raw}=@FILE"
    raise Undecodable(f"the body is not JSON, as which {_CURLS}, curl's default, is read: {how}")


def read_form(body: bytes, kind: str, width: int = 0) -> tuple[dict[str, Any], set[str]]:
    """Decode a form; return its fields, and the names of repeated ones; see ``decode``.

    Raises:
        Undecodable: the body is not a form.
        UnknownMediaType: a field has another charset than UTF-8.
        TooLarge: the fields with JSON are too large together; see ``check_json``.
    """
    found: dict[str, Any] = {}
    several: set[str] = set()
    structured = cost = 0
    for name, data, part in forms.read(body, kind):
        value: Any = data
        if part and isinstance(data, str):
            check_charset(part)
            if is_json(part):
                text = data.encode()
                structured += len(text)
                check_size(structured)
                cost += structures.cost_of_json(text, width, MOST_COST - cost)
                check_cost(cost)
                value = decode(text, JSON)
        if name not in found:
            found[name] = value
        elif name in several:
            found[name].append(value)
        else:
            several.add(name)
            found[name] = [found[name], value]
    return found, several


def encode(value: Any, kind: str, plain: Callable[[Any], Any] = json_numbers.plain_parts) -> bytes:
    """Encode a plain value as a body.

    Args:
        value: a plain value.
        kind: JSON or MSGPACK.
        plain: in msgpack, converts what is not a plain value; raises TypeError if it cannot.

    Raises:
        TypeError: the value contains something that is not a plain value.
    """
    if kind == JSON:
        return json_numbers.dumps(value)
    if _has_foreign_order(value):
        value = _in_native_order(value)
    try:
        return ormsgpack.packb(value, plain, _ORMSGPACK)
    except TypeError:
        if plain is not json_numbers.plain_parts:
            raise
        value = json_numbers.sendable(value, words=False)
        return ormsgpack.packb(value, plain, _ORMSGPACK)


def _has_foreign_order(value: Any) -> bool:
    """Whether there is an array of another byte order, which ormsgpack packs as wrong numbers."""
    kind = type(value)
    if kind is np.ndarray:
        return not value.dtype.isnative
    if kind is dict:
        return any(map(_has_foreign_order, value.values()))
    if kind is list or kind is tuple:
        return not _SCALARS.issuperset(map(type, value)) and any(map(_has_foreign_order, value))
    return False


_SCALARS: Final = frozenset((float, int, str, bool, type(None)))


def _in_native_order(value: Any) -> Any:
    kind = type(value)
    if kind is np.ndarray:
        return value.astype(value.dtype.newbyteorder("="), copy=False)
    if kind is dict:
        return {key: _in_native_order(each) for key, each in value.items()}
    if kind is list or kind is tuple:
        return [*map(_in_native_order, value)]
    return value
