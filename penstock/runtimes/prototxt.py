"""Reads ``serving_server_conf.prototxt``: a model's inputs and outputs with their aliases.

The file is the protobuf text form of one message, ``GeneralModelConfig``: ``feed_var`` and
``fetch_var``, repeated, each with name, alias_name, is_lod_tensor, feed_type or fetch_type, shape.
protobuf's own reader reads it, in bounded size, and names the line of whatever it refuses. A field
of any other name is refused.

Source: ``docs/compatibility.md`` (model folders); the Protocol Buffers text format specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from warnings import catch_warnings, simplefilter

import numpy as np
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.errors import ModelError

MAX_TEXT = 1 << 20  # characters; real files have a few hundred
MAX_VARIABLES = 4096  # a guess far above any real model
MAX_DIMENSIONS = 16  # as everywhere else in the protocol

# The numbers of ``feed_type`` and ``fetch_type``. 6 is bfloat16, for which numpy has no dtype.
DTYPE_OF_TYPE: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.int64),
    1: np.dtype(np.float32),
    2: np.dtype(np.int32),
    3: np.dtype(np.float64),
    4: np.dtype(np.int16),
    5: np.dtype(np.float16),
    7: np.dtype(np.uint8),
    8: np.dtype(np.int8),
    9: np.dtype(np.bool_),
    10: np.dtype(np.complex64),
    11: np.dtype(np.complex128),
    20: np.dtype(object),
}
_BFLOAT16 = 6
_UNKNOWN_TYPE = -1
_MOST_SAID: Final = 300  # characters of what protobuf says, which may repeat the whole line

_OPTIONAL: Final = FieldDescriptorProto.LABEL_OPTIONAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One input or output as the file describes it.

    Attributes:
        name: the name inside the model.
        alias: the public name; ``name`` where the file gives none.
        is_lod: whether its rows are cut into sequences.
        type_number: 0 to 11 or 20 as on the wire; -1 when the converter did not know.
        shape: a hint without the batch axis, in which unknown dimensions were left out when the
            file was written; real ranks come from the model.
    """

    name: str
    alias: str
    is_lod: bool = False
    type_number: int = 0
    shape: tuple[int, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy dtype of ``type_number``; None where numpy has none or none was known."""
        return DTYPE_OF_TYPE.get(self.type_number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConf:
    """The whole file, in its order; ``source`` is what errors call it."""

    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    source: str


_FIELDS: Final = (("name", 9), ("alias_name", 9), ("is_lod_tensor", 8), ("TYPE", 5), ("shape", 5))
"""Of a variable, by number from 1; with the kinds of FieldDescriptorProto: text, bool, int32."""


def parse_model_conf(text: str, source: str = "prototxt") -> ModelConf:
    """Read the text form of ``GeneralModelConfig``.

    Raises:
        ModelError: names ``source`` and, where there is one, the line.
    """
    if len(text) > MAX_TEXT:
        raise ModelError(f"{source}: {len(text)} characters, at most {MAX_TEXT} are read")
    message: Any = _message_class()()
    try:
        with catch_warnings():
            simplefilter("ignore", DeprecationWarning)  # of escapes that Python does not know
            text_format.Parse(text, message)
    except text_format.ParseError as error:
        line = error.GetLine()
        where = source if line is None else f"{source}, line {line}"
        what = str(error).partition(" : ")[2] or str(error)
        raise ModelError(f"{where}: {what[:_MOST_SAID]}") from None
    except (ValueError, RecursionError) as error:  # of texts that are no text, or nested for ever
        raise ModelError(f"{source}: cannot be read: {error}") from None
    return ModelConf(
        feeds=_variables(message.feed_var, "feed_type", source),
        fetches=_variables(message.fetch_var, "fetch_type", source),
        source=source,
    )


def _variables(given: Sequence[Any], type_field: str, source: str) -> tuple[Variable, ...]:
    if len(given) > MAX_VARIABLES:
        raise ModelError(f"{source}: more than {MAX_VARIABLES} inputs or outputs")
    found = []
    for each in given:
        number = getattr(each, type_field)
        if not each.name:
            raise ModelError(f"{source}: a variable without a name")
        if number not in DTYPE_OF_TYPE and number not in (_BFLOAT16, _UNKNOWN_TYPE):
            raise ModelError(f"{source}: {each.name!r}: {type_field} {number} is unknown")
        if len(each.shape) > MAX_DIMENSIONS:
            raise ModelError(f"{source}: {each.name!r}: more than {MAX_DIMENSIONS} dimensions")
        found.append(
            Variable(
                name=each.name,
                alias=each.alias_name or each.name,
                is_lod=each.is_lod_tensor,
                type_number=number,
                shape=tuple(each.shape),
            )
        )
    return tuple(found)


@cache
def _message_class() -> type[Message]:
    """``GeneralModelConfig``, in a pool of its own: another package may bring the original's."""
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
