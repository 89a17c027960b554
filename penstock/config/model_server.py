"""The configuration file of the model server: models, graphs of them, and who calls which.

    models:
      detect: models/detect                  # a path; or a path and any key of an op
      read: {path: models/read, concurrency: 2, batch_size: 8}
    workflows:
      ocr: [detect, read]                    # one after another
      both: {detect: request, read: request} # each reads the request; an answer has both's outputs
    services:
      Text: ocr                              # POST /Text/inference
      GeneralModelService: {a: ocr, b: both} # the request's `model` says which
    server: {http_port: 9393}                # any key of a service

Source: ``docs/compatibility.md`` (the model server's graphs).
"""

from __future__ import annotations

from collections.abc import Iterator
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

from penstock.config.problems import Problem, in_words
from penstock.config.yaml import Document, read_file, read_text
from penstock.errors import ConfigError

REQUEST: Final = "request"
"""What a model of a workflow reads that is the first there."""

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

    models: Annotated[
        dict[Name, Annotated[ModelEntry, BeforeValidator(_entry)]], Field(min_length=1)
    ]
    workflows: dict[Name, list[Name] | dict[Name, Name]] = {}
    services: dict[Name, Name | dict[str, Name]] = {}
    server: dict[str, Any] = {}

    def graphs(self) -> dict[str, dict[str, str]]:
        """By name, each workflow's models and what each of them reads. Without workflows every
        model is one.
        """
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
    try:
        config = ModelServerConfig.model_validate(document.data)
    except ValidationError as error:
        problems += [
            Problem(path=_keys(document, each["loc"]), text=each["msg"]) for each in error.errors()
        ]
    else:
        problems += _contradictions(config)
    if problems or config is None:
        raise ConfigError(
            [f"{_place(document, file, each)}: {in_words(each)}" for each in problems]
        )
    return config


def _contradictions(config: ModelServerConfig) -> Iterator[Problem]:
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
                text = f"{model!r} reads {reads!r}, which is neither of it nor {REQUEST!r}"
                yield Problem(path=path, text=text)
            elif _is_circular(graph, model):
                yield Problem(path=path, text=f"{model!r} reads what it makes itself")
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


def _keys(document: Document, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """As much of a path as the file has: pydantic adds what it tried."""
    length = len(path)
    while length > 1 and path[:length] not in document.lines:
        length -= 1
    return path[:length]


def _place(document: Document, file: Path, problem: Problem) -> str:
    line = problem.line or document.lines.get(problem.path)
    return str(file) if line is None else f"{file}:{line}"
