"""From a file, a dict, the environment and flags to one checked ServiceConfig.

A flag wins over the environment, that over YAML, that over the default; op constructors stand
between environment and YAML and are handled by ``resolve``. Every problem of every key is reported
at once, with the place where the key was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from penstock.config.checks import contradictions, unavailable, unheard
from penstock.config.overrides import from_environment, unknown_variables
from penstock.config.problems import (
    KeyPath,
    Problem,
    dotted,
    explain,
    in_words,
    nearest,
    shown,
)
from penstock.config.schema import Section, ServiceConfig, entries_of, keys_of, section_of
from penstock.config.yaml import Document, read_file, read_text
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A configuration that passed every check.

    Attributes:
        config: the checked values.
        warnings: one sentence each, to be logged once at start.
        source: the file's path, or ``yml_dict``.
        place: tells a problem that shows only later, with the place where its key was written.
    """

    config: ServiceConfig
    warnings: list[str]
    source: str
    place: Callable[[Problem], str] = field(default=in_words, compare=False)


def load(
    *,
    yml_file: str | Path | None = None,
    yml_dict: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str],
    lenient: bool = False,
    base_dir: Path | None = None,
) -> Loaded:
    """Load and check one configuration.

    Args:
        yml_file: the file; relative to ``base_dir`` when that is given. Or else:
        yml_dict: the same as plain data; it is not modified.
        overrides: dotted key -> value, from flags; a value of None is a flag not given.
        environ: where ``PENSTOCK_<KEY>`` is looked up for the top-level keys, and ``PENSTOCK_SET``
            for all. A variable of that form whose key is unknown is a warning: it need not be meant
            for us.
        lenient: unknown keys are ignored with a warning each, instead of being problems.
        base_dir: a folder; the working directory without it.

    Raises:
        ConfigError: with every problem found.

    Source: ``docs/compatibility.md``; ``docs/configuration.md`` lists the keys.
    """
    if (yml_file is None) == (yml_dict is None):
        raise ConfigError(["give either yml_file or yml_dict, not both and not neither"])
    if yml_file is not None:
        path = (base_dir or Path()) / yml_file
        source = str(path)
        document = read_text(read_file(path), source)
    else:
        source = "yml_dict"
        data = dict(yml_dict) if isinstance(yml_dict, Mapping) else yml_dict
        if not isinstance(data, dict):
            raise ConfigError([f"yml_dict: must be a mapping, got {shown(data)}"])
        document = Document(data=data, lines={})

    layers = _Layers(document, source)
    for key, (variable, value) in from_environment(environ).items():
        layers.put(tuple(key.split(".")), value, f"environment {variable}")
    for key, value in (overrides or {}).items():
        if value is not None:
            layers.put(tuple(key.split(".")), value, "flag")

    checked = _check(layers.data)
    problems = [*document.problems, *checked.problems]
    unknown = [layers.place(each) for each in checked.unknown]
    problems += [] if lenient else checked.unknown
    if problems:
        raise ConfigError([layers.place(each) for each in layers.sorted(problems)])
    warnings = unknown + unknown_variables(environ)
    warnings += [layers.place(each) for each in unheard(checked.config)]
    return Loaded(
        config=layers.remember_flags(checked.config),
        warnings=warnings,
        source=source,
        place=layers.place,
    )


class _Layers:
    """The data with flags and environment laid over it, and who wrote which key."""

    def __init__(self, document: Document, source: str) -> None:
        self.data = document.data
        self.lines = document.lines
        self.source = source
        self.origins: dict[KeyPath, str] = {}

    def put(self, path: tuple[str, ...], value: Any, origin: str) -> None:
        self.data = _with(self.data, path, value)
        self.origins[path] = origin

    def remember_flags(self, config: ServiceConfig) -> ServiceConfig:
        ops = {
            name: op.forcing(
                frozenset(dotted(path[2:]) for path in self.origins if path[:2] == ("op", name))
            )
            for name, op in config.op.items()
        }
        return config.model_copy(update={"op": ops})

    def line(self, problem: Problem) -> int | None:
        if problem.line is not None:
            return problem.line
        above = (problem.path[:length] for length in range(len(problem.path), 0, -1))
        return next((self.lines[path] for path in above if path in self.lines), None)

    def place(self, problem: Problem) -> str:
        above = (problem.path[:length] for length in range(len(problem.path), 0, -1))
        where = next((self.origins[path] for path in above if path in self.origins), None)
        if where is None:
            line = self.line(problem)
            where = self.source if line is None else f"{self.source}:{line}"
        return f"{where}: {in_words(problem)}"

    def sorted(self, problems: Iterable[Problem]) -> list[Problem]:
        return sorted(problems, key=lambda each: self.line(each) or 0)


