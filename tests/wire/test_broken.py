"""The codec's error for each broken rule, in JSON and in protobuf."""

import numpy as np
import pytest

from penstock.errors import RequestError, Undecodable
from penstock.protocols import paddle, paddle_json, paddle_message
from penstock.protocols.status import err_no_of
from tests.wire.broken import UNDECODABLE, Case, cases, valid_body, valid_message

CASES = cases()
BODIES = [case for case in CASES if case.body is not None]
MESSAGES = [case for case in CASES if case.message is not None]


def error_of(decode: object) -> str | int:
    try:
        paddle.unpack(decode())  # type: ignore[operator]
    except Undecodable:
        return UNDECODABLE
    except RequestError as error:
        return err_no_of(error)
    return 0


def from_body(body: bytes) -> paddle.Call:
    return paddle_json.decode(body, name="uci", method="prediction")


def from_message(message: bytes) -> paddle.Call:
    return paddle_message.decode(message, ("uci",))


def rule(case: Case) -> str:
    return case.rule


def test_every_case_has_a_unique_rule() -> None:
    assert len({case.rule for case in CASES}) == len(CASES)


def test_the_unbroken_request_is_valid() -> None:
    for call in (from_body(valid_body()), from_message(valid_message())):
        feed, _ = paddle.unpack(call)
        assert feed["x"] == "0.1,0.2"
        np.testing.assert_array_equal(feed["t"], np.array([[1, 2], [3, 4]], np.float32))


@pytest.mark.parametrize("case", BODIES, ids=rule)
def test_a_broken_body_is_refused(case: Case) -> None:
    assert case.body is not None
    assert error_of(lambda: from_body(case.body)) == case.answer


@pytest.mark.parametrize("case", MESSAGES, ids=rule)
def test_a_broken_message_is_refused(case: Case) -> None:
    assert case.message is not None
    assert error_of(lambda: from_message(case.message)) == case.answer


@pytest.mark.parametrize("case", [*BODIES, *MESSAGES], ids=rule)
def test_the_text_of_an_error_is_short_and_has_no_internals(case: Case) -> None:
    for data, decode in ((case.body, from_body), (case.message, from_message)):
        if data is None:
            continue
        with pytest.raises(RequestError) as caught:
            paddle.unpack(decode(data))
        text = str(caught.value)
        assert 0 < len(text) < 200
        assert not any(mark in text for mark in ("<class", "Traceback", "/", "0x", "penstock"))


def test_many_digits_within_a_text_are_valid() -> None:
    body = b'{"key":["x"],"value":["' + b"1" * 5000 + b'"],"logid":1,"other":"\\"' + b"2" * 5000
    assert from_body(body + b'"}').value == ["1" * 5000]


@pytest.mark.parametrize("levels", [1, 63])
def test_unknown_members_may_be_nested_up_to_64_levels(levels: int) -> None:
    body = b'{"key":[],"value":[],"other":' + b"[" * levels + b"]" * levels + b"}"
    assert from_body(body).key == []
