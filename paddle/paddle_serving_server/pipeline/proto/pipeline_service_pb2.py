"""The messages of the pipeline protocol."""

from penstock.protocols.pb.pipeline_service_pb2 import DESCRIPTOR, Request, Response, Tensor

__all__ = ["DESCRIPTOR", "Request", "Response", "Tensor"]