def _with(data: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy with one key set; mappings on the way are copied too, never modified.

    A value on the way that is no mapping stays: it is a problem of its own.
    """
    copy = dict(data)
    if len(path) == 1:
        copy[path[0]] = value
        return copy
    inner = copy.get(path[0])
    if inner is None or isinstance(inner, Mapping):
        copy[path[0]] = _with(inner or {}, path[1:], value)
    return copy


@dataclass(slots=True, kw_only=True)
class _Checked:
    """What a look at every key found."""

    config: ServiceConfig
    problems: list[Problem] = field(default_factory=list)
    unknown: list[Problem] = field(default_factory=list)


def _check(data: Mapping[str, Any]) -> _Checked:
    found = _Checked(config=ServiceConfig())
    known = _known(ServiceConfig, data, (), found)
    refused: list[Problem] = []
    try:
        found.config = ServiceConfig.model_validate(known)
    except ValidationError as error:
        # What the schema refuses is taken out, so that the checks between keys see the rest.
        refused = explain(error)
        for problem in refused:
            _take_out(known, problem.path)
        found.config = ServiceConfig.model_validate(known)
    found.problems += refused
    wrong = {problem.path for problem in found.problems}
    for problem in [*unavailable(found.config), *contradictions(found.config)]:
        if not any(path in wrong for path in (problem.path, *problem.involves)):
            found.problems.append(problem)
    return found


def _known(
    section: type[Section], raw: Mapping[Any, Any], path: KeyPath, found: _Checked
) -> dict[str, Any]:
    """A copy of ``raw`` with the keys of the schema only, without those left blank."""
    keys = keys_of(section)
    known: dict[str, Any] = {}
    for key, value in raw.items():
        if not isinstance(key, str):
            text = f"the key {shown(key)} is not text"
            found.problems.append(Problem(path=path, text=text))
        elif key not in keys:
            text = f"is not a known key{nearest(section, key)}"
            found.unknown.append(Problem(path=(*path, key), text=text))
        elif value is None:
            if key in section.never_blank:
                text = "is left blank: give it a value or leave the key out"
                found.problems.append(Problem(path=(*path, key), text=text))
        else:
            known[key] = _inside(keys[key], value, (*path, key), found)
    return known


def _inside(annotation: Any, value: Any, path: KeyPath, found: _Checked) -> Any:
    if not isinstance(value, Mapping):
        return value
    inner, entries = section_of(annotation), entries_of(annotation)
    if inner is not None:
        return _known(inner, value, path, found)
    if entries is None:
        return value
    copy: dict[str, Any] = {}
    for name, entry in value.items():
        if not isinstance(name, str):
            text = f"the name {shown(name)} is not text: put it in quotes"
            found.problems.append(Problem(path=path, text=text))
        elif not name.isprintable():
            text = f"the name {name!a} has characters that cannot be shown: choose another"
            found.problems.append(Problem(path=path, text=text))
        elif entry is None or isinstance(entry, Mapping):
            copy[name] = _known(entries, entry or {}, (*path, name), found)
        else:
            copy[name] = entry
    return copy


def _take_out(known: dict[str, Any], path: KeyPath) -> None:
    """Remove the key that a refusal is about; of a list, the whole list."""
    *above, last = takewhile(lambda step: isinstance(step, str), path)
    inner = known
    for step in above:
        inner = inner[str(step)]
    inner.pop(str(last), None)  # gone already when two items of one list were refused
