"""Runs a user's script, or the service that a configuration file names."""

from __future__ import annotations

import inspect
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from penstock.config.load import load
from penstock.errors import StartupError
from penstock.service import flags
from penstock.service.server import PipelineServer, Service, Several, WebService, run

Servable: TypeAlias = WebService | PipelineServer | Several
_KINDS = (WebService, PipelineServer, Several)
_PACKAGE = str(Path(__file__).parent.parent) + os.sep


def run_file(path: Path) -> None:
    """Run a ``.py`` script or a ``.yml`` configuration; returns when its service has ended.

    The script's folder is put first on ``sys.path``; the working directory stays.

    Raises:
        StartupError: the file defines no service, or the service cannot start.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        if Path(str(path).partition(":")[0]).is_file():
            raise StartupError(
                f"{path}: give the file without a name after it; all its services run"
            )
        raise StartupError(f"{path} {what}: give a Python script (.py) or a configuration (.yml)")
    if path.suffix in (".yml", ".yaml"):
        _run_config(path)
    elif path.suffix == ".py":
        _run_script(path)
    else:
        raise StartupError(f"{path}: give a Python script (.py) or a configuration (.yml)")


def users_traceback(error: BaseException) -> str | None:
    """The traceback of an exception, from the first frame of user code on.

    None if it has no frame of user code, so that it may be a bug of ours.
    """
    rest = error.__traceback__
    while rest is not None and _is_ours(rest.tb_frame.f_code.co_filename):
        rest = rest.tb_next
    # A script with a syntax error has no frame.
    if rest is None and not isinstance(error, SyntaxError):
        return None
    return "".join(traceback.format_exception(type(error), error, rest))


def _is_ours(file: str) -> bool:
    return file.startswith(("<frozen runpy>", _PACKAGE))


def _run_script(path: Path) -> None:
    names = _execute(path, "__main__")
    if flags.current().served:
        return  # the script ran its service itself
    services = _services_in(path, names)
    with _importable("__main__", names):
        for service in services:
            if not isinstance(service, (Service, Several)) and not service.is_prepared:
                config = path.parent / "config.yml"
                if config.is_file():
                    service.prepare_pipeline_config(yml_file=config)
                elif flags.current().over:
                    service.prepare_pipeline_config(yml_dict={})
                else:
                    raise StartupError(
                        f"{path} defines {service!r} but runs nothing, and there is no "
                        f"{config} to run it with; --config names another file"
                    )
        run(*services)


@contextmanager
def _importable(name: str, names: dict[str, Any]) -> Iterator[None]:
    """Register a script as a module by its name, so that pickles find its classes."""
    module = ModuleType(name)
    vars(module).update(names)
    before = sys.modules.get(name)
    if before is None or name == "__main__":  # a library of the same name is kept
        sys.modules[name] = module
    try:
        yield
    finally:
        if before is not None:
            sys.modules[name] = before
        else:
            sys.modules.pop(name, None)


def _execute(path: Path, name: str) -> dict[str, Any]:
    sys.path.insert(0, str(path.parent.resolve()))
    before = sys.argv
    sys.argv = [str(path), *flags.current().arguments]
    try:
        return runpy.run_path(str(path), run_name=name)
    finally:
        sys.argv = before


def _services_in(path: Path, names: dict[str, Any]) -> list[Servable]:
    """The service objects of a script; or an object of its only service class."""
    objects: dict[int, Servable] = {id(v): v for v in names.values() if isinstance(v, _KINDS)}
    if objects:
        return list(objects.values())
    classes = {
        v
        for v in names.values()
        if isinstance(v, type) and issubclass(v, WebService) and v.__module__ == "__main__"
    }
    if len(classes) == 1:
        return [_made(classes.pop(), os.environ.get("PENSTOCK_NAME"))]
    found = sorted(each.__name__ for each in classes)
    if not found:
        raise StartupError(
            f"{path} runs no service and has none as a variable: write service = Service(...),"
            " or end it with service.run_service()"
        )
    raise StartupError(
        f"{path} runs no service and defines several ({', '.join(found)}): run one at its end"
    )


def _run_config(path: Path) -> None:
    now = flags.current()
    loaded = load(
        yml_file=path,
        overrides=now.overrides,
        over=now.over,
        # Whether ports are missing is known when the service is: it may have them in code.
        defaults={("http_port",): 0},
        environ=os.environ,
        lenient=now.lenient,
        ops_are_known=False,
    )
    entry = loaded.config.service
    if entry is None:
        raise StartupError(
            f'{path}: the key service is missing: set it to "file.py:Class", or run the script'
        )
    file, _, wanted = entry.rpartition(":")
    script = path.parent / file
    if not script.is_file():
        raise StartupError(f"{path}: service names {script}, which does not exist")
    # Scripts run their service at the end, mostly without a test of ``__name__``.
    with flags.using(flags.Flags(importing=True, arguments=now.arguments)):
        names = _execute(script, script.stem)
        found = names.get(wanted)
        if isinstance(found, type) and issubclass(found, WebService):
            found = _made(found, loaded.config.name)
    if not isinstance(found, _KINDS):
        known = sorted(name for name, value in names.items() if _is_servable(value, script.stem))
        raise StartupError(
            f"{path}: {script} has no service named {wanted!r}"
            + (f": it has {', '.join(known)}" if known else "")
        )
    if isinstance(found, Several):
        raise StartupError(
            f"{path}: {wanted} is an App, which has its configuration in {script}: run that, and "
            f"set keys there by App(..., key=value), by --config {path}, by -o key=value, or by"
            f" variables PENSTOCK_…"
        )
    with _importable(script.stem, names):
        found.prepare_pipeline_config(yml_file=path)
        run(found)


def _made(cls: type[WebService], name: str | None) -> WebService:
    """Create an object of a service class, whose constructor may require a name."""
    try:
        inspect.signature(cls).bind()
    except TypeError:
        if name is None:
            raise StartupError(f"{cls.__name__} requires a name: set the key name") from None
        return cls(name)
    return cls()


def _is_servable(value: object, module: str) -> bool:
    if isinstance(value, type):
        return issubclass(value, WebService) and value.__module__ == module
    return isinstance(value, _KINDS)
