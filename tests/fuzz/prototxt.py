"""The file beside a model, and protobuf's own reader of the text form beside ours."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from penstock.errors import ModelError
from penstock.runtimes.prototxt import Variable, parse_model_conf


def _message() -> Any:
    """The class of GeneralModelConfig."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="fuzz_conf.proto", syntax="proto2")
    top = file.message_type.add(name="GeneralModelConfig")
    for number, (name, type_field) in enumerate((("Feed", "feed_type"), ("Fetch", "fetch_type"))):
        variable = file.message_type.add(name=name)
        for tag, (field, kind) in enumerate(
            (
                ("name", kinds.TYPE_STRING),
                ("alias_name", kinds.TYPE_STRING),
                ("is_lod_tensor", kinds.TYPE_BOOL),
                (type_field, kinds.TYPE_INT32),
                ("shape", kinds.TYPE_INT32),
            ),
            start=1,
        ):
            label = kinds.LABEL_REPEATED if field == "shape" else kinds.LABEL_OPTIONAL
            variable.field.add(name=field, number=tag, type=kind, label=label)
        top.field.add(
            name=f"{name.lower()}_var",
            number=number + 1,
            type=kinds.TYPE_MESSAGE,
            type_name=f".{name}",
            label=kinds.LABEL_REPEATED,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("GeneralModelConfig"))


CONF = _message()


def variable(theirs: Any, type_field: str) -> Variable:
    return Variable(
        name=theirs.name,
        alias=theirs.alias_name or theirs.name,
        is_lod=theirs.is_lod_tensor,
        type_number=getattr(theirs, type_field),
        shape=tuple(theirs.shape),
    )


def run(data: bytes) -> Hashable:
    text = data.decode("utf-8", "replace")
    try:
        conf = parse_model_conf(text, "fuzz")
    except ModelError as error:
        return str(error).partition(": ")[2].partition("found")[0][:11]
    if "\\?" in text:
        return "escaped question mark"  # an escape of the format that their reader lacks
    theirs = text_format.Parse(text, CONF())
    assert conf.feeds == tuple(variable(each, "feed_type") for each in theirs.feed_var)
    assert conf.fetches == tuple(variable(each, "fetch_type") for each in theirs.fetch_var)
    return len(conf.feeds), len(conf.fetches)


SEEDS = [
    b"",
    b'feed_var {\n  name: "x"\n  alias_name: "y"\n  is_lod_tensor: false\n  feed_type: 1\n'
    b"  shape: 3\n  shape: 32\n}\n",
    b"fetch_var: < name: 'a' 'b', fetch_type: 0x1; shape: [1, -2, 03] >,",
    b'# words\nfeed_var { name: "\\303\\244\\x41\\n\\?" is_lod_tensor: t }',
    b'feed_var{name:"a"}fetch_var{name:"b" is_lod_tensor: 1 shape: []}',
    b'feed_var { name: "a" feed_type: 99 }',
    b'feed_var { name: "a" shape: 99999999999 }',
    b'feed_var { name: "a" name: "b" }',
    b'feed_var { alias_name: "a" }',
    b"something: 1",
    b"feed_var [",
]
WORDS = [
    b"feed_var",
    b"fetch_var",
    b"name",
    b"alias_name",
    b"is_lod_tensor",
    b"feed_type",
    b"shape",
    b'"a"',
    b"\\x",
    b"\\0",
    b"true",
    b"# ",
    b"0x",
    b"-",
]
