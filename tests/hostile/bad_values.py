"""Requests whose pairs, tensors or contents break a rule, beside those of ``tests.wire.broken``.

Those are refused by the codec; these need the whole service: answers of the op, of its model, and
requests that look wrong but are right.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from tests.kit.pipeline import block, encode, tagged, varint
from tests.wire.broken import INPUT, UNDECODABLE
from tests.wire.broken import cases as codec_cases

TEXT_CODE = [
    "__import__('os').system('touch /tmp/penstock-was-here')",
    "{{7*7}} ${7*7} %(x)s {x.__class__}",
    "!!python/object/apply:os.system ['id']",
    "../../../../etc/passwd",
    "array([[1, 2]], dtype=float32)",
    "' OR 1=1; --",
    "a\0b\x1b[31m\r\nERROR forged",
    "\u202e\ufeff\U0001f40d",
]
X = {"name": "x", "elem_type": 1, "shape": [1, 2], "float_data": [1.0, 2.0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request.

    Attributes:
        rule: what is broken or special, in words; the test's id.
        answer: ``UNDECODABLE`` or the ``err_no``.
        body: the HTTP body; None where JSON cannot say it.
        message: the encoded message; None where protobuf cannot say it.
        value: what a good answer's first value is, where it matters.
        text: part of the error's text, where it matters.
    """

    rule: str
    answer: str | int
    body: bytes | None = None
    message: bytes | None = None
    value: str | None = None
    text: str = ""


def _both(rule: str, answer: str | int, document: dict[str, Any], **more: Any) -> Case:
    return Case(
        rule=rule,
        answer=answer,
        body=json.dumps(document).encode(),
        message=encode(document),
        **more,
    )


def _pairs(**values: str) -> dict[str, Any]:
    return {"key": list(values), "value": list(values.values())}


def _model(**tensor: Any) -> dict[str, Any]:
    return {**_pairs(do="model"), "tensors": [X | tensor]}


def from_codec() -> list[Case]:
    """The codec's own cases, their messages encoded by hand where they have a document."""
    found = []
    for case in codec_cases():
        message = case.message
        if case.body is not None and message is not None:
            message = encode(json.loads(case.body))
        found.append(Case(rule=case.rule, answer=case.answer, body=case.body, message=message))
    return found


def _text_cases() -> list[Case]:
    return [
        Case(rule="an empty body", answer=0, body=b"", message=b""),
        Case(rule="a body of blanks", answer=0, body=b" \r\n\t"),
        Case(rule="null as body", answer=0, body=b"null"),
        Case(
            rule="a member given twice",
            answer=0,
            body=b'{"key":["y"],"value":["1"],"key":["x"],"value":["2"]}',
            value="2",
        ),
        Case(
            rule="an unknown member",
            answer=0,
            body=b'{"key":["x"],"value":["1"],"colour":{"deep":[1,null,"x"]}}',
            message=encode(_pairs(x="1")) + block(99, b"colour") + tagged(98, 0) + varint(7),
            value="1",
        ),
        Case(
            rule="the same member under both spellings",
            answer=0,
            body=json.dumps(
                {**_pairs(do="model"), "tensors": [X | {"floatData": [3.0, 4.0]}]}
            ).encode(),
            value="[[6.0, 8.0]]",
        ),
        _both("NUL in a text", 0, _pairs(x="a\0b"), value="a\0b"),
        Case(
            rule="a lone surrogate",
            answer=UNDECODABLE,
            body=b'{"key":["x"],"value":["\\udc00"]}',
            message=block(1, b"x") + block(2, b"\xed\xb0\x80"),
        ),
        Case(
            rule="numbers in texts are not numbers",
            answer=UNDECODABLE,
            body=b'{"key":["x"],"value":[1]}',
            text="value[0] must be a text, got a number",
        ),
        *(
            _both(f"text that is code, {n}", 0, _pairs(x=text), value=text)
            for n, text in enumerate(TEXT_CODE)
        ),
        _both("text that is code, for a strict parser", INPUT, _pairs(x=TEXT_CODE[0], do="parse")),
        _both(
            "array text, for a strict parser",
            0,
            _pairs(x=TEXT_CODE[4], do="parse"),
            value="[[1.0, 2.0]]",
        ),
        _both("array text with dots, for a strict parser", INPUT, _pairs(x="[1, ...]", do="parse")),
    ]


