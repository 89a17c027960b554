"""``Array``: which dtypes it has, and that functions may change what they get."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import ormsgpack
import pytest

from penstock.errors import InvalidInput
from penstock.protocols import media, npy
from penstock.typed.arrays import Array, Media
from penstock.typed.signature import Signature

FILE = "application/octet-stream"


def of_floats(x: Annotated[np.ndarray, Array("float32")]) -> int:
    return x.size


def of_texts(
    x: Annotated[np.ndarray, Array("str", (None,))],
) -> Annotated[np.ndarray, Array("str")]:
    return x


def of_short_texts(x: Annotated[np.ndarray, Array("U2")]) -> int:
    return x.size


def test_a_function_may_change_its_array_wherever_it_came_from() -> None:
    signature = Signature(of_floats, batched=False)
    request = signature.request
    array = np.ones(2, np.float32)
    array.flags.writeable = False
    for value in (
        request.read(b'{"x": [1.0]}', media.JSON),
        request.read(ormsgpack.packb({"x": [1.0]}), media.MSGPACK),
        request.read(ormsgpack.packb({"x": npy.write(array)}), media.MSGPACK),
        request.read(npy.write(array), FILE, signature.raw),
        request.read(npy.write(array.astype(np.float64)), FILE, signature.raw),
        request.accept({"x": array}),
        request.accept({"x": "[1.0, 2.0]"}),
    ):
        value.x += 1
    assert array.tolist() == [1, 1]


@pytest.mark.parametrize("texts", [["a", "bcd", ""], [], ["ä" * 300]])
def test_texts_are_an_array(texts: list[str]) -> None:
    signature = Signature(of_texts, batched=False)
    value = signature.request.read(ormsgpack.packb({"x": texts}), media.MSGPACK)
    assert (value.x.dtype.kind, value.x.tolist()) == ("U", texts)
    answer = signature.response.write(signature.response.check(value.x), media.MSGPACK)
    assert ormsgpack.unpackb(answer) == texts
    if texts:
        file = signature.request.read(npy.write(np.array(texts)), FILE, signature.raw)
        assert file.x.tolist() == texts
    schema = signature.request.describe(refs="{model}")["properties"]["x"]
    assert schema["items"] == {"type": "string"}


@pytest.mark.parametrize(
    ("function", "texts", "problem"),
    [
        (of_texts, ["a", 1], "not all texts"),
        (of_texts, ["a", ["b"]], "not all texts"),
        (of_texts, ["a\0"], "U\\+0000"),
        (of_texts, [["a"]], "an array of shape"),
        (of_texts, ["a" * 200_000] + ["a"] * 1000, "more than 256 MiB"),
        (of_short_texts, ["abc"], "more than 2 characters"),
        (of_floats, ["a"], "no array of float32"),
    ],
)
def test_texts_that_would_change_or_take_too_much_are_refused(
    function: Any, texts: Any, problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem):
        Signature(function, batched=False).request.read(
            ormsgpack.packb({"x": texts}), media.MSGPACK
        )


@pytest.mark.parametrize(
    ("dtype", "instead"),
    [
        ("object", "for texts write 'str'"),
        ("datetime64[ns]", "list\\[datetime\\]"),
        ("timedelta64", "list\\[timedelta\\]"),
        ("S5", "list\\[bytes\\]"),
        ("complex64", "an axis of two"),
        ("V4", "a list of another type"),
    ],
)
def test_other_dtypes_are_refused_where_they_are_written(dtype: str, instead: str) -> None:
    with pytest.raises(ValueError, match=instead):
        Array(dtype)


def test_a_negative_size_is_refused_where_it_is_written() -> None:
    with pytest.raises(ValueError, match=r"no size -1: write None .* \(None, 1024, None\)$"):
        Array("float32", (-1, 1024, -1))
    assert Array("float32", (None, "n", 0)).shape == (None, "n", 0)


@pytest.mark.parametrize("kind", ["wav", "audio/*", "audio/wav; x=1", "Audio/wav\r\nx: y"])
def test_a_media_type_of_bytes_is_one_type(kind: str) -> None:
    with pytest.raises(ValueError, match="such as 'audio/wav'"):
        Media(kind)


def of_sound(sound: Annotated[bytes, Media("audio/wav")]) -> int:
    return len(sound)


def test_bytes_with_a_media_type_are_read_like_other_bytes() -> None:
    signature = Signature(of_sound, batched=False)
    assert signature.request.read(b'{"sound": "YQ"}', media.JSON).sound == b"a"
    assert signature.request.read(b"a", "audio/wav", signature.raw).sound == b"a"
    schema = signature.request.describe(refs="{model}")["properties"]["sound"]
    assert schema["contentMediaType"] == "audio/wav"
