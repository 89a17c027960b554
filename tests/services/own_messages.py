"""A service whose messages have fields of its own."""

from __future__ import annotations

from typing import Any

from penstock import Op, PipelineServer, RequestOp, ResponseOp
from tests.kit import own_messages


class Read(RequestOp):
    message_class = own_messages.Request

    def unpack_request_package(self, request: Any) -> Any:
        return {
            "user": request.user,
            "sum": str(sum(request.top_scores)),
            **dict(zip(request.key, request.value, strict=True)),
        }


class Write(ResponseOp):
    message_class = own_messages.Response

    def pack_response_package(self, channeldata: Any) -> Any:
        response = super().pack_response_package(channeldata)
        response.cost = 2.5
        return response


class Same(Op):
    def preprocess(self, input_dicts: Any) -> Any:
        (feed,) = input_dicts.values()
        return feed


if __name__ == "__main__":
    server = PipelineServer("own")
    server.set_response_op(Write(input_ops=[Same(name="same", input_ops=[Read()])]))
    server.prepare_server(yml_dict={"http_port": 8080})
    server.run_server()
