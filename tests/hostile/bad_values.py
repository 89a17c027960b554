"""Requests with invalid or unusual contents, for tests of a whole service.

The codec's rules are in ``tests.wire.broken``, and a model's in ``tests.runtimes``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.kit.pipeline import encode
from tests.wire.broken import INPUT, UNDECODABLE
from tests.wire.broken import cases as codec_cases

TEXT_CODE = [
    "__import__('os').system('touch /tmp/penstock-was-here')",
    "{{7*7}} ${7*7} %(x)s {x.__class__}",
    "!!python/object/apply:os.system ['id']",
    "../../../../etc/passwd",
    "array([[1, 2]], dtype=float32)",
    "a\0b\x1b[31m\r\nERROR forged",
    "\u202e\ufeff\U0001f40d",
]
X = {"name": "x", "elem_type": 1, "shape": [1, 2], "float_data": [1.0, 2.0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request.

    Attributes:
        rule: the broken or unusual property, in words.
        answer: ``UNDECODABLE`` or the ``err_no``.
        body: the HTTP body; None if JSON cannot express the case.
        message: the encoded message; None if protobuf cannot express the case.
        value: the first value of a good answer, if it is checked.
        text: part of the error's text, if it is checked.
    """

    rule: str
    answer: str | int
    body: bytes | None = None
    message: bytes | None = None
    value: str | None = None
    text: str = ""


def _both(rule: str, answer: str | int, document: dict[str, Any], **more: Any) -> Case:
    body = json.dumps(document).encode()
    return Case(rule=rule, answer=answer, body=body, message=encode(document), **more)


def _pairs(**values: str) -> dict[str, Any]:
    return {"key": list(values), "value": list(values.values())}


def _model(**tensor: Any) -> dict[str, Any]:
    return {**_pairs(do="model"), "tensors": [X | tensor]}


def from_codec() -> list[Case]:
    """The codec's cases; messages of those with a document are encoded here."""
    found = []
    for case in codec_cases():
        message = case.message
        if case.body is not None and message is not None:
            message = encode(json.loads(case.body))
        found.append(Case(rule=case.rule, answer=case.answer, body=case.body, message=message))
    return found


NOT_INPUTS = "invalid arg list"
OTHER = b'{"key":["x"],"value":["1"],"name":"other","method":"other"}'
GIVEN_TWICE = b'{"key":["y"],"value":["1"],"key":["x"],"value":["2"]}'
MODEL_TWICE = {**_pairs(do="model"), "tensors": [X, X | {"float_data": [3.0, 4.0]}]}
BOTH_NAMES = {"key": ["do", "x"], "value": ["model", "1"], "tensors": [X]}
FETCH = {**_pairs(do="fetch", output="z"), "tensors": [X]}


def cases() -> list[Case]:
    """All cases."""
    return [
        *from_codec(),
        *(
            _both(f"text that is code, {text!r}", 0, _pairs(x=text), value=text)
            for text in TEXT_CODE
        ),
        _both("code for a strict parser", INPUT, _pairs(x=TEXT_CODE[0], do="parse")),
        _both("dots for a strict parser", INPUT, _pairs(x="[1, ...]", do="parse")),
        _both("a strict parser", 0, _pairs(x=TEXT_CODE[4], do="parse"), value="[[1.0, 2.0]]"),
        Case(rule="an empty body", answer=0, body=b"", message=b""),
        Case(rule="a member given twice", answer=0, body=GIVEN_TWICE, value="2"),
        _both("a key given twice", 0, {"key": ["x", "x"], "value": ["1", "2"]}, value="2"),
        _both("more values than keys", 0, {"key": ["x"], "value": ["1", "2"]}, value="1"),
        _both("a key and a tensor of one name", 0, BOTH_NAMES, value="[[2.0, 4.0]]"),
        _both("a tensor given twice", 0, MODEL_TWICE, value="[[6.0, 8.0]]"),
        Case(
            rule="another service's name",
            answer=3002,
            message=encode(_pairs(x="1") | {"name": "other"}),
            text="Failed to inference: Service name error.",
        ),
        Case(rule="another name where the URL wins", answer=0, body=OTHER, value="1"),
        _both("a log id of 64 bits", 0, _pairs(x="1") | {"logid": -(2**63)}, value="1"),
        _both(
            "a long claim of an address",
            0,
            _pairs(x="1") | {"clientip": "9" * 9999 + "\r\nERROR forged"},
            value="1",
        ),
        _both("a profile", 0, _pairs(**{"pipeline.profile": "1", "x": "1"}), value="1"),
        _both("the model's own input", 0, _model(), value="[[2.0, 4.0]]"),
        _both("an unknown input", INPUT, _model(name="z"), text=NOT_INPUTS),
        _both("a rank too high", INPUT, _model(shape=[1, 1, 2]), text=NOT_INPUTS),
        _both("a text for a number", 7000, _pairs(x="1", do="model"), text="must be npdata"),
        _both("an unknown output", INPUT, FETCH, text=NOT_INPUTS),
        Case(
            rule="a lone surrogate",
            answer=UNDECODABLE,
            body=b'{"key":["x"],"value":["\\udc00"]}',
            message=b"\x0a\x01x\x12\x03\xed\xb0\x80",
        ),
    ]
