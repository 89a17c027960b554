"""Runs a user's script, or the service that a configuration file names."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from penstock.config.load import load
from penstock.errors import StartupError
from penstock.service import flags
from penstock.service.server import WebService
from penstock.service.short import Service


def run_file(path: Path) -> None:
    """Run a ``.py`` script or a ``.yml`` configuration; returns when its service has ended.

    The script's folder is put first on ``sys.path``; the working directory stays.

    Raises:
        StartupError: there is nothing to run in it, or the service cannot start.
    """
    if not path.is_file():
        raise StartupError(f"{path} is no file")
    if path.suffix in (".yml", ".yaml"):
        _run_config(path)
    elif path.suffix == ".py":
        _run_script(path)
    else:
        raise StartupError(f"{path}: give a Python script (.py) or a configuration (.yml)")


def _run_script(path: Path) -> None:
    names = _execute(path)
    if flags.current().served:
        return  # it ran its service by itself
    service = _service_in(path, names)
    if isinstance(service, Service):
        service.run()
        return
    config = path.parent / "config.yml"
    if not config.is_file():
        raise StartupError(
            f"{path} defines {type(service).__name__} but runs nothing, and there is no "
            f"{config} to run it with"
        )
    service.prepare_pipeline_config(yml_file=config)
    service.run_service()


def _execute(path: Path) -> dict[str, Any]:
    sys.path.insert(0, str(path.parent.resolve()))
    before = sys.argv
    sys.argv = [str(path)]
    try:
        return runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before


def _service_in(path: Path, names: dict[str, Any]) -> WebService:
    """The one service object of a script; or one made of its one service class."""
    objects = {id(v): v for v in names.values() if isinstance(v, WebService)}
    if len(objects) == 1:
        return next(iter(objects.values()))
    classes = {
        v
        for v in names.values()
        if isinstance(v, type) and issubclass(v, WebService) and v.__module__ == "__main__"
    }
    if not objects and len(classes) == 1:
        made: WebService = classes.pop()()
        return made
    raise StartupError(
        f"{path} runs no service and holds {len(objects)} service objects and {len(classes)} "
        f"service classes: run one at its end, or leave exactly one"
    )


def _run_config(path: Path) -> None:
    now = flags.current()
    loaded = load(yml_file=path, overrides=now.overrides, environ=os.environ, lenient=now.lenient)
    entry = loaded.config.service
    if entry is None:
        raise StartupError(f'{path}: the key service is missing: set it to "file.py:Class"')
    file, _, wanted = entry.partition(":")
    script = path.parent / file
    if not script.is_file():
        raise StartupError(f"{path}: service names {script}, which is no file")
    # Imported under a name of its own, so that a script's `__main__` part does not run.
    sys.path.insert(0, str(script.parent.resolve()))
    found = runpy.run_path(str(script), run_name=script.stem).get(wanted)
    if isinstance(found, type) and issubclass(found, WebService):
        service = found() if loaded.config.name is None else found(loaded.config.name)
    elif isinstance(found, WebService):
        service = found
    else:
        raise StartupError(f"{path}: {script} has no WebService named {wanted!r}")
    service.prepare_pipeline_config(yml_file=path)
    service.run_service()
