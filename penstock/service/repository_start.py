"""The models of repositories with which ``penstock serve`` starts, if they do not change."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, Final

from penstock.errors import ConfigError, ModelError, StoreError
from penstock.repository import layout, pbtxt, policy
from penstock.repository.description import description_of, versions_of
from penstock.repository.layout import FoundModel
from penstock.repository.options import Repositories
from penstock.repository.parameters import warnings_of
from penstock.repository.pbtxt import Config, Step
from penstock.repository.served import Description
from penstock.service.catalog import Entry, catalog_of
from penstock.service.repository_models import priorities_of
from penstock.store.cache import keep

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
    """A model of a repository.

    Attributes:
        model: its versions.
        config: its configuration; None without one.
        root: the repository.
        describe: makes the description of a version, with that of each step of an ensemble; fetches
            its files first if they are not on this machine.
    """

    model: FoundModel
    config: Config | None
    root: str
    describe: Callable[[str, Callable[[Step], Description]], Description]


def read_start(repositories: Repositories) -> Start:
    """Read repositories: folders in place; stores once, in a process of its own, since threads of
    their libraries would prevent a fork of this one. It fetches the versions into the cache, where
    they stay as long as this process lives. With a public key it does so with folders as well: what
    is opened must be what was verified.

    Args:
        repositories: where they are.

    Raises:
        ConfigError: with every problem: models that cannot be served, names that two repositories
            have.
    """
    if not any(_is_fetched(place, repositories) for place in repositories.places):
        return _read(repositories)
    command = [sys.executable, "-P", "-c", f"from {__name__} import read_aside; read_aside()"]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as reader:  # noqa: S603 - our own
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(json.dumps(asdict(repositories)) + "\n")
        reader.stdin.flush()
        line = reader.stdout.readline()
        if not line:
            raise ConfigError(["the repositories cannot be read: see the lines above"])
        found = json.loads(line)
        if "problems" in found:
            raise ConfigError(found["problems"])
        start = Start(**found)
        for versions in start.descriptions.values():
            for each in versions:
                _keep(each)
    return start


def read_aside() -> None:
    """The process that reads stores: gets the repositories as a line of JSON, and answers with what
    they have; ends with its standard input, so that what it fetched is in use until then.
    """
    given = json.loads(sys.stdin.readline())
    lists = {key: tuple(each) for key, each in given.items() if isinstance(each, list)}
    try:
        found: dict[str, Any] = asdict(_read(Repositories(**{**given, **lists})))
    except ConfigError as error:
        found = {"problems": error.problems}
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


def _keep(description: Description) -> None:
    """Let the files of a version stay in the cache as long as this process lives."""
    for key in ("path", "folder"):
        place = Path(description[key]) if description[key] else None
        if place is not None:
            keep(place if place.is_dir() else place.parent)
    for step in description.get("steps", ()):
        _keep(step)


def _is_fetched(place: str, repositories: Repositories) -> bool:
    return "://" in place or repositories.public_key is not None


def _read(repositories: Repositories) -> Start:
    problems: list[str] = []
    warnings: list[str] = []
    entries: dict[str, _Entry] = {}
    for place in repositories.places:
        read = _read_store if _is_fetched(place, repositories) else _read_folder
        for found in read(place, repositories, problems):
            name = found.model.name
            if name in entries:
                first = entries[name].root
                problems.append(f"two repositories have a model {name!r}: {first}, {found.root}")
                continue
            entries[name] = found
            warnings += [f"{found.root}/{name}: {note}" for note in found.model.notes]
            if found.config is not None:
                warnings += warnings_of(found.config, f"{found.root}/{found.model.config}")
    descriptions: dict[str, list[Description]] = {}
    for name, entry in entries.items():
        try:
            descriptions[name] = [_described(entries, name, each, ()) for each in _wanted(entry)]
        except (ModelError, StoreError) as error:
            problems.append(str(error))
    if not entries and not problems:
        problems.append(f"no model in {' and '.join(repositories.places)}")
    if problems:
        raise ConfigError(problems)
    configs = {name: each.config for name, each in entries.items() if each.config is not None}
    return Start(
        descriptions=descriptions, warnings=tuple(warnings), priority=priorities_of(configs)
    )


def _read_folder(place: str, _repositories: Repositories, problems: list[str]) -> Iterator[_Entry]:
    """The models of a folder of this machine; problems are added."""
    root = Path(place)
    try:
        found = layout.read(_listing(root))
    except (OSError, ValueError) as error:
        problems.append(f"model repository {root}: {error}")
        return
    problems += [f"{root}/{name}: {why}" for name, why in found.problems.items()]
    for model in found.models.values():
        try:
            config = None if model.config is None else _config(root, model.config)
        except ModelError as error:
            problems.append(str(error))
            continue

        def describe(
            version: str,
            of_step: Callable[[Step], Description],
            model: FoundModel = model,
            config: Config | None = config,
        ) -> Description:
            return description_of(model, version, str(root), config, of_step)

        yield _Entry(model=model, config=config, root=str(root), describe=describe)


def _read_store(place: str, repositories: Repositories, problems: list[str]) -> Iterator[_Entry]:
    """The models of a store; problems are added."""
    try:
        catalog = catalog_of(replace(repositories, places=(place,)))
        scan = catalog.scan()
    except StoreError as error:
        problems.append(str(error))
        return
    problems += scan.outages.values()
    (root,) = catalog.places
    for found in scan.entries.values():
        if found.model is None or found.problem:
            problems.append(f"{root}/{found.name}: {found.problem}")
            continue

        def describe(
            version: str, of_step: Callable[[Step], Description], found: Entry = found
        ) -> Description:
            return catalog.hold(found, version, of_step).description

        yield _Entry(model=found.model, config=found.config, root=root, describe=describe)


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
) -> Description:
    entry = entries[name]

    def of_step(step: Step) -> Description:
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

    return entry.describe(version, of_step)
