"""Makes the instruments of a service: those that its configuration names, and those of the
original, which are in the distribution ``penstock-paddle``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from penstock.config.schema import ServiceConfig
from penstock.instrument import Instrument
from penstock.observe.timeline import Timeline

_PACKAGE: Final = "penstock_paddle"
_MISSING: Final = (
    "no effect without the distribution penstock-paddle, which is not installed:"
    " pip install penstock-paddle"
)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Process:
    """See ``ProcessInfo``."""

    config: ServiceConfig
    is_first: bool
    kept: dict[str, int]


@contextmanager
def instruments_in(process: Process, instruments: Sequence[Instrument]) -> Iterator[None]:
    """Enter the contexts that the instruments have for this process."""
    with ExitStack() as stack:
        for each in instruments:
            stack.enter_context(each.in_process(process))
        yield


def imported(key: str, config: ServiceConfig, problems: list[str]) -> list[Any]:
    """Import the names in a key; each failure adds a problem."""
    found = []
    for path in getattr(config, key):
        module, _, name = path.partition(":")
        try:
            found.append(getattr(import_module(module), name))
        except Exception as error:  # noqa: BLE001 - the user's code, which may raise anything
            problems.append(f"{key}: {path} cannot be imported: {error!r}")
    return found


def named_instruments(config: ServiceConfig, problems: list[str]) -> list[Instrument]:
    """The instruments that the key ``instruments`` names; each failure adds a problem."""
    made = []
    for make in imported("instruments", config, problems):
        try:
            instrument = make()
        except Exception as error:  # noqa: BLE001 - the user's code, which may raise anything
            problems.append(f"instruments: {make!r} cannot be called: {error!r}")
            continue
        if isinstance(instrument, Instrument):
            made.append(instrument)
        else:
            problems.append(f"instruments: {make!r} makes a {type(instrument).__name__}")
    return made


def originals(config: ServiceConfig, *, legacy: bool) -> tuple[list[Instrument], list[str]]:
    """The original's instruments whose keys are set; or a warning that they are not installed.

    Args:
        config: the service's.
        legacy: whether the service was written for the original.
    """
    wanted = {}
    if config.log_dir:
        wanted["log_dir"] = "log_files:LogFiles"
    elif os.environ.get("SERVING_LOG_PATH"):
        wanted["SERVING_LOG_PATH"] = "log_files:LogFiles"
    elif legacy:
        wanted["the folder PipelineServingLogs"] = "log_files:LogFiles"
    if config.dag.tracer.interval_s is not None:
        wanted["dag.tracer.interval_s"] = "tracer:Tracer"
    if config.dag.use_profile:
        wanted["dag.use_profile"] = "profile:Profile"
    found = {key: _of_paddle(path) for key, path in wanted.items()}
    missing = ", ".join(key for key, make in found.items() if make is None)
    return (
        [make() for make in found.values() if make is not None],
        [f"{missing}: {_MISSING}"] if missing else [],
    )


def profile_text() -> Callable[[Timeline], str]:
    """The function that writes the profile of a request whose caller requests it; without
    ``penstock-paddle`` one that warns once, and returns an empty text.
    """
    return _of_paddle("profile:profile_text") or _no_profile


def _no_profile(_: Timeline) -> str:
    _warn_of_no_profile()
    return ""


@cache
def _warn_of_no_profile() -> None:
    _log.warning("pipeline.profile, which a caller requests: %s", _MISSING)


def _of_paddle(path: str) -> Any:
    """The object at ``module:name`` in the instruments of ``penstock-paddle``, if installed."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(f"{_PACKAGE}.instruments.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != _PACKAGE:
            raise
        return None
