"""Texts from a command line or the environment, turned into values for one key.

A text has no quotes to tell "0" from 0, so the key it is for decides: text stays text, lists are
cut at commas, and anything else is read as an unquoted YAML value (which includes floats).
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from penstock.config.problems import clipped
from penstock.config.schema import (
    ENVIRONMENT,
    Section,
    ServiceConfig,
    entries_of,
    keys_of,
    section_of,
)
from penstock.config.yaml import resolved
from penstock.errors import ConfigError

_PREFIX = "PENSTOCK_"
_SET = "PENSTOCK_SET"
_NEAR = 0.8  # they all begin alike, so that most names resemble each other; a guess

# What Kubernetes gives every container once there is a Service by the name penstock.
_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)")
_KUBERNETES_URL = re.compile(r"(tcp|udp|sctp)://")


def parse_override(text: str) -> tuple[str, Any]:
    """``"op.uci.concurrency=4"`` -> ``("op.uci.concurrency", 4)``.

    The key is not checked here; ``load`` names an unknown one like any other.

    Raises:
        ConfigError: there is no ``=``, or a part of the key is empty.

    Source: ``docs/compatibility.md``, the option ``-o`` of services started from YAML.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise ConfigError([f"{clipped(text)}: an override is written key=value or key.inner=value"])
    return key, typed(key.split("."), value.strip())


def from_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """Dotted key -> (variable, value) for every ``PENSTOCK_…`` variable that is not empty.

    ``PENSTOCK_SET`` holds any number of overrides, ``key.inner=value;…``. A key that it shares with
    a variable of its own is that variable's, which names it alone.

    Raises:
        ConfigError: one of the overrides in ``PENSTOCK_SET`` is none.
    """
    found: dict[str, tuple[str, Any]] = {}
    for text in environ.get(_SET, "").split(";"):
        if text.strip():
            try:
                key, value = parse_override(text.strip())
            except ConfigError as error:
                raise ConfigError(
                    [f"environment {_SET}: {each}" for each in error.problems]
                ) from error
            found[key] = (_SET, value)
    for variable, key in ENVIRONMENT.items():
        if environ.get(variable):
            found[key] = (variable, typed([key], environ[variable]))
    return found


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """One sentence for each ``PENSTOCK_…`` variable that sets nothing."""
    warnings = []
    for variable, value in environ.items():
        if (
            not variable.startswith(_PREFIX)
            or variable in (_SET, *ENVIRONMENT)
            or _KUBERNETES.search(variable)
            or _KUBERNETES_URL.match(value)
        ):
            continue
        near = get_close_matches(variable, [_SET, *ENVIRONMENT], n=1, cutoff=_NEAR)
        hint = f"; did you mean {near[0]}?" if near else ""
        warnings.append(
            f"environment {clipped(variable)}: is not a known variable and sets nothing{hint}"
        )
    return warnings


def typed(keys: Sequence[str], text: str) -> Any:
    """The text as a value for the key at this path."""
    kind = _kind(_annotation(keys))
    if kind is str:
        return _unquoted(text)
    if kind is tuple:
        inner = text.removeprefix("[").removesuffix("]")
        return [_unquoted(part.strip()) for part in inner.split(",") if part.strip()]
    return resolved(text)


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text


def _annotation(keys: Sequence[str]) -> Any:
    section: type[Section] | None = ServiceConfig
    names_section: type[Section] | None = None
    annotation: Any = None
    for key in keys:
        if names_section is not None:
            section, names_section, annotation = names_section, None, None
            continue
        if section is None:
            return None
        annotation = keys_of(section).get(key)
        section, names_section = section_of(annotation), entries_of(annotation)
    return annotation


def _kind(annotation: Any) -> type | None:
    """``str``, ``tuple``, or None for everything that an unquoted value spells."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        kinds = [_kind(each) for each in get_args(annotation) if each is not type(None)]
        return kinds[0] if kinds else None
    if annotation is str or origin is Literal:
        return str
    return tuple if origin is tuple else None
