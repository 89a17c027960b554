"""The description of a model's version: plain data, of which every process makes the same graph.

{"name": "rank", "version": "3",
 "path": "/models/rank/3",      # a folder, or a file; of an ensemble empty
 "folder": "/models/rank",      # that of the model, with what its versions share; or empty
 "config": {...},               # see ``pbtxt.of_plain``
 "swap": "resource",            # how it takes the place of others; not there: as the service says
 "signature": "any",            # it may have another one; not there: that of the default version
 "steps": [{...}]}              # of an ensemble: the description of each step's model, in order
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import ModelError
from penstock.repository import layout
from penstock.repository.layout import FoundModel
from penstock.repository.parameters import SIGNATURE, SWAP
from penstock.repository.pbtxt import Config, Step
from penstock.repository.served import Description


def versions_of(model: FoundModel, config: Config | None) -> list[str]:
    """The versions that a model has, from the oldest to the newest.

    Args:
        model: the model.
        config: its configuration; None without one.
    """
    if not model.versions and config is not None and config.is_ensemble:
        return [layout.ONLY]
    return [*model.versions]


def description_of(
    model: FoundModel,
    version: str,
    root: str,
    config: Config | None,
    of_step: Callable[[Step], Description],
) -> dict[str, Any]:
    """The description of a version.

    Args:
        model: the model.
        version: one of ``versions_of`` it.
        root: the path of a folder on this machine in which the files of the version, and those that
            are shared, have the paths that they have in the repository.
        config: its configuration; None without one.
        of_step: the description of the version of a model that a step of an ensemble runs. Raises
            ModelError if there is none.

    Raises:
        ModelError: there is no such version, or the configuration has another name.
    """
    config = config or Config()
    if config.name and config.name != model.name:
        raise ModelError(
            f"{model.config}: name: {config.name!r} is not the name of the folder, {model.name!r}"
        )
    found = model.versions.get(version)
    if found is None and not config.is_ensemble:
        raise ModelError(f"model {model.name!r} has no version {version}")
    described: dict[str, Any] = {
        "name": model.name,
        "version": version,
        "path": "" if config.is_ensemble or found is None else f"{root}/{found.path}",
        "folder": "" if model.folder is None else f"{root}/{model.folder}",
        "config": dict(config.plain),
    }
    if (swap := config.parameters.get(SWAP)) is not None:
        if swap not in ("availability", "resource"):
            raise ModelError(
                f"{model.config}: parameters: {SWAP}: {swap!r} is neither availability nor resource"
            )
        described["swap"] = swap
    if (signature := config.parameters.get(SIGNATURE)) is not None:
        if signature not in ("same", "any"):
            raise ModelError(
                f"{model.config}: parameters: {SIGNATURE}: {signature!r} is neither same nor any"
            )
        described["signature"] = signature
    if config.is_ensemble:
        described["steps"] = [of_step(each) for each in config.steps]
    return described