def _pair_cases() -> list[Case]:
    return [
        _both("more values than keys", 0, {"key": ["x"], "value": ["1", "2"]}, value="1"),
        _both("a key given twice", 0, {"key": ["x", "x"], "value": ["1", "2"]}, value="2"),
        _both(
            "a key and a tensor of one name",
            0,
            {"key": ["do", "x"], "value": ["model", "1"], "tensors": [X]},
            value="[[2.0, 4.0]]",
        ),
        _both(
            "a tensor given twice",
            0,
            {**_pairs(do="model"), "tensors": [X, X | {"float_data": [3.0, 4.0]}]},
            value="[[6.0, 8.0]]",
        ),
        Case(
            rule="another service's name",
            answer=3002,
            message=encode(_pairs(x="1") | {"name": "other"}),
            text="Failed to inference: Service name error.",
        ),
        Case(
            rule="another service's name where the URL wins",
            answer=0,
            body=b'{"key":["x"],"value":["1"],"name":"other","method":"other"}',
            value="1",
        ),
        _both("a log id of 64 bits", 0, _pairs(x="1") | {"logid": -(2**63)}, value="1"),
        _both(
            "a long claim of an address",
            0,
            _pairs(x="1") | {"clientip": "9" * 9999 + "\r\nERROR forged"},
            value="1",
        ),
        _both("an empty key", 0, _pairs(**{"": "1"}), value="1"),
        _both(
            "a question for a profile", 0, _pairs(**{"pipeline.profile": "1", "x": "1"}), value="1"
        ),
    ]


def _model_cases() -> list[Case]:
    npy = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }"
    npy += b" " * (128 - len(npy) - 1) + b"\n" + b"\0\0\x80\x3f\0\0\0\x40"
    archive = base64.b64encode(npy).decode()
    return [
        _both("the model's own input", 0, _model(), value="[[2.0, 4.0]]"),
        _both(
            "the model's own input as bytes",
            0,
            {
                **_pairs(do="model"),
                "tensors": [{"name": "x", "elem_type": 13, "byte_data": archive}],
            },
            value="[[2.0, 4.0]]",
        ),
        _both("a zero dimension without data", 0, _model(shape=[0, 2], float_data=[]), value="[]"),
        _both(
            "numbers that are none",
            0,
            _model(float_data=["NaN", "-Infinity"]),
            value="[[nan, -inf]]",
        ),
        _both("an unknown input", INPUT, _model(name="z"), text="invalid arg list"),
        _both("a missing input", INPUT, _pairs(do="model"), text="invalid arg list"),
        _both(
            "one input too many",
            INPUT,
            {**_pairs(do="model"), "tensors": [X, X | {"name": "z"}]},
            text="invalid arg list",
        ),
        _both("a rank too high", INPUT, _model(shape=[1, 1, 2]), text="invalid arg list"),
        _both("a rank too low", INPUT, _model(shape=[2]), text="invalid arg list"),
        _both(
            "a fixed dimension that differs",
            INPUT,
            _model(shape=[1, 3], float_data=[1.0, 2.0, 3.0]),
            text="invalid arg list",
        ),
        _both("a text for a number", 7000, _pairs(x="1", do="model"), text="must be npdata"),
        _both(
            "a double beyond float's range",
            INPUT,
            {
                **_pairs(do="model"),
                "tensors": [
                    {"name": "x", "elem_type": 3, "shape": [1, 2], "float64_data": [1e300, 1.0]}
                ],
            },
            text="out of its range",
        ),
        _both(
            "an unknown output",
            INPUT,
            {**_pairs(do="fetch", output="z"), "tensors": [X]},
            text="invalid arg list",
        ),
    ]


def cases() -> list[Case]:
    """Every case; rules are unique."""
    return [*from_codec(), *_text_cases(), *_pair_cases(), *_model_cases()]
