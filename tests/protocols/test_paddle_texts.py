"""Texts-only messages read and written by hand: the library is the judge."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols import pb
from penstock.protocols.paddle_records import Reply
from penstock.protocols.paddle_texts import read_texts, write_texts

TEXT = st.text(max_size=140) | st.builds("x".__mul__, st.sampled_from([127, 128, 16384, 70_000]))
TEXTS = st.lists(TEXT, max_size=4)
METHOD = b"*\x01m"  # field 5


@given(
    TEXTS,
    TEXTS,
    TEXT,
    TEXT.filter(bool),
    st.integers(-(2**63), 2**63 - 1) | st.integers(0, 200),
    TEXT,
)
def test_what_is_read_is_what_the_library_reads(
    key: list[str], value: list[str], name: str, method: str, logid: int, clientip: str
) -> None:
    request = pb.Request(
        key=key, value=value, name=name, method=method, logid=logid, clientip=clientip
    )
    data = request.SerializeToString()
    call = read_texts(data)
    assert (call is not None) == (logid >= 0)
    if call is not None:
        assert call.message() == pb.Request(
            key=key, value=value, name=name, method=method, logid=logid, clientip=clientip[:64]
        )
        assert call.nbytes == len(data)


@given(st.binary(max_size=60) | st.binary(max_size=30).map(lambda data: data + METHOD))
def test_any_bytes_give_the_librarys_call_or_are_left_to_it(data: bytes) -> None:
    call = read_texts(data)
    if call is not None:
        expected = pb.Request.FromString(data)
        expected.clientip = expected.clientip[:64]
        assert call.message() == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\x01x\x12\x011",
        pb.Request(method="m", tensors=[pb.Tensor(name="x")]).SerializeToString(),
        METHOD + b"\n\x05x",
        METHOD + b"\n",
        METHOD + b"\n\x01\xff",
        METHOD + b"B\x01x",
        METHOD + b"\n" + b"\xff" * 9 + b"\x01",
        METHOD + b"\n\x81",
        METHOD + b"(\x01",
        METHOD + b"\n\x01x" * 64,
    ],
    ids=[
        "empty",
        "nothing that shows the numbering",
        "tensors",
        "cut off",
        "cut in a length",
        "no UTF-8",
        "an unknown field",
        "a length of ten bytes",
        "cut in a long length",
        "field 5 as a number",
        "many fields",
    ],
)
def test_the_rest_is_left_to_the_library(data: bytes) -> None:
    assert read_texts(data) is None


class Uncut(bytes):
    """Bytes of which no part is to be copied."""

    def __getitem__(self, key: Any) -> Any:
        assert isinstance(key, int)
        return super().__getitem__(key)


def test_tensors_are_not_copied_before_they_are_left_to_the_library() -> None:
    tensor = pb.Tensor(name="x", byte_data=bytes(1 << 20))
    assert read_texts(Uncut(pb.Request(tensors=[tensor], method="m").SerializeToString())) is None


@given(TEXTS, TEXTS)
def test_what_is_written_is_what_the_library_writes(key: list[str], value: list[str]) -> None:
    written = write_texts(Reply(key=key, value=value))
    assert written == pb.Response(key=key, value=value).SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(err_no=5000, err_msg="no", key=["x"], value=["1"]),
        Reply(key=["x"], value=["\ud800"]),
        Reply(key=["x"], value=["1"], tensors=[pb.Tensor(name="x")]),
    ],
    ids=["an error", "no Unicode", "tensors"],
)
def test_other_replies_are_left_to_the_library(reply: Reply) -> None:
    assert write_texts(reply) is None
