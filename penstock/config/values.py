"""Kinds of values that keys take: their ranges, and what is made of them.

Values that the original spells -1 or 0 for "off" become None here, and nowhere else.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, WithJsonSchema

from penstock.errors import ConfigError
from penstock.executors.kinds import kind_named

MAX_INT32 = (1 << 31) - 1
"""Upper bound of counts and milliseconds: what the original's 32-bit fields could hold."""
MAX_WORKERS = 1024
"""Most workers of one op, and most threads of one run of a model. Each is a thread or a call under
way; the default of ``max_requests`` lets no more requests in, and a number beyond it is a slip or
starves the machine."""
MAX_CPU = 8191
"""Highest number of a CPU: Linux can be built for 8192."""
MAX_SECONDS = 31_536_000.0
"""Upper bound of every time in seconds: a year, a guess that no timer overflows on."""


_CPUS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def _port(value: int) -> int:
    if value != 0 and not 1024 <= value <= 65535:
        raise ValueError("must be 0 (any free port) or between 1024 and 65535")
    return value


def _host(value: str) -> str:
    if value.startswith("[") and value.endswith("]"):
        raise ValueError(f"must be an address without brackets, such as {value[1:-1] or '::1'}")
    return value


def _unless_positive_off(value: Any) -> Any:
    return value if value is not None and value > 0 else None


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _device_ids(value: str) -> str:
    if value.strip() and not all(
        re.fullmatch(r"[0-9]+", part.strip()) for part in value.split(",")
    ):
        raise ValueError('must be card numbers in quotes, such as "0" or "0,1"; "" is no card')
    return value


def parse_cpus(text: str) -> frozenset[int]:
    """``"0-1,3"`` -> 0, 1 and 3.

    Raises:
        ValueError: it is anything else.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        match = _CPUS.fullmatch(part.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not low <= high <= MAX_CPU:
            raise ValueError('must be numbers of CPUs and ranges of them, such as "0-1,3"')
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def _cpu_set(value: object) -> str:
    text = str(value) if type(value) is int else value  # YAML reads a single CPU as a number
    if not isinstance(text, str):
        raise ValueError('must be text such as "0-1,3", or a list of such texts')
    parse_cpus(text)
    return text


def _cpu_sets(value: object) -> str | tuple[str, ...]:
    if isinstance(value, list) and value:
        return tuple(map(_cpu_set, value))
    return _cpu_set(value)


def _url_segment(value: str) -> str:
    if not value or "/" in value or not value.isprintable():
        raise ValueError("must be text without '/' and control characters: it is part of the URL")
    return value


def _executor(value: str) -> str:
    try:
        return kind_named(value).name
    except ConfigError as error:
        raise ValueError(str(error)) from error


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
    tuple[Annotated[str, AfterValidator(_importable)], ...], BeforeValidator(_listed)
]
Names: TypeAlias = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
OffInt: TypeAlias = Annotated[int | None, Field(le=MAX_INT32), AfterValidator(_unless_positive_off)]
OffFloat: TypeAlias = Annotated[
    float | None, Field(le=float(MAX_INT32)), AfterValidator(_unless_positive_off)
]

OffCount: TypeAlias = Annotated[
    int | None, Field(ge=0, le=MAX_INT32), AfterValidator(_unless_positive_off)
]
Cards: TypeAlias = Annotated[str, AfterValidator(_device_ids)]
CpuSets: TypeAlias = Annotated[str | tuple[str, ...], BeforeValidator(_cpu_sets)]
LogLevel: TypeAlias = Annotated[
    Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_lower)
]
LogFormat: TypeAlias = Annotated[Literal["text", "json"], BeforeValidator(_lower)]
Precision: TypeAlias = Annotated[Literal["fp32", "fp16", "int8", "bf16"], BeforeValidator(_lower)]
UrlSegment: TypeAlias = Annotated[str, AfterValidator(_url_segment)]
ExecutorName: TypeAlias = Annotated[
    str, AfterValidator(_executor), WithJsonSchema({"type": "string"})
]
EntryPoint: TypeAlias = Annotated[str, AfterValidator(_entry_point)]
