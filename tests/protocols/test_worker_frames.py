"""Frames of external workers: split at any offset, and protocol errors."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from struct import pack

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols import worker_frames
from penstock.protocols.worker_frames import (
    READY,
    Answer,
    FrameError,
    FrameReader,
    Told,
    answer_frame,
    batch_frame,
    read_answer,
    read_batch,
    read_told,
    told_frame,
)

A, B = "a" * 36, "b" * 36


def framed(payload: bytes) -> bytes:
    return pack(">I", len(payload)) + payload


@given(
    payloads=st.lists(st.binary(max_size=70), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_frames_split_at_any_offsets_are_read(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, payloads))
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = FrameReader(70)
    found: list[bytes] = []
    for start, end in pairwise(places):
        found += map(bytes, reader.receive(stream[start:end]))
        assert len(reader._buffer) < 74
    assert found == payloads
    assert not reader


def test_a_frame_over_the_limit_is_refused_when_its_length_was_read() -> None:
    for cut in range(4):
        reader = FrameReader(10)
        head = pack(">I", 11)
        assert reader.receive(head[:cut]) == []
        with pytest.raises(FrameError, match="11 bytes, over the 10"):
            reader.receive(head[cut:])


def test_a_batch_is_encoded_as_the_documented_map() -> None:
    frame = b"".join(batch_frame({A: b"{}"}))
    assert frame == b"\0\0\0\x2b" + b"\x81\xd9\x24" + b"a" * 36 + b"\xc4\x02{}"
    assert read_batch(frame[4:]) == {A: b"{}"}
    assert framed(b"") == READY


@pytest.mark.parametrize(
    "answer",
    [
        Answer({A: b"1", B: b"2"}),
        Answer({A: b"1", B: b"2"}, frozenset((A, B)), frozenset((B,)), leaving=True),
        Answer({}, leaving=True),
        Answer({A: b"a piece"}, more=frozenset((A,)), ended=frozenset((B,))),
    ],
)
def test_an_encoded_answer_is_decoded_to_the_same(answer: Answer) -> None:
    assert read_answer(answer_frame(answer)[1], 2) == answer


@pytest.mark.parametrize("key", ["error_ids", "error_id"])
@pytest.mark.parametrize("ids", [A + B, (A + B).encode(), [A, B]])
def test_refused_ids_are_read_in_each_documented_form(key: str, ids: object) -> None:
    found = read_answer(ormsgpack.packb({A: b"no", B: "neither", key: ids}), 2)
    assert found == Answer({A: b"no", B: b"neither"}, frozenset((A, B)))


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1",
        b"\x81",
        ormsgpack.packb([1]),
        ormsgpack.packb({A: 1}),
        ormsgpack.packb({A: {}}),
        ormsgpack.packb({A: b"", "error_ids": "short"}),
        ormsgpack.packb({A: b"", "error_ids": 5}),
        ormsgpack.packb({A: b"", "heads": []}),
        ormsgpack.packb({A: b"", "error_ids": [1]}),
        ormsgpack.packb({"more_ids": A}),
        ormsgpack.packb({A: b"", "end_ids": A}),
        ormsgpack.packb({A: b"", "more_ids": A, "error_ids": A}),
        ormsgpack.packb({1: b""}, option=ormsgpack.OPT_NON_STR_KEYS),
    ],
)
def test_an_invalid_answer_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        read_answer(payload, 2)


def test_what_a_service_says_about_pieces_is_read_apart_from_batches() -> None:
    for told in (Told({A: 16}, frozenset()), Told({}, frozenset((A,)))):
        assert read_told(told_frame(told)[1]) == told
    assert told_frame(Told({A: 16}, frozenset()))[1] == ormsgpack.packb({A: b"16", "credit_ids": A})
    assert read_told(batch_frame({A: b"{}"})[1]) is None
    for wrong in ({"credit_ids": A}, {A: b"x", "credit_ids": A}, {"cancel_ids": "short"}):
        with pytest.raises(FrameError):
            read_told(ormsgpack.packb(wrong))


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_as_an_answer_or_refused(payload: bytes) -> None:
    with suppress(FrameError):
        read_answer(payload, 2)


@pytest.mark.parametrize(
    "value",
    [
        b"\xdd\x00\x0f\x42\x40" + b"\x90" * 1_000_000,  # a million lists in a megabyte
        b"\x91" * 1_000_000 + b"\xc0",
        b"\xdf\x00\x0f\x42\x40" + b"\xa0\x80" * 1_000_000,
        b"\xdc\x00\x03" + b"\xa0" * 3,  # more ids than were sent
    ],
    ids=["a list", "a deep list", "a map", "ids"],
)
def test_values_that_an_answer_never_has_are_refused_without_being_decoded(
    value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_frames.ormsgpack, "unpackb", None)
    for key in (A, "error_ids", "leaving"):
        payload = b"\x81\xd9" + bytes((len(key),)) + key.encode() + value
        with pytest.raises(FrameError):
            read_answer(payload, 2)


def test_an_answer_with_more_keys_than_ids_were_sent_is_refused_without_being_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = ormsgpack.packb({f"{n}": b"" for n in range(1000)})
    monkeypatch.setattr(worker_frames.ormsgpack, "unpackb", None)
    with pytest.raises(FrameError, match="was not sent"):
        read_answer(payload, 2)
