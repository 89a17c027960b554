"""Reads and writes ``serving_server_conf.prototxt``: a model's inputs and outputs with aliases.

The file is the protobuf text form of one message, ``GeneralModelConfig``: ``feed_var`` and
``fetch_var``, repeated, each with name, alias_name, is_lod_tensor, feed_type or fetch_type, shape.
Servers use the types and shapes of the model itself; clients only have those in this file. protobuf
parses the file, and its errors name the line, such as of an unknown field.

Source: ``docs/compatibility.md`` (model folders); the Protocol Buffers text format specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.errors import ModelError
from penstock.protocols import text_form

_OPTIONAL: Final = FieldDescriptorProto.LABEL_OPTIONAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One input or output in the file.

    Attributes:
        name: the name inside the model.
        alias: the public name; by default ``name``.
        is_lod: whether its rows are split into sequences.
        type: the number of an element type (``protocols.general_model``).
        shape: the shape of one row, without variable dimensions.
    """

    name: str
    alias: str
    is_lod: bool = False
    type: int = 0
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConf:
    """The contents of the file, in order; ``source`` is its name in errors."""

    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    source: str


_FIELDS: Final = (("name", 9), ("alias_name", 9), ("is_lod_tensor", 8), ("TYPE", 5), ("shape", 5))
"""Fields of a variable, by number from 1, with types of FieldDescriptorProto."""


def parse_model_conf(text: str, source: str = "prototxt") -> ModelConf:
    """Parse the text form of ``GeneralModelConfig``.

    Raises:
        ModelError: the text names ``source`` and, if known, the line.
    """
    message: Any = _message_class()()
    try:
        text_form.parse(text, message)
    except text_form.PROBLEMS as error:
        raise ModelError(text_form.problem_of(error, source)) from None
    return ModelConf(
        feeds=_variables("feed", message.feed_var, source),
        fetches=_variables("fetch", message.fetch_var, source),
        source=source,
    )


def format_model_conf(conf: ModelConf) -> tuple[str, bytes]:
    """Encode the file as text, and in binary form (``serving_server_conf.stream.prototxt``)."""
    message: Any = _message_class()()
    for kind, variables in (("feed", conf.feeds), ("fetch", conf.fetches)):
        for each in variables:
            getattr(message, f"{kind}_var").add(
                name=each.name,
                alias_name=each.alias,
                is_lod_tensor=each.is_lod,
                shape=each.shape,
                **{f"{kind}_type": each.type},
            )
    return text_format.MessageToString(message), message.SerializeToString()


def _variables(kind: str, given: Sequence[Any], source: str) -> tuple[Variable, ...]:
    if not all(each.name for each in given):
        raise ModelError(f"{source}: a variable without a name")
    return tuple(
        Variable(
            name=each.name,
            alias=each.alias_name or each.name,
            is_lod=each.is_lod_tensor,
            type=getattr(each, f"{kind}_type"),
            shape=tuple(each.shape),
        )
        for each in given
    )


@cache
def _message_class() -> type[Message]:
    """Make ``GeneralModelConfig`` in a separate pool: another package may have the original's."""
    file = FileDescriptorProto(name="penstock_model_conf.proto", package="penstock")
    for kind in ("feed", "fetch"):
        variable = file.message_type.add(name=f"{kind}_var")
        for at, (name, of) in enumerate(_FIELDS, start=1):
            label = FieldDescriptorProto.LABEL_REPEATED if name == "shape" else _OPTIONAL
            name = name.replace("TYPE", f"{kind}_type")
            variable.field.add(name=name, number=at, type=of, label=label)
    whole = file.message_type.add(name="GeneralModelConfig")
    for number, kind in enumerate(("feed", "fetch"), start=1):
        whole.field.add(
            name=f"{kind}_var",
            number=number,
            type=FieldDescriptorProto.TYPE_MESSAGE,
            label=FieldDescriptorProto.LABEL_REPEATED,
            type_name=f".penstock.{kind}_var",
        )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("penstock.GeneralModelConfig"))
