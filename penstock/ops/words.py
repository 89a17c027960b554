"""The words for an op's options in the short form: those of ``@op``, ``Model`` and routes.

    word       key of a configuration file, and parameter of ``Op``
    batch      batch_size
    wait       auto_batching_timeout; both in milliseconds
    workers    concurrency; of an ``async def`` function without ``batch`` by default COROUTINES
    timeout    timeout; the word is in seconds, the key in milliseconds

Every other option has the name of its key. The keys ``batch_size``, ``auto_batching_timeout`` and
``concurrency`` are accepted in the place of their words, with a hint.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from penstock.errors import ConfigError

KEYS: Final[Mapping[str, str]] = {
    "batch": "batch_size",
    "wait": "auto_batching_timeout",
    "workers": "concurrency",
}
"""The key of each word."""

WORDS: Final[Mapping[str, str]] = {key: word for word, key in KEYS.items()}
"""The word of each key."""

PARAMETERS: Final = (
    "server_endpoints",
    "fetch_list",
    "client_config",
    "client_type",
    "concurrency",
    "timeout",
    "retry",
    "batch_size",
    "auto_batching_timeout",
    "local_service_handler",
    "jump_to_ops",
)
"""The parameters of ``Op`` that are options."""

FURTHER: Final = (
    "executor",
    "socket",
    "socket_format",
    "seats",
    "on_timeout",
    "memory_limit_mib",
    "max_batches",
    "cpu_affinity",
    "isolate_errors",
    "retry_on_crash",
    "policy",
    "batch_rows",
    "allow_split_request",
    "enable_overrun",
    "pad",
    "rows",
    "shared_outputs",
    "verify_batches",
    "verify_seconds",
    "examples",
    "local_service_conf",
    "versions",
    "ray",
    "server_token",
    "server_ca_file",
    "server_cert_file",
    "server_key_file",
    "model_name",
    "use_encryption_model",
    "encryption_key",
)
"""The keys of an op in a configuration file that are no parameters of ``Op``."""

COROUTINES: Final = 64
"""The most calls in flight of an ``async def`` function that is not batched; a guess. Each takes
some kilobytes; a server that it calls may allow fewer."""

_SHORT: Final = 0.2
"""Milliseconds up to which a wait was probably meant to be in seconds; a guess."""

_LONG: Final = 100.0
"""Seconds from which a timeout was probably meant to be in milliseconds; a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options of one op of the short form.

    Attributes:
        where: what has the options, in messages, such as ``op 'find'``.
        parameters: those that are parameters of ``Op``, by their names there.
        keys: the others, by their keys of a configuration file.
        hints: what the author might write instead; logged at the start.
    """

    where: str
    parameters: Mapping[str, Any]
    keys: Mapping[str, Any]
    hints: tuple[str, ...]


def read(where: str, options: Mapping[str, Any]) -> Given:
    """Read the options of one op.

    Args:
        where: see ``Given``.
        options: words and keys with their values; None is "not given".

    Raises:
        ConfigError: a word and its key are both given, or the timeout is no number of seconds.
    """
    given = {name: value for name, value in options.items() if value is not None}
    hints = []
    for word, key in KEYS.items():
        if key in given and word in given:
            raise ConfigError([f"{where}: {word} and {key} are one option: leave out {key}"])
        if key in given:
            hints.append(f"{where}: {key} is called {word} here: write {word}={given[key]!r}")
        if word in given:
            given[key] = given.pop(word)
    wait = given.get("auto_batching_timeout")
    if isinstance(wait, float) and 0 < wait <= _SHORT:
        hints.append(f"{where}: wait is in milliseconds: {wait:g} s would be wait={1000 * wait:g}")
    if "timeout" in given:
        seconds = given["timeout"]
        given["timeout"] = _milliseconds(where, seconds)
        if seconds >= _LONG:
            hints.append(
                f"{where}: timeout is in seconds here: {seconds:g} ms would be"
                f" timeout={seconds / 1000:g}"
            )
    return Given(
        where=where,
        parameters={key: value for key, value in given.items() if key in PARAMETERS},
        keys={key: value for key, value in given.items() if key not in PARAMETERS},
        hints=tuple(hints),
    )


def unknown(option: str) -> str | None:
    """What a message says about an option that does not exist; None if it exists."""
    if option in (*KEYS, *PARAMETERS, *FURTHER):
        return None
    near = get_close_matches(option, [*KEYS, *PARAMETERS, *FURTHER], n=1)
    if near:
        return f"; did you mean {WORDS.get(near[0], near[0])}?"
    return f": they are {', '.join(WORDS.get(each, each) for each in (*PARAMETERS, *FURTHER))}"


def _milliseconds(where: str, seconds: Any) -> int:
    """A timeout in whole milliseconds; 0 is no limit, as everything below it."""
    try:
        number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
        milliseconds = 1000 * float(seconds) if number else math.nan
    except OverflowError:
        milliseconds = math.inf
    if not math.isfinite(milliseconds):
        text = f"timeout is a number of seconds, such as 0.5, not {seconds!r}"
        raise ConfigError([f"{where}: {text}"])
    return max(1, round(milliseconds)) if milliseconds > 0 else 0
