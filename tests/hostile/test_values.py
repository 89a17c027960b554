"""Bad pairs, tensors and contents get the same documented answer over HTTP and over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.hostile import grpc_raw
from tests.hostile.bad_values import UNDECODABLE, Case, cases
from tests.kit import http1 as raw
from tests.kit.pipeline import decode

pytestmark = pytest.mark.real

CASES = cases()
INVALID_ARGUMENT = 3


@pytest.fixture(scope="module")
def channel(rpc_port: int) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{rpc_port}") as channel:
        yield channel


def check_text(text: str, case: Case) -> None:
    assert case.text in text
    assert text
    assert len(text) < 400
    assert not any(mark in text for mark in ("<class", "Traceback", "0x7", "penstock/", ".py"))


def check_document(document: dict[str, Any], case: Case) -> None:
    assert document["err_no"] == case.answer
    if case.answer == 0:
        assert document["err_msg"] == ""
    else:
        check_text(document["err_msg"], case)
        assert document["key"] == document["value"] == document["tensors"] == []
    if case.value is not None:
        assert document["value"][0] == case.value


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({case.rule for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.body is not None], ids=lambda case: case.rule
)
def test_a_body_gets_its_answer(case: Case, http_port: int) -> None:
    assert case.body is not None
    with raw.connected(http_port) as connection:
        connection.send(raw.request(case.body))
        reply = connection.reply()
        assert reply.header("content-type") == "application/json"
        assert reply.header("connection") is None
        document = reply.json()
        if case.answer == UNDECODABLE:
            assert reply.status == 400
            assert list(document) == ["error", "code", "message", "details"]
            assert document["code"] == INVALID_ARGUMENT
            check_text(document["error"], case)
        else:
            assert reply.status == 200
            assert list(document) == ["err_no", "err_msg", "key", "value", "tensors"]
            check_document(document, case)
        connection.send(raw.request(raw.pairs(x="good")))
        assert connection.reply().json()["value"] == ["good"]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.message is not None], ids=lambda case: case.rule
)
def test_a_message_gets_its_answer(case: Case, channel: grpc.Channel) -> None:
    assert case.message is not None
    answer = grpc_raw.ask(channel, case.message)
    if case.answer == UNDECODABLE:
        assert answer.status == INVALID_ARGUMENT
        check_text(answer.text, case)
    else:
        assert answer.status == 0, answer
        check_document(decode(answer.messages[0]), case)
    good = grpc_raw.ask(channel, b"\x0a\x01x\x12\x04good")
    assert decode(good.messages[0])["value"] == ["good"]
