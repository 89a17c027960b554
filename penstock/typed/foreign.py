"""Detects annotations that cannot be decoded from a body: classes of web frameworks, and those for
which pydantic only checks the type of an object.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, PydanticUserError, TypeAdapter
from typing_extensions import is_typeddict

from penstock.typed.annotations import unnamed

_FRAMEWORKS: Final = ("fastapi", "starlette")
_OF_BODIES: Final = ("Body", "File", "Form")
"""FastAPI's default markers that pydantic accepts, and that have no other meaning here."""
_OURS: Final = ("Cookie", "Header", "Path", "Query")
"""Its markers that have the same meaning here."""
_SUPPORTED: Final = (
    'write a pydantic model, bytes, Annotated[np.ndarray, Array("float32", (None, 3))] for an'
    " array, or Annotated[np.ndarray, Image()] for a picture"
)

_INSTEAD_OF: Final = {
    "UploadFile": "write bytes for a file, or Annotated[np.ndarray, Image()] for a picture",
    "HTTPConnection": "write a parameter for each part of the request that is used, with Query(),"
    " Header() or Cookie()",
    "BackgroundTasks": "the answer is sent when the function has returned; hand the work to a"
    " thread that a function below @app.lifespan starts",
    "StreamingResponse": "yield the pieces, and write Iterator[...] of their type",
    "Response": "write the type of the value, or Response[...] of penstock",
    "FileResponse": "write File of penstock",
    "RedirectResponse": "write Response[...] of penstock, and return redirect(...)",
}
"""What to write for a class, or one derived from it, of a web framework."""
_OF_DEFAULTS: Final = {
    "Security": "write Caller of penstock for who calls, and keys or tokens in security",
    "Depends": "here parameters come from the request; what lives as long as the service comes from"
    " @app.lifespan, by its type",
}
OPTIONS_INSTEAD: Final = {
    "lifespan": "write @app.lifespan above a function that yields once",
    "title": "the name is the title",
    "description": "the docstrings of its functions are in /docs",
    "summary": "the first line of the docstring is the summary",
    "response_model": "the annotation of the result is the type of answers",
    "response_class": "write the type of the value, or Response[...] of penstock",
    "responses": "answers declares further statuses, with the types of their values",
    "dependencies": "security decides who may call, and app.middleware adds code before each call",
    "docs_url": "docs=False turns /docs and /openapi.json off",
    "openapi_url": "docs=False turns /docs and /openapi.json off",
    "redoc_url": "docs=False turns /docs and /openapi.json off",
}
"""What to write for an option of FastAPI."""


def foreign_class(annotation: Any) -> str | None:
    """Return the problem of an annotation with a class of a web framework; else None."""
    for each in _classes(annotation, []):
        home = _framework(each)
        if home is not None:
            return f"{each.__name__} is {home}'s: {_instead_of(each)}"
    return None


def foreign_default(default: Any) -> str | None:
    """Return the problem of a default, or metadata, that is a web framework's; else None."""
    kind = type(default)
    home = _framework(kind)
    if home is None or kind.__name__ in _OF_BODIES:
        return None
    if kind.__name__ in _OURS:
        return f"{kind.__name__} is {home}'s: write from penstock import {kind.__name__}"
    instead = _OF_DEFAULTS.get(kind.__name__, "here parameters come from the request")
    return f"{kind.__name__} is {home}'s: {instead}"


def foreign_marker(annotation: Any) -> str | None:
    """Return the problem of a marker of a web framework in an ``Annotated``; else None."""
    return next(filter(None, map(foreign_default, metadata_of(annotation))), None)


def embedded(annotation: Any, default: Any) -> bool:
    """Whether FastAPI's ``Body(embed=True)`` makes a parameter a member of the body."""
    markers = [default, *metadata_of(annotation)]
    return any(_framework(type(each)) and getattr(each, "embed", None) for each in markers)


def metadata_of(annotation: Any) -> Iterator[Any]:
    """Yield what a type, or a type in it, is annotated with."""
    annotation = unnamed(annotation)
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        yield from more
        yield from metadata_of(annotation)
    elif get_origin(annotation) is not Literal:
        for each in get_args(annotation):
            yield from metadata_of(each)


def without_schema(annotation: Any) -> str | None:
    """Return the problem of an annotation with a class without a pydantic schema; else None."""
    problem = foreign_class(annotation)
    if problem is not None:
        return problem
    for each in _classes(annotation, []):
        try:
            TypeAdapter(each)
        except PydanticUserError:
            return f"a body cannot hold a {each.__module__}.{each.__qualname__}: {_SUPPORTED}"
    return None


def _instead_of(kind: type) -> str:
    names = [each.__name__ for each in kind.__mro__]
    return next((_INSTEAD_OF[each] for each in names if each in _INSTEAD_OF), _SUPPORTED)


def _framework(kind: type) -> str | None:
    roots = [each.__module__.partition(".")[0] for each in kind.__mro__]
    return next((each for each in roots if each in _FRAMEWORKS), None)


def _classes(annotation: Any, seen: list[Any]) -> Iterator[type]:
    """Yield the classes in an annotation, except those annotated with a schema."""
    annotation = unnamed(annotation)
    if annotation in seen:
        return
    seen.append(annotation)
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        if not any(hasattr(each, "__get_pydantic_core_schema__") for each in more):
            yield from _classes(annotation, seen)
    elif get_args(annotation):
        for each in get_args(annotation):
            yield from _classes(each, seen)
    elif isinstance(annotation, type):
        members = _members(annotation)
        if members is None:
            yield annotation
        for each in members or ():
            yield from _classes(each, seen)


def _members(kind: type) -> list[Any] | None:
    """Return the annotations of a model's members; None for other classes."""
    if issubclass(kind, BaseModel):
        fields = kind.model_fields.values()
        return [Annotated[each.annotation, *each.metadata, None] for each in fields]
    if dataclasses.is_dataclass(kind) or is_typeddict(kind):
        return list(get_type_hints(kind, include_extras=True).values())
    return None
