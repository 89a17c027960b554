"""The messages of gRPC's standard services: health, and reflection in both of its versions.

They live in a descriptor pool of their own. In the common pool they would collide with the
generated modules of grpcio's packages, which users' code may import into the same process.

Source: the protocols ``grpc.health.v1``, ``grpc.reflection.v1`` and ``grpc.reflection.v1alpha``.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = "grpc.reflection.v1.ServerReflection"
REFLECTION_ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"

SERVICE_UNKNOWN: Final = 3
NOT_SERVING: Final = 2
SERVING: Final = 1

_Message: TypeAlias = type[Any]  # made at run time, so no checker knows its fields

_TEXT = FieldDescriptorProto.TYPE_STRING
_BYTES = FieldDescriptorProto.TYPE_BYTES
_INT32 = FieldDescriptorProto.TYPE_INT32
_MESSAGE = FieldDescriptorProto.TYPE_MESSAGE
_ENUM = FieldDescriptorProto.TYPE_ENUM


def _field(
    name: str, number: int, kind: Any, of: str = "", *, repeated: bool = False, choice: bool = False
) -> FieldDescriptorProto:
    field = FieldDescriptorProto(name=name, number=number, type=kind)
    field.label = (
        FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    )
    if of:
        field.type_name = of
    if choice:
        field.oneof_index = 0
    return field


def _message(name: str, *fields: FieldDescriptorProto, choice: str = "") -> DescriptorProto:
    message = DescriptorProto(name=name, field=fields)
    if choice:
        message.oneof_decl.add(name=choice)
    return message


def _health_file() -> FileDescriptorProto:
    response = _message(
        "HealthCheckResponse",
        _field("status", 1, _ENUM, ".grpc.health.v1.HealthCheckResponse.ServingStatus"),
    )
    states = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        states.value.add(name=name, number=number)
    asked, answered = ".grpc.health.v1.HealthCheckRequest", ".grpc.health.v1.HealthCheckResponse"
    service = ServiceDescriptorProto(
        name="Health",
        method=[
            MethodDescriptorProto(name="Check", input_type=asked, output_type=answered),
            MethodDescriptorProto(
                name="Watch", input_type=asked, output_type=answered, server_streaming=True
            ),
        ],
    )
    return FileDescriptorProto(
        name="grpc/health/v1/health.proto",
        package="grpc.health.v1",
        syntax="proto3",
        message_type=[_message("HealthCheckRequest", _field("service", 1, _TEXT)), response],
        service=[service],
    )


def _reflection_file(version: str) -> FileDescriptorProto:
    package = f"grpc.reflection.{version}"
    method = MethodDescriptorProto(
        name="ServerReflectionInfo",
        input_type=f".{package}.ServerReflectionRequest",
        output_type=f".{package}.ServerReflectionResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return FileDescriptorProto(
        name=f"grpc/reflection/{version}/reflection.proto",
        package=package,
        syntax="proto3",
        message_type=[*_reflection_envelopes(package), *_reflection_answers(package)],
        service=[ServiceDescriptorProto(name="ServerReflection", method=[method])],
    )


def _reflection_envelopes(package: str) -> tuple[DescriptorProto, DescriptorProto]:
    """What is asked and what is answered, each one of several things."""

    def choice(name: str, number: int, of: str) -> FieldDescriptorProto:
        return _field(name, number, _MESSAGE, f".{package}.{of}", choice=True)

    request = _message(
        "ServerReflectionRequest",
        _field("host", 1, _TEXT),
        _field("file_by_filename", 3, _TEXT, choice=True),
        _field("file_containing_symbol", 4, _TEXT, choice=True),
        choice("file_containing_extension", 5, "ExtensionRequest"),
        _field("all_extension_numbers_of_type", 6, _TEXT, choice=True),
        _field("list_services", 7, _TEXT, choice=True),
        choice="message_request",
    )
    response = _message(
        "ServerReflectionResponse",
        _field("valid_host", 1, _TEXT),
        _field("original_request", 2, _MESSAGE, f".{package}.ServerReflectionRequest"),
        choice("file_descriptor_response", 4, "FileDescriptorResponse"),
        choice("all_extension_numbers_response", 5, "ExtensionNumberResponse"),
        choice("list_services_response", 6, "ListServiceResponse"),
        choice("error_response", 7, "ErrorResponse"),
        choice="message_response",
    )
    return request, response


def _reflection_answers(package: str) -> tuple[DescriptorProto, ...]:
    """What stands in them."""
    service = f".{package}.ServiceResponse"
    return (
        _message(
            "ExtensionRequest",
            _field("containing_type", 1, _TEXT),
            _field("extension_number", 2, _INT32),
        ),
        _message(
            "FileDescriptorResponse", _field("file_descriptor_proto", 1, _BYTES, repeated=True)
        ),
        _message(
            "ExtensionNumberResponse",
            _field("base_type_name", 1, _TEXT),
            _field("extension_number", 2, _INT32, repeated=True),
        ),
        _message("ListServiceResponse", _field("service", 1, _MESSAGE, service, repeated=True)),
        _message("ServiceResponse", _field("name", 1, _TEXT)),
        _message(
            "ErrorResponse",
            _field("error_code", 1, _INT32),
            _field("error_message", 2, _TEXT),
        ),
    )


FILES: Final = (_health_file(), _reflection_file("v1"), _reflection_file("v1alpha"))
"""Their descriptions, for reflection to answer with."""

_POOL = DescriptorPool()
for _file in FILES:
    _POOL.AddSerializedFile(_file.SerializeToString())


def _class(name: str) -> _Message:
    found: _Message = GetMessageClass(_POOL.FindMessageTypeByName(name))
    return found


HealthCheckRequest = _class("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = _class("grpc.health.v1.HealthCheckResponse")


def reflection_messages(service: str) -> tuple[_Message, _Message]:
    """Request and response of one version of reflection, named by its service."""
    package = service.rpartition(".")[0]
    return _class(f"{package}.ServerReflectionRequest"), _class(
        f"{package}.ServerReflectionResponse"
    )
