"""The header field ``Server-Timing``."""

from __future__ import annotations

import pytest

from penstock.protocols.server_timing import Metric, decode, encode


def test_what_is_encoded_is_decoded_whatever_the_names() -> None:
    metrics = [
        Metric("total", {"dur": "18.25", "id": "7"}),
        Metric('ocr/détecter, 1;x="2" 100%', {"dur": "0", "desc": "a b,c"}),
        Metric("plain", {}),
    ]
    value = b", ".join(encode(metrics))
    assert value.isascii()
    assert decode(value) == metrics


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        # Of the specification, and of servers that are common.
        (b"miss, db;dur=53, app;dur=47.2", [("miss", {}), ("db", {"dur": "53"}),
                                            ("app", {"dur": "47.2"})]),
        (b'cache;desc="Cache; Read, a";dur=23.2', [("cache", {"desc": "Cache; Read, a",
                                                              "dur": "23.2"})]),
        (b"  total ; DUR = 1.5 ;flag,,x", [("total", {"dur": "1.5", "flag": ""}), ("x", {})]),
        (b"", []),
        (b"good;dur=1, \xff\x00 bad", [("good", {"dur": "1"})]),
        (b'a;desc="open', [("a", {"desc": ""})]),
    ],
)  # fmt: skip
def test_values_of_other_servers(value: bytes, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert [(each.name, dict(each.parameters)) for each in decode(value)] == expected


def test_a_long_value_is_decoded_in_a_time_that_grows_with_its_length() -> None:
    for piece in (b";", b'a;b="', b"a;b=c;", b" ", b"a ;", b","):
        decode(piece * 20_000)
