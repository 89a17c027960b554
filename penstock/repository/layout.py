"""The layout of a repository: from the paths of its files to its models and their versions.

These layouts are read, also side by side::

    NAME/config.pbtxt                       Triton: a configuration, and a folder for each version
    NAME/1/model.onnx
    NAME/00000123/...                       TensorFlow Serving: a folder for each version
    NAME/serving_server_conf.prototxt       Paddle Serving: a model's folder, without versions
    NAME/model.onnx                         a model's folder, or one file, without versions
    NAME.onnx

A model without versions has the version 1. An ensemble of Triton has no files but its
configuration; it has the version 1 too, if it has no folder with another number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from penstock.repository import policy

CONFIG: Final = "config.pbtxt"
"""The name of a model's configuration in its folder."""

WARMUP: Final = "warmup"
"""The name of a folder of a model with data for requests that warm it up."""

EXAMPLES: Final = "examples"
"""The name of a folder of a version with examples of requests, as ``penstock convert`` writes it:
files ``.npz``, on which the model runs before it is ready."""

ONLY: Final = "1"
"""The version of a model that has no folders of versions."""

SUFFIXES: Final = (".onnx", ".pt", ".pt2", ".xml")
"""Of files that are models by themselves."""

TIME_FILES: Final = ("fluid_time_file", "fluid_time_stamp")
"""Files of Paddle Serving whose change says that a model's folder has a new model. The first is the
original's, the second the name that its documents have for it."""

_CONFS: Final = ("serving_server_conf.prototxt", "serving_client_conf.prototxt")
_MODELS: Final = (*SUFFIXES, ".pdmodel", "__model__")
_VISIBLE: Final = 8  # names in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundVersion:
    """One version of a model.

    Attributes:
        version: its number, without leading zeros.
        path: of its folder or file, below the repository's root.
        files: the paths of its files; empty for a version of an ensemble.
    """

    version: str
    path: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """One model of a repository.

    Attributes:
        name: its name.
        folder: the path of its folder; None for a single file.
        config: the path of its configuration; None without one.
        versions: by number, from the oldest to the newest; empty if there is none, and then
            ``config``, if there is one, may be that of an ensemble, whose version is ``ONLY``.
        shared: the paths of the files that belong to all versions, such as ``NAME/warmup/x``.
        notes: what was ignored, and why, in words.
    """

    name: str
    folder: str | None
    config: str | None
    versions: Mapping[str, FoundVersion]
    shared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a repository has.

    Attributes:
        models: by name, in alphabetical order.
        problems: by name, why something in it is no model.
    """

    models: Mapping[str, FoundModel] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


def read(listing: Iterable[str]) -> Layout:
    """The models of a repository.

    Args:
        listing: the paths of all files below the root, with ``/`` between their parts. Hidden files
            and folders are ignored.

    Raises:
        ValueError: a path is absolute, leaves the root, or has an empty part; or the root is itself
            the folder of a model's versions.
    """
    by_name: dict[str, list[tuple[str, ...]]] = {}
    for path in sorted(listing):
        parts = tuple(path.split("/"))
        if not all(parts) or {".", ".."} & {*parts} or "\\" in path or "\0" in path:
            raise ValueError(f"the path {path!r} leaves the repository, or is none")
        if not any(each.startswith(".") for each in parts):
            by_name.setdefault(parts[0], []).append(parts)
    folders = {name for name, files in by_name.items() if any(len(each) > 1 for each in files)}
    if folders and all(policy.canonical(name) for name in folders):
        shown = ", ".join(sorted(folders)[:_VISIBLE])
        raise ValueError(f"it holds versions of one model ({shown}): give the folder above it")
    models: dict[str, FoundModel] = {}
    problems: dict[str, str] = {}
    for entry, files in by_name.items():
        if entry in folders:
            found = _model(entry, [each[1:] for each in files if len(each) > 1])
        elif (single := _single(entry)) is not None:
            found = single
        else:
            continue  # such as README.md
        if isinstance(found, str):
            problems[entry] = found
        elif found.name in models:
            problems[found.name] = f"{found.name} is the name of a folder and of a file: rename one"
            del models[found.name]
        elif found.name not in problems:
            models[found.name] = found
    return Layout(models=dict(sorted(models.items())), problems=dict(sorted(problems.items())))


def _single(name: str) -> FoundModel | None:
    """A file in the root that is a model; None for other files."""
    stem, suffix = PurePosixPath(name).stem, PurePosixPath(name).suffix
    if suffix not in SUFFIXES:
        return None
    only = FoundVersion(version=ONLY, path=name, files=(name,))
    return FoundModel(name=stem, folder=None, config=None, versions={ONLY: only})


def _model(name: str, files: list[tuple[str, ...]]) -> FoundModel | str:
    """The model in a folder; or why there is none.

    Args:
        name: of the folder.
        files: the parts of the paths below it.
    """
    config = f"{name}/{CONFIG}" if (CONFIG,) in files else None
    numbered: dict[str, dict[str, list[str]]] = {}  # version -> folder -> files
    others: list[tuple[str, ...]] = []
    for parts in files:
        version = policy.canonical(parts[0]) if len(parts) > 1 else None
        if version is None:
            others.append(parts)
        else:
            paths = numbered.setdefault(version, {}).setdefault(parts[0], [])
            paths.append("/".join((name, *parts)))
    notes = []
    versions: dict[str, FoundVersion] = {}
    for version in policy.ordered(numbered):
        (folder, paths), *twins = numbered[version].items()
        if twins:
            both = " and ".join(numbered[version])
            notes.append(f"the folders {both} have the same number: none of them is served")
            continue
        versions[version] = FoundVersion(
            version=version, path=f"{name}/{folder}", files=tuple(paths)
        )
    if not numbered and (whole := _whole(name, files)) is not None:
        return whole
    folders = sorted({each[0] for each in others if len(each) > 1})
    kept = [each for each in folders if not _is_usual(each)]
    if kept:
        shown = ", ".join(kept[:_VISIBLE])
        notes.append(f"folders of versions have numbers as names; ignored: {shown}")
    if not versions and config is None:
        if notes:
            return f"it has no version: {'; '.join(notes)}"
        return "it has no version: a folder with a number as its name, such as 1, with the model"
    shared = tuple(
        "/".join((name, *each))
        for each in others
        if each != (CONFIG,) and (len(each) == 1 or each[0] == WARMUP)
    )
    return FoundModel(
        name=name,
        folder=name,
        config=config,
        versions=versions,
        shared=shared,
        notes=tuple(notes),
    )


def _whole(name: str, files: list[tuple[str, ...]]) -> FoundModel | None:
    """A model whose files lie in its folder itself, as of Paddle Serving; None if they do not."""
    names = [each[0] for each in files if len(each) == 1]
    if not any(each in _CONFS or each.endswith(_MODELS) for each in names):
        return None
    paths = tuple("/".join((name, *each)) for each in files if each != (CONFIG,))
    return FoundModel(
        name=name,
        folder=name,
        config=f"{name}/{CONFIG}" if CONFIG in names else None,
        versions={ONLY: FoundVersion(version=ONLY, path=name, files=paths)},
    )


def _is_usual(folder: str) -> bool:
    """Whether a folder beside the versions is known to be none: Triton's configurations and data
    for warm-up.
    """
    return folder in (WARMUP, "configs", "initial_state")
