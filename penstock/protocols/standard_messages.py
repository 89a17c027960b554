"""The messages of gRPC's health and reflection services, of the Open Inference Protocol, and of the
original's model server.

They are in a separate descriptor pool. In the default pool they would collide with the generated
modules of grpcio's packages, which users' code may import in the same process.

Source: the protocols ``grpc.health.v1``, ``grpc.reflection.v1`` and ``grpc.reflection.v1alpha``, in
``pb/grpc/``, the Open Inference Protocol, in ``pb/inference/``, and ``docs/compatibility.md``, in
``pb/general_model/``; ``make proto`` compiles them.
"""

from __future__ import annotations

from pkgutil import get_data
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

INFERENCE: Final = "inference.GRPCInferenceService"
GENERAL_MODEL: Final = "baidu.paddle_serving.predictor.general_model.GeneralModelService"
GENERAL_METHOD: Final = f"/{GENERAL_MODEL}/inference"
HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = "grpc.reflection.v1.ServerReflection"
REFLECTION_ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"

SERVICE_UNKNOWN: Final = 3
NOT_SERVING: Final = 2
SERVING: Final = 1

_Message: TypeAlias = type[Any]  # made at run time, so type checkers do not know its fields

FILES: Final = FileDescriptorSet.FromString(get_data(__package__, "pb/standard.binpb") or b"").file
"""Their file descriptors, for reflection."""

_POOL = DescriptorPool()
for _file in FILES:
    _POOL.AddSerializedFile(_file.SerializeToString())


def _class(name: str) -> _Message:
    found: _Message = GetMessageClass(_POOL.FindMessageTypeByName(name))
    return found


HealthCheckRequest = _class("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = _class("grpc.health.v1.HealthCheckResponse")
ModelConfig = _class("inference.ModelConfig")


def reflection_messages(service: str) -> tuple[_Message, _Message]:
    """Return request and response of one version of reflection, by its service's name."""
    return _class(f"{service}Request"), _class(f"{service}Response")


def inference_messages(method: str) -> tuple[_Message, _Message]:
    """Return request and response of a method of the Open Inference Protocol."""
    return _messages(INFERENCE, method)


def general_model_messages() -> tuple[_Message, _Message]:
    """Return request and response of the model server's two methods."""
    return _messages(GENERAL_MODEL, "inference")


def _messages(service: str, method: str) -> tuple[_Message, _Message]:
    found = _POOL.FindServiceByName(service).methods_by_name[method]
    return _class(found.input_type.full_name), _class(found.output_type.full_name)
