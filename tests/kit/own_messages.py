"""The pipeline's messages with further fields, as generated from a changed copy of its file.

``Request`` also has ``user = 100`` and ``top_scores = 101``; ``Response`` has ``cost = 100``.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from penstock.protocols import pb

FIELD = descriptor_pb2.FieldDescriptorProto
OWN = {
    "Request": [
        ("user", 100, FIELD.TYPE_STRING, False),
        ("top_scores", 101, FIELD.TYPE_INT32, True),
    ],
    "Response": [("cost", 100, FIELD.TYPE_DOUBLE, False)],
}


def changed(changes: dict[str, list[tuple[str, int, Any, bool]]]) -> dict[str, Any]:
    """The file's messages, with these fields (name, number, type, repeated) added or replaced."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.Request.DESCRIPTOR.file.CopyToProto(file)
    for message in file.message_type:
        for name, number, kind, repeated in changes.get(message.name, []):
            for index, field in enumerate(message.field):
                if field.number == number:
                    del message.field[index]
            label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
            message.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(each) for name, each in found.items()}


_MADE = changed(OWN)
Request = _MADE["Request"]
Response = _MADE["Response"]
