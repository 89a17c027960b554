"""Reads annotations: a type behind its other spellings, models, elements of lists."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict


def unnamed(kind: Any) -> Any:
    """Return the type behind aliases (``type X = ...``) and ``NewType``."""
    try:
        while True:
            origin = get_origin(kind)
            if hasattr(origin, "__value__"):  # an alias with arguments
                value = origin.__value__
                kind = value[get_args(kind)] if getattr(value, "__parameters__", ()) else value
            elif hasattr(kind, "__value__"):
                kind = kind.__value__
            elif hasattr(kind, "__supertype__"):
                kind = kind.__supertype__
            else:
                return kind
    except NameError:  # pydantic's error names what is missing
        return kind


def unwrapped(kind: Any) -> Any:
    """Return the type behind aliases, ``NewType`` and ``Annotated``."""
    kind = unnamed(kind)
    while get_origin(kind) is Annotated:
        kind = unnamed(get_args(kind)[0])
    return kind


def models_of(kind: Any) -> list[Any]:
    """Return the models of a type that only has models and None, however it is spelled.

    A model is pydantic's, a dataclass or a TypedDict. Empty for any other type.
    """
    kind = unwrapped(kind)
    if get_origin(kind) not in (Union, types.UnionType):
        return [kind] if _is_model(kind) else []
    found: list[Any] = []
    for each in get_args(kind):
        if each is not types.NoneType:
            models = models_of(each)
            if not models:
                return []
            found += models
    return found


def _is_model(kind: Any) -> bool:
    kind = get_origin(kind) or kind  # of a generic class with arguments
    return isinstance(kind, type) and (
        issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind) or is_typeddict(kind)
    )


def has_own_config(kind: Any) -> bool:
    """Whether pydantic takes a type's configuration from its class only."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return isinstance(kind, type) and _is_model(kind)


def free_variable(kind: Any) -> TypeVar | None:
    """Return a type variable in a type that stands for any type; None if there is none.

    Those of a class, as of a generic class without arguments, are the class's.
    """
    variables = [] if isinstance(kind, type) else getattr(kind, "__parameters__", ())
    for each in [kind] if isinstance(kind, TypeVar) else variables:
        if isinstance(each, TypeVar) and not (each.__bound__ or each.__constraints__):
            return each
    return None


def field_of(kind: Any, default: Any) -> FieldInfo:
    """Return a parameter's alias, default and so on, of its type or its default."""
    if default is inspect.Parameter.empty:
        return FieldInfo.from_annotation(kind)
    return FieldInfo.from_annotated_attribute(kind, default)


def element_of(kind: Any) -> Any:
    """Return the T of ``list[T]``; None for any other type."""
    kind = unnamed(kind)
    if get_origin(kind) in (list, Sequence) and get_args(kind):
        return get_args(kind)[0]
    return None
