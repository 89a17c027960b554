"""Which members of a body may be the bytes of files, and which answers are files as a whole."""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Any, Protocol, Union, get_args, get_origin, get_type_hints

from pydantic import AliasChoices, AliasPath, BaseModel
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from penstock.typed.annotations import element_of, models_of, unnamed


class FileType(Protocol):
    """An annotation of values that can be sent as files."""

    @property
    def media_types(self) -> tuple[str, ...]:
        """The media types of the files; the first is the default."""

    def file(self, value: Any, kind: str) -> bytes:
        """Return the bytes of a file of one of these types."""


def file_of(kind: Any) -> FileType | None:
    """Return the annotation with which a whole answer is a file; None if it is none."""
    kind = unnamed(kind)
    if get_origin(kind) is not Annotated:
        return None
    return next((each for each in get_args(kind)[1:] if hasattr(each, "media_types")), None)


def file_members(kind: Any) -> tuple[str, ...]:
    """Return the members of a model that may be the bytes of files, such as an image, as bodies
    name them.
    """
    models = models_of(kind)
    if len(models) != 1:
        return ()
    return tuple(
        name for name, each in members_of_model(models[0]) if name is not None and takes_file(each)
    )


def members_of_model(model: Any) -> list[tuple[str | None, Any]]:
    """The members of a model with their types."""
    model = get_origin(model) or model
    if issubclass(model, BaseModel):
        return [
            (_sent_name(name, each), Annotated[each.annotation, *each.metadata, None])
            for name, each in model.model_fields.items()
        ]
    if dataclasses.is_dataclass(model) or is_typeddict(model):
        return list(get_type_hints(model, include_extras=True).items())
    return []


def names_with_default(model: Any) -> set[str | None]:
    """The members of a model that a body may lack."""
    model = get_origin(model) or model
    if issubclass(model, BaseModel):
        return {
            _sent_name(name, each)
            for name, each in model.model_fields.items()
            if not each.is_required()
        }
    if dataclasses.is_dataclass(model):
        missing = dataclasses.MISSING
        return {
            each.name
            for each in dataclasses.fields(model)
            if each.default is not missing or each.default_factory is not missing
        }
    return {*getattr(model, "__optional_keys__", ())}


def alias_of(field: FieldInfo) -> str | AliasPath | AliasChoices | None:
    """The alias of a member in bodies, if it has one."""
    return field.validation_alias or field.alias


def _sent_name(name: str, field: FieldInfo) -> str | None:
    """The name of a member in bodies; None if it is inside another member."""
    alias = alias_of(field)
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
    return next((each for each in choices if isinstance(each, str)), None)


def takes_file(kind: Any) -> bool:
    """Whether a value of this type can be the bytes of a file, or a list of files."""
    kind = unnamed(kind)
    if kind is bytes:
        return True
    if get_origin(kind) is Annotated:
        base, *more = get_args(kind)
        return takes_file(base) or any(hasattr(each, "takes_file") for each in more)
    if get_origin(kind) in (Union, types.UnionType):
        return any(map(takes_file, get_args(kind)))
    element = element_of(kind)
    return element is not None and takes_file(element)
