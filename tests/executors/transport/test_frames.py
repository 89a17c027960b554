"""Frames are decoded as they were encoded, however the bytes are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.executors.transport.frames import Frame, FrameError, FrameReader, Kind, header

FRAMES = st.lists(
    st.tuples(st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.binary(max_size=50)), max_size=5
)


@given(FRAMES, st.lists(st.integers(1, 60), min_size=1))
def test_frames_are_decoded_however_the_bytes_are_split(
    frames: list[tuple[Kind, int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(header(kind, number, len(body)) + body for kind, number, body in frames)
    reader = FrameReader(100)
    received: list[Frame] = []
    at = n = 0
    while at < len(data):
        size = cuts[n % len(cuts)]
        received += reader.receive(data[at : at + size])
        at, n = at + size, n + 1
    assert [(kind, number, bytes(body)) for kind, number, body in received] == frames


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", header(Kind.DONE, 1, 101), b"PF\x09" + bytes(13),
     b"PF\x02\xff" + bytes(12)],
    ids=["other protocol", "too long", "version", "kind"],
)  # fmt: skip
def test_an_invalid_header_is_refused_once_it_is_complete(data: bytes) -> None:
    with pytest.raises(FrameError):
        FrameReader(100).receive(data)
    reader = FrameReader(100)
    assert reader.receive(data[:15]) == []
    with pytest.raises(FrameError):
        reader.receive(data[15:])


def test_a_header_over_the_size_limit_cannot_be_encoded() -> None:
    with pytest.raises(FrameError):
        header(Kind.DONE, 1, 2**32)
