"""What the sections of ``config.yml`` are made of: ``Section``, and the types of its values.

They are strict: a boolean is not an integer, a text is not a number; an integer is accepted as a
float. Values that the original spells -1 or 0 for "off" become None here, and nowhere else.

Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

MAX_INT32 = (1 << 31) - 1
"""Upper bound of counts and milliseconds: what the original's 32-bit fields could hold."""
MAX_WORKERS = 1024
"""Most workers of one op, and most threads of one run of a model. Each is a thread or a call in
flight; the default of ``max_requests`` admits no more requests, and a larger number is a typo or
overloads the machine."""
MAX_SECONDS = 31_536_000.0
"""Upper bound of every time in seconds: a year, a guess that prevents overflows of timers."""
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _port(value: int) -> int:
    if value != 0 and not 1024 <= value <= 65535:
        raise ValueError("must be 0 (any free port) or between 1024 and 65535")
    return value


def _host(value: str) -> str:
    if value.startswith("[") and value.endswith("]"):
        raise ValueError(f"must be an address without brackets, such as {value[1:-1] or '::1'}")
    return value


def _token(value: str) -> str:
    if not re.fullmatch("[!-~]{16,}", value):
        raise ValueError("must be at least 16 characters of ASCII without spaces")
    return value


def _unless_positive_off(value: Any) -> Any:
    return value if value is not None and value > 0 else None


def listed(value: object) -> object:
    """A list of YAML as a tuple; everything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else listed(value)


def lower(value: object) -> object:
    """A text in lower case; everything else as it is."""
    return value.lower() if isinstance(value, str) else value


def _url_segment(value: str) -> str:
    if not value or "/" in value or not value.isprintable():
        raise ValueError("must be text without '/' and control characters: it is part of the URL")
    return value


def _field_name(value: str) -> str:
    if not _FIELD_NAME.fullmatch(value):
        raise ValueError("must be the name of a header field, such as Authorization; or * for all")
    return value


FieldName: TypeAlias = Annotated[str, AfterValidator(_field_name)]


def _importable(value: str) -> str:
    module, _, name = value.partition(":")
    if not all(part.isidentifier() for part in module.split(".")) or not name.isidentifier():
        raise ValueError("must name a module and what to call in it, such as package.module:Class")
    return value


def _entry_point(value: str) -> str:
    file, _, name = value.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise ValueError("must name a file and what it defines, such as service.py:OcrService")
    return value


_PORT_SCHEMA = {
    "anyOf": [{"const": 0}, {"type": "integer", "minimum": 1024, "maximum": 65535}],
    "type": "integer",
}
Port: TypeAlias = Annotated[int, AfterValidator(_port), WithJsonSchema(_PORT_SCHEMA)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INT32)]
Workers: TypeAlias = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Pause: TypeAlias = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Host: TypeAlias = Annotated[Text, AfterValidator(_host)]
Importables: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_importable)], ...], BeforeValidator(listed)
]
Names: TypeAlias = Annotated[tuple[Text, ...], BeforeValidator(listed)]
OneOrMore: TypeAlias = Annotated[tuple[Text, ...], BeforeValidator(_one_or_more)]
OffInt: TypeAlias = Annotated[int | None, Field(le=MAX_INT32), AfterValidator(_unless_positive_off)]
OffFloat: TypeAlias = Annotated[
    float | None, Field(le=float(MAX_INT32)), AfterValidator(_unless_positive_off)
]
OffCount: TypeAlias = Annotated[
    int | None, Field(ge=0, le=MAX_INT32), AfterValidator(_unless_positive_off)
]
LogLevel: TypeAlias = Annotated[
    Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(lower)
]
LogFormat: TypeAlias = Annotated[Literal["text", "json"], BeforeValidator(lower)]
UrlSegment: TypeAlias = Annotated[str, AfterValidator(_url_segment)]
EntryPoint: TypeAlias = Annotated[str, AfterValidator(_entry_point)]
Token: TypeAlias = Annotated[str, AfterValidator(_token)]
"""A secret that an ``Authorization: Bearer`` field can hold."""
BLANK = object()
"""The value of a blank key that must not be blank; the schema refuses it."""


class Section(BaseModel):
    """A mapping of ``config.yml``. A blank key means its default, except those in
    ``never_blank``. Messages do not repeat the values of ``secret`` keys.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
    never_blank: ClassVar[frozenset[str]] = frozenset()
    secret: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _blank_is_default(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        has_default = keys_of(cls).keys() - cls.never_blank
        return {
            key: BLANK if value is None and key in cls.never_blank else value
            for key, value in given.items()
            if value is not None or key not in has_default
        }


def keys_of(section: type[Section]) -> dict[str, Any]:
    """Key as written in YAML -> type annotation, in the order of the schema."""
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}
