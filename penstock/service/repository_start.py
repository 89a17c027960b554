"""The models of local repositories with which ``penstock serve`` starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError, ModelError
from penstock.repository import layout, pbtxt, policy
from penstock.repository.description import description_of, versions_of
from penstock.repository.layout import FoundModel
from penstock.repository.pbtxt import Config, Step
from penstock.service.repository_models import priorities_of, warnings_of

_LARGEST: Final = 1 << 20  # bytes of a configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What repositories have for a start.

    Attributes:
        descriptions: of each model the versions to serve, from the oldest to the newest.
        warnings: what was ignored, in words.
        priority: the key ``priority``, if models have priorities.
    """

    descriptions: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    priority: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    model: FoundModel
    root: Path
    config: Config | None


def read_start(roots: Sequence[Path]) -> Start:
    """Read repositories.

    Args:
        roots: their folders.

    Raises:
        ConfigError: with every problem: models that cannot be served, names that two repositories
            have.
    """
    problems: list[str] = []
    warnings: list[str] = []
    entries: dict[str, _Entry] = {}
    for root in roots:
        try:
            found = layout.read(_listing(root))
        except (OSError, ValueError) as error:
            problems.append(f"model repository {root}: {error}")
            continue
        problems += [f"{root}/{name}: {why}" for name, why in found.problems.items()]
        for name, model in found.models.items():
            if name in entries:
                problems.append(
                    f"two repositories have a model {name!r}: {entries[name].root}, {root}"
                )
                continue
            try:
                config = None if model.config is None else _config(root, model.config)
            except ModelError as error:
                problems.append(str(error))
                continue
            entries[name] = _Entry(model=model, root=root, config=config)
            warnings += [f"{root}/{name}: {note}" for note in model.notes]
            warnings += [] if config is None else warnings_of(config, f"{root}/{model.config}")
    descriptions: dict[str, list[Mapping[str, Any]]] = {}
    for name, entry in entries.items():
        try:
            descriptions[name] = [_described(entries, name, each, ()) for each in _wanted(entry)]
        except ModelError as error:
            problems.append(str(error))
    if not entries and not problems:
        problems.append(f"no model in {' and '.join(map(str, roots))}")
    if problems:
        raise ConfigError(problems)
    configs = {name: each.config for name, each in entries.items() if each.config is not None}
    return Start(
        descriptions=descriptions, warnings=tuple(warnings), priority=priorities_of(configs)
    )


def _listing(root: Path) -> Iterator[str]:
    """The paths of all files below a folder.

    Raises:
        OSError: it is no folder, or cannot be read.
        ValueError: a link leaves it.
    """
    if not root.is_dir():
        raise NotADirectoryError("no such folder")
    real = root.resolve()
    for folder, _, names in os.walk(root, followlinks=True, onerror=_raise):
        if not Path(folder).resolve().is_relative_to(real):
            raise ValueError(f"the link {os.path.relpath(folder, root)} leaves it")
        for name in names:
            file = Path(folder, name)
            if not file.resolve().is_relative_to(real):
                raise ValueError(f"the link {os.path.relpath(file, root)} leaves it")
            yield file.relative_to(root).as_posix()


def _raise(error: OSError) -> None:
    raise error


def _config(root: Path, path: str) -> Config:
    file = root / path
    try:
        with file.open("rb") as opened:
            data = opened.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ModelError(f"{file}: is larger than {_LARGEST} bytes")
        return pbtxt.parse(data.decode(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error


def _wanted(entry: _Entry) -> list[str]:
    """The versions to serve.

    Raises:
        ModelError: there is none, or one that the policy names is missing.
    """
    config, there = entry.config, versions_of(entry.model, entry.config)
    chosen = (config and config.policy) or policy.LATEST
    where = f"{entry.root}/{entry.model.name}"
    if missing := policy.missing(chosen, there):
        raise ModelError(f"{where}: version_policy: there is no version {', '.join(missing)}")
    if not there:
        raise ModelError(f"{where}: it has no version")
    return policy.wanted(chosen, there)


def _described(
    entries: Mapping[str, _Entry], name: str, version: str, above: tuple[str, ...]
) -> Mapping[str, Any]:
    entry = entries[name]

    def of_step(step: Step) -> Mapping[str, Any]:
        found = entries.get(step.model)
        where = f"{entry.root}/{name}: ensemble_scheduling"
        if step.model in (name, *above):
            raise ModelError(f"{where}: {step.model!r} runs itself")
        if found is None:
            raise ModelError(f"{where}: there is no model {step.model!r}")
        served = _wanted(found)
        if step.version is not None and step.version not in served:
            raise ModelError(
                f"{where}: version {step.version} of {step.model!r} is not served, only"
                f" {', '.join(served)}"
            )
        return _described(entries, step.model, step.version or served[-1], (*above, name))

    return description_of(entry.model, version, str(entry.root), entry.config, of_step)
