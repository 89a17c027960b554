"""The configuration file of the model server: models, workflows, and services.

    models:
      detect: models/detect                  # a path; or a path and any key of an op
      read: {path: models/read, concurrency: 2, batch_size: 8}
    workflows:
      ocr: [detect, read]                    # one after another
      both: {detect: request, read: request} # both read the request; outputs of both
    services:
      Text: ocr                              # POST /Text/inference
      GeneralModelService: {a: ocr, b: both} # the request's `model` selects one
    server: {http_port: 9393}                # any key of a service, such as model_repository

Source: ``docs/compatibility.md`` (the model server's graphs).
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from penstock.config.problems import KeyPath, Problem, explain, in_words, shown
from penstock.config.schema import ServiceConfig
from penstock.config.yaml import Document, read_file, read_text
from penstock.errors import ConfigError

REQUEST: Final = "request"
"""The input name of a workflow's first models."""

Name: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$", strict=True)]


class ModelEntry(BaseModel):
    """A model: its path, and any key of an op."""

    model_config = ConfigDict(extra="allow", frozen=True)

    path: Annotated[str, Field(strict=True, min_length=1)]


def _entry(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


class ModelServerConfig(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: dict[Name, Annotated[ModelEntry, BeforeValidator(_entry)]] = {}
    workflows: dict[Name, list[Name] | dict[Name, Name]] = {}
    services: dict[Name, Name | dict[str, Name]] = {}
    server: dict[str, Any] = {}

    def graphs(self) -> dict[str, dict[str, str]]:
        """By workflow name, its models with their inputs. Without workflows every model is one."""
        if not self.workflows:
            return {name: {name: REQUEST} for name in self.models}
        return {
            name: given
            if isinstance(given, dict)
            else dict(zip(given, [REQUEST, *given], strict=False))
            for name, given in self.workflows.items()
        }


def load(file: Path) -> ModelServerConfig:
    """Read and check a file.

    Raises:
        ConfigError: with every problem found.
    """
    document = read_text(read_file(file), str(file))
    problems = list(document.problems)
    config = None
    data = {key: value for key, value in document.data.items() if value is not None}
    try:
        config = ModelServerConfig.model_validate(data)
    except ValidationError as error:
        problems += _form_problems(error)
    else:
        problems += [*_contradictions(config), *_key_problems(config)]
    if problems or config is None:
        raise ConfigError(
            [f"{_place(document, file, each)}: {in_words(each)}" for each in problems]
        )
    return config


def _contradictions(config: ModelServerConfig) -> Iterator[Problem]:
    if not config.models and not config.server.get("model_repository"):
        yield Problem(path=("models",), text=f"{_WANTED[('models',)]}, got nothing")
        return
    graphs = config.graphs()
    for name, given in config.workflows.items():
        path = ("workflows", name)
        if not given:
            yield Problem(path=path, text="has no model")
        if isinstance(given, list) and len({*given}) < len(given):
            yield Problem(path=path, text="has a model twice")
        graph = graphs[name]
        for model, reads in graph.items():
            if model not in config.models:
                yield Problem(path=path, text=f"there is no model {model!r} under models")
            if reads != REQUEST and reads not in graph:
                text = (
                    f"{model!r} reads {reads!r}, which is neither one of its models nor {REQUEST!r}"
                )
                yield Problem(path=path, text=text)
            elif _is_circular(graph, model):
                yield Problem(path=path, text=f"{model!r} reads its own output")
    for service, chosen in config.services.items():
        for workflow in chosen.values() if isinstance(chosen, dict) else (chosen,):
            if workflow not in graphs:
                there = ", ".join(graphs)
                text = f"there is no workflow {workflow!r}, only {there}"
                yield Problem(path=("services", service), text=text)


def _is_circular(graph: dict[str, str], model: str) -> bool:
    at: str | None = model
    for _ in graph:
        at = graph.get(at or "")
    return at is not None and at != REQUEST


_WANTED: Final[dict[tuple[object, ...], str]] = {
    ("models",): "must be a mapping of at least one name to a path, or to `path` and keys of an op",
    ("models", "*"): "must be a path, or a mapping with `path` and keys of an op",
    ("workflows",): "must be a mapping of names to lists of models, or to mappings",
    ("workflows", "*"): "must be a list of models, or a mapping of models to what each reads",
    ("services",): "must be a mapping of names to workflows, or to mappings",
    ("services", "*"): "must be a workflow, or a mapping of names to workflows",
    ("server",): "must be a mapping of keys of a service",
}
_NOT_OF_THE_SERVER: Final = {
    "op": "keys of an op belong under models",
    "name": "the names are those of the workflows",
    "service": "this file defines the service",
}


def _form_problems(error: ValidationError) -> Iterator[Problem]:
    """One problem for each place: pydantic reports all alternatives of a union."""
    seen = set()
    for each in error.errors(include_url=False):
        loc = each["loc"]
        path = loc[:2]
        if path in seen:
            continue
        seen.add(path)
        if each["type"] == "extra_forbidden":
            near = get_close_matches(str(path[0]), [*ModelServerConfig.model_fields], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield Problem(path=path, text=f"is not a known key{hint}")
        elif "[key]" in loc:
            text = f"the name {loc[1]!r} must have 1 to 64 letters, digits, '_', '.' and '-'"
            yield Problem(path=path[:1], text=text)
        elif loc[-1:] == ("path",):
            yield Problem(path=path, text="needs `path`, the model's folder or file")
        else:
            wanted = _WANTED[(path[0], *["*" for _ in path[1:]])]
            got = "nothing" if each["type"] == "missing" else shown(each["input"] or None)
            yield Problem(path=path, text=f"{wanted}, got {got}")


def _key_problems(config: ModelServerConfig) -> Iterator[Problem]:
    """Problems of single keys of ops and of the service."""
    for key, text in _NOT_OF_THE_SERVER.items():
        if key in config.server:
            yield Problem(path=("server", key), text=f"does not belong here: {text}")
    ops = {name: entry.model_extra or {} for name, entry in config.models.items()}
    for name, keys in ops.items():
        local = keys.get("local_service_conf")
        if isinstance(local, dict) and "model_config" in local:
            where = ("models", name, "local_service_conf", "model_config")
            yield Problem(path=where, text="`path` says which model: leave this out")
    server = {key: each for key, each in config.server.items() if key not in _NOT_OF_THE_SERVER}
    try:
        ServiceConfig.model_validate({**server, "op": ops})
    except ValidationError as error:
        for each in explain(error):
            of_op = each.path[:1] == ("op",)
            path: KeyPath = ("models", *each.path[1:]) if of_op else ("server", *each.path)
            yield Problem(path=path, text=each.text)


def _place(document: Document, file: Path, problem: Problem) -> str:
    above = (problem.path[:length] for length in range(len(problem.path), 0, -1))
    line = problem.line or next((document.lines[at] for at in above if at in document.lines), None)
    return str(file) if line is None else f"{file}:{line}"
