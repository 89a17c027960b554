"""Validates the fields of a form, whose values are texts and files, against a schema."""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

from pydantic_core import ErrorDetails, ValidationError

from penstock.errors import InvalidInput, Undecodable
from penstock.protocols import media
from penstock.typed.attempts import Attempts

_OBJECTS: Final = frozenset(
    (
        "dataclass_type",
        "dict_type",
        "model_attributes_type",
        "model_type",
        "named_tuple_type",
        "tuple_type",
    )
)
"""Pydantic's types of errors for a text in place of an object or a tuple."""
_LISTS: Final = frozenset(
    ("frozen_set_type", "iterable_type", "list_type", "sequence_str", "set_type")
)
"""Those for a text in place of a list."""
_NUMBERS: Final = frozenset(("bool_type", "enum", "float_type", "int_type", "literal_error"))
"""Those for a text in place of a number, or of true or false, where types are strict or literal."""
_NUMBER: Final = re.compile(r"true|false|-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?")
_TEXTS: Final = (str, bytes)  # bytes are a file


class Validator(Protocol):
    """Pydantic's validator, or a plugin's wrapper."""

    def validate_json(self, body: bytes, /) -> Any:
        """Parse and validate JSON."""

    def validate_python(
        self, value: Any, /, *, by_alias: bool | None = None, by_name: bool | None = None
    ) -> Any:
        """Validate a plain value."""


def read_fields(
    validator: Validator,
    value: dict[str, Any],
    repeated: set[str],
    attempts: Attempts | None = None,
    place: str = "body",
) -> Any:
    """Validate the fields of a form, of a body that is a file, or parameters that are texts.

    A field of a list that was sent once becomes a list, and texts and files in place of objects are
    parsed as JSON, as are numbers where a text is not allowed. Pydantic's errors say where.

    Args:
        validator: of the body.
        value: by the fields' names; it is changed.
        repeated: the fields that were sent several times.
        attempts: bounds the work of unions.
        place: where the fields are, for errors.

    Raises:
        ValidationError: the value is invalid.
        InvalidInput: a field that is not a list was sent several times, or a text is no JSON.
    """
    if attempts is not None:
        attempts.check(value)
    try:
        return validator.validate_python(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
    if _make_lists(value, found):
        return read_fields(validator, value, repeated, attempts, place)
    _parse_numbers(value, found)
    if _parse_texts(value, found, repeated, place) and attempts is not None:
        attempts.check(value)
    return validator.validate_python(value)


def _make_lists(value: dict[str, Any], found: list[ErrorDetails]) -> bool:
    """Make lists of the fields that must be one; returns whether there are such fields."""
    names = {
        each["loc"][0]
        for each in found
        if each["type"] in _LISTS
        and each["loc"]
        and _of(value, each) is each["input"]
        and not isinstance(each["input"], list)  # which a strict set does not accept
    }
    for name in names:
        value[str(name)] = [value[str(name)]]
    return bool(names)


def _parse_numbers(value: dict[str, Any], found: list[ErrorDetails]) -> None:
    for each in found:
        given, text = _of(value, each), each["input"]
        if each["type"] in _NUMBERS and type(text) is str and _NUMBER.fullmatch(text):
            number = media.decode(text.encode(), media.JSON)
            if given is text:
                value[str(each["loc"][0])] = number
            elif isinstance(given, list):
                given[:] = [number if item is text else item for item in given]


def _parse_texts(
    value: dict[str, Any], found: list[ErrorDetails], repeated: set[str], place: str
) -> bool:
    """Parse texts in place of objects; returns whether there are such texts."""
    size = 0
    for each in found:
        given, faulty = _of(value, each), each["input"]
        name = str(each["loc"][0]) if each["loc"] else ""
        if name in repeated and faulty is given:
            text = f"the field was sent {len(given)} times, but has one value"
            raise InvalidInput([{"loc": [place, name], "msg": text, "type": "sent_twice"}])
        if each["type"] not in _OBJECTS or type(faulty) not in _TEXTS:
            continue
        in_list = isinstance(given, list) and any(item is faulty for item in given)
        if not in_list and given is not faulty:
            continue
        items = given if in_list else [faulty]
        size += sum(len(item) for item in items if type(item) in _TEXTS)
        media.check_size(size)
        items = [
            _json(item, name, each["type"]) if type(item) in _TEXTS else item for item in items
        ]
        # One text may also be the whole list.
        whole = not in_list or (len(items) == 1 and isinstance(items[0], list))
        value[name] = items[0] if whole else items
    return size > 0


def _of(value: dict[str, Any], error: ErrorDetails) -> Any:
    """The field with the error."""
    return value.get(str(error["loc"][0])) if error["loc"] else None


def _json(text: str | bytes, name: str, kind: str) -> Any:
    try:
        return media.decode(text if isinstance(text, bytes) else text.encode(), media.JSON)
    except Undecodable:
        how = f"send the field as JSON: curl -F '{name}={{...}}'"
        raise InvalidInput([{"loc": ["body", name], "msg": how, "type": kind}]) from None
