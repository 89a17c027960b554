"""gRPC server reflection: the services, and the descriptions of their messages.

Source: the gRPC server reflection protocol, versions 1 and 1alpha.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError

from penstock.api.application import Applications
from penstock.api.grpc import Grpc, GrpcCall, StreamHandler
from penstock.api.http import Http
from penstock.protocols import standard_messages as messages
from penstock.protocols.grpc import GrpcError
from penstock.protocols.status import GrpcCode

_VERSIONS = (messages.REFLECTION, messages.REFLECTION_ALPHA)


class ReflectionApplication:
    """Describes ``files`` and the standard services, in both versions of the protocol.

    Args:
        files: descriptions of services; they import no other files.
        applications: have the methods of the services that are served; None: all that are
            described.
    """

    def __init__(
        self,
        files: Sequence[FileDescriptorProto],
        applications: Applications | None = None,
    ) -> None:
        every = (*files, *messages.FILES)
        self._files = {file.name: file.SerializeToString() for file in every}
        self._file_of = {symbol: file.name for file in every for symbol in _symbols(file)}
        self._types = {name for file in every for name in _types(file.package, file.message_type)}
        names = (f"{file.package}.{service.name}" for file in every for service in file.service)
        self._described = sorted(name for name in names if name not in _VERSIONS)
        self._applications = applications

    def routes(self) -> list[Http | Grpc]:
        """What to serve."""
        return [
            Grpc(f"/{version}/ServerReflectionInfo", stream=self._handler(version))
            for version in _VERSIONS
        ]

    def _handler(self, version: str) -> StreamHandler:
        request_class, response_class = messages.reflection_messages(version)

        async def info(call: GrpcCall) -> None:
            while (message := await call.read()) is not None:
                try:
                    request = request_class.FromString(message)
                except DecodeError as error:
                    text = "the bytes are not a ServerReflectionRequest"
                    raise GrpcError(GrpcCode.INVALID_ARGUMENT, text) from error
                response = response_class(valid_host=request.host, original_request=request)
                self._answer(request, response)
                await call.write(response.SerializeToString())

        return info

    def _services(self) -> list[str]:
        if self._applications is None:
            return self._described
        paths = (each.path for each in self._applications.routes if isinstance(each, Grpc))
        served = {path.split("/")[1] for path in paths}
        return [name for name in self._described if name in served]

    def _answer(self, request: Any, response: Any) -> None:
        """Fill in the response to one request."""
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            response.list_services_response.SetInParent()
            for name in self._services():
                response.list_services_response.service.add(name=name)
            return
        file = None
        if kind == "file_by_filename":
            file = self._files.get(request.file_by_filename)
        elif kind == "file_containing_symbol":
            file = self._files.get(self._file_of.get(request.file_containing_symbol, ""))
        elif kind == "all_extension_numbers_of_type":
            name = request.all_extension_numbers_of_type
            if name in self._types:
                response.all_extension_numbers_response.base_type_name = name
                return
        if file is not None:
            response.file_descriptor_response.file_descriptor_proto.append(file)
            return
        error = response.error_response
        known = kind is not None
        error.error_code = GrpcCode.NOT_FOUND if known else GrpcCode.INVALID_ARGUMENT
        error.error_message = "there is no such name" if known else "the request has no query"


def _symbols(file: FileDescriptorProto) -> Iterable[str]:
    """All full names that the file defines."""
    yield from _types(file.package, file.message_type)
    for enum in file.enum_type:
        yield f"{file.package}.{enum.name}"
    for service in file.service:
        yield f"{file.package}.{service.name}"
        for method in service.method:
            yield f"{file.package}.{service.name}.{method.name}"


def _types(prefix: str, kinds: Iterable[DescriptorProto]) -> Iterable[str]:
    for kind in kinds:
        name = f"{prefix}.{kind.name}"
        yield name
        for enum in kind.enum_type:
            yield f"{name}.{enum.name}"
        yield from _types(name, kind.nested_type)
