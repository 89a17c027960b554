from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.executors.processes.frame import (
    HEADER_BYTES,
    UNASKED_BYTES,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    header,
)

MOST = 1000

frames = st.lists(
    st.builds(
        Frame,
        st.sampled_from(Kind),
        st.integers(0, 2**64 - 1),
        st.one_of(st.binary(max_size=40), st.binary(min_size=MOST, max_size=MOST)),
    ),
    max_size=5,
)


def written(frame: Frame) -> bytes:
    return header(frame.kind, frame.number, len(frame.body)) + frame.body


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    at = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@given(frames, st.data())
def test_however_the_bytes_are_cut_the_same_frames_come_out(
    sent: list[Frame], data: st.DataObject
) -> None:
    reader = FrameReader(MOST)
    pieces = data.draw(cut(b"".join(map(written, sent))))
    found = [frame for piece in pieces for frame in reader.receive(piece)]
    assert found == sent


@given(frames)
def test_bytes_that_come_one_by_one_make_the_same_frames(sent: list[Frame]) -> None:
    reader = FrameReader(MOST)
    data = b"".join(map(written, sent))
    found = [frame for octet in data for frame in reader.receive(bytes((octet,)))]
    assert found == sent


@given(st.binary(max_size=200), st.data())
def test_any_bytes_are_frames_or_an_error_in_either_cutting(
    junk: bytes, data: st.DataObject
) -> None:
    def outcome(pieces: list[bytes]) -> tuple[list[Frame], str]:
        reader = FrameReader(MOST)
        found: list[Frame] = []
        try:
            for piece in pieces:
                found += reader.receive(piece)
        except FrameError as error:
            return found, str(error)
        return found, ""

    prefix = data.draw(st.sampled_from([b"", b"PF", b"PF\x01", b"PF\x01\x01", b"PF\x01\x02\x05"]))
    whole, end = outcome([prefix + junk])
    pieces, cut_end = outcome(data.draw(cut(prefix + junk)))
    assert end == cut_end
    assert pieces[: len(whole)] == whole


def test_what_was_received_may_be_overwritten() -> None:
    buffer = bytearray(written(Frame(Kind.RUN, 1, b"abc")) + written(Frame(Kind.DONE, 2, b"def")))
    reader = FrameReader(MOST)
    frames = reader.receive(memoryview(buffer)[:-1])
    last = buffer[-1:]
    buffer[:] = bytes(len(buffer))
    frames += reader.receive(last)
    assert frames == [Frame(Kind.RUN, 1, b"abc"), Frame(Kind.DONE, 2, b"def")]


def test_nobody_can_change_a_body() -> None:
    reader = FrameReader(MOST)
    data = written(Frame(Kind.RUN, 1, b"abc"))
    reader.receive(data[:-1])
    (frame,) = reader.receive(data[-1:])
    assert memoryview(frame.body).readonly


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (struct.pack("<2sBBIQ", b"PG", 1, 1, 0, 0), "no frame"),
        (struct.pack("<2sBBIQ", b"PF", 2, 1, 0, 0), "version 2"),
        (struct.pack("<2sBBIQ", b"PF", 1, 0, 0, 0), "kind 0"),
        (struct.pack("<2sBBIQ", b"PF", 1, 200, 0, 0), "kind 200"),
        (struct.pack("<2sBBIQ", b"PF", 1, 1, MOST + 1, 0), "over the 1000 allowed"),
    ],
)
def test_a_broken_header_is_refused_for_good(head: bytes, text: str) -> None:
    reader = FrameReader(MOST)
    with pytest.raises(FrameError, match=text):
        reader.receive(head)
    with pytest.raises(FrameError, match=text):
        reader.receive(written(Frame(Kind.STOP, 0, b"")))


def test_a_header_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(FrameError):
        header(Kind.RUN, 0, 2**32)
    with pytest.raises(FrameError):
        header(Kind.RUN, 2**64, 0)


def test_a_promise_of_many_bytes_costs_nothing() -> None:
    reader = FrameReader(1 << 30)
    tracemalloc.start()
    try:
        reader.receive(header(Kind.RUN, 0, 1 << 30) + b"abc")
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_large_body_is_not_copied_once_more_when_it_is_whole() -> None:
    size = 8 << 20
    reader = FrameReader(size)
    reader.receive(header(Kind.RUN, 0, size))
    piece = bytes(1 << 18)
    tracemalloc.start()
    try:
        frames = [frame for _ in range(size // len(piece)) for frame in reader.receive(piece)]
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()
    assert [len(frame.body) for frame in frames] == [size]


def test_a_header_has_the_length_it_says() -> None:
    assert len(header(Kind.RUN, 1, 2)) == HEADER_BYTES


@pytest.mark.parametrize("cut", [HEADER_BYTES, 7])
def test_a_large_body_is_refused_while_nobody_expects_one(cut: int) -> None:
    expected = False
    reader = FrameReader(1 << 30, lambda: expected)
    small = bytes(UNASKED_BYTES)
    (frame,) = reader.receive(header(Kind.DONE, 1, len(small)) + small)
    assert len(frame.body) == UNASKED_BYTES
    expected = True
    large = header(Kind.DONE, 2, UNASKED_BYTES + 1)
    assert reader.receive(large) == []
    assert len(reader.receive(bytes(UNASKED_BYTES + 1))) == 1
    expected = False
    if cut < HEADER_BYTES:
        assert reader.receive(large[:cut]) == []
        large = large[cut:]
    with pytest.raises(FrameError, match="none of that size is expected"):
        reader.receive(large + small)
