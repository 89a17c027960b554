"""The header field ``Server-Timing``: how long the parts of an answer took. Pure.

Metrics are separated by commas; each is a name with parameters, of which ``dur`` is its duration in
milliseconds. Source: W3C Server Timing; RFC 9110 (tokens and quoted strings).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

ASKS: Final = b"penstock-timeline"
"""The header field of requests whose answers are to have the field; its value has no effect."""

FIELD: Final = b"server-timing"

_SAFE: Final = "!#$&'*+^`|"  # further characters of a token; the percent sign escapes others
# Patterns as texts: they are compiled where a client first needs them, not in every service.
_PARAMETER: Final = r""";\s*([^\s;,="]+)\s*(?:=\s*(?:"([^"]*)"|([^\s;,"]*)))?"""
_METRIC: Final = (
    r"""[\s,]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)"""
    r"""((?:\s*;\s*[^\s;,="]+\s*(?:=\s*(?:"[^"]*"|[^\s;,"]*))?)*)"""
)


class Metric(NamedTuple):
    """One part of an answer: its name, and parameters as texts."""

    name: str
    parameters: Mapping[str, str]


def encode(metrics: Iterable[Metric]) -> list[bytes]:
    """Encode metrics, one by one; the field's value has commas between them. Characters of a name
    or a value that no token has are percent-encoded.
    """
    return [
        ";".join(
            [
                quote(name, safe=_SAFE),
                *(f"{key}={quote(value, safe=_SAFE)}" for key, value in parameters.items()),
            ]
        ).encode()
        for name, parameters in metrics
    ]


def decode(value: bytes) -> list[Metric]:
    """Decode the field's value. What is no metric ends it: a timing is never worth an error."""
    text, at, found = value.decode("latin-1"), 0, []
    metric = re.compile(_METRIC)
    while (match := metric.match(text, at)) is not None:
        at = match.end()
        name, rest = match.groups()
        parameters = {
            key.lower(): unquote(quoted or plain)
            for key, quoted, plain in re.findall(_PARAMETER, rest)
        }
        found.append(Metric(unquote(name), parameters))
    return found
