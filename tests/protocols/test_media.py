"""Media types, and encoding of plain values."""

from __future__ import annotations

import numpy as np
import orjson
import ormsgpack
import pytest

from penstock.errors import TooLarge, Undecodable, UnknownMediaType
from penstock.protocols import media


@pytest.mark.parametrize(
    ("accept", "kind", "answer"),
    [
        (None, "", media.JSON),
        (None, "application/x-msgpack", media.MSGPACK),
        ("*/*", "application/msgpack", media.MSGPACK),
        ("application/json", "application/msgpack", media.JSON),
        ("text/html, application/msgpack;q=0.9", "application/json", media.MSGPACK),
        ("image/png", "application/json; charset=utf-8", media.JSON),
        ("application/msgpack;q=0", "application/msgpack", media.JSON),
        ("application/json; q=0, */*", "application/json", media.MSGPACK),
        ("application/json;q=0.000", "", media.MSGPACK),
        ("application/msgpack;q=0, application/json", "application/msgpack", media.JSON),
        ("application/json;q=0.5, application/x-msgpack", "application/json", media.MSGPACK),
        ("application/json, application/msgpack", "application/msgpack", media.JSON),
        ("application/json;q=0, application/msgpack;q=0", "application/json", media.JSON),
        ("application/json;q=nonsense", "application/msgpack", media.JSON),
    ],
)
def test_the_media_type_of_an_answer_is_chosen_by_accept_and_content_type(
    accept: str | None, kind: str, answer: str
) -> None:
    assert media.answer_kind(accept, kind) == answer


IMAGES = ("image/png", "image/jpeg")


@pytest.mark.parametrize(
    ("accept", "kind", "answer"),
    [
        (None, "application/msgpack", "image/png"),
        ("*/*", "", "image/png"),
        ("image/*", "", "image/png"),
        ("image/jpeg", "", "image/jpeg"),
        ("image/webp, image/jpeg;q=0.5, */*;q=0.1", "", "image/jpeg"),
        ("image/jpeg;q=0.5, image/png;q=0.9", "", "image/png"),
        ("image/png;q=0, image/*", "", "image/jpeg"),
        ("image/png;q=0", "", "image/jpeg"),
        ("application/json", "", media.JSON),
        ("application/vnd.msgpack", "", media.MSGPACK),
        ("application/*", "", media.JSON),
        ("application/*", "application/msgpack", media.MSGPACK),
        ("text/html", "", "image/png"),
        ("i/*", "", "image/png"),
    ],
)
def test_an_answer_that_is_a_file_has_the_accepted_type(
    accept: str | None, kind: str, answer: str
) -> None:
    assert media.answer_kind(accept, kind, IMAGES) == answer


@pytest.mark.parametrize(
    ("accept", "answer"),
    [
        ("application/json;q=0", media.MSGPACK),
        ("application/json; Q=0.000, */*", media.MSGPACK),
        ("application/json;q=0.2, application/msgpack;q=0.3", media.MSGPACK),
        ("application/json;q=0, application/msgpack;q=0", media.JSON),
        ("application/x-msgpack;q=0", media.JSON),
    ],
)
def test_a_weight_of_zero_is_a_refusal(accept: str, answer: str) -> None:
    assert media.answer_kind(accept, media.JSON) == answer


VALUES = {
    "array": np.array([[1.5, 2.0]], "float32"),
    "half": np.array([1.5], "float16"),
    "turned": np.arange(4).reshape(2, 2).T,
    "number": np.int64(3),
    "text": np.array(["a"]),
    "tuple": (1, "b"),
    "none": None,
}
PLAIN = {
    "array": [[1.5, 2.0]],
    "half": [1.5],
    "turned": [[0, 2], [1, 3]],
    "number": 3,
    "text": ["a"],
    "tuple": [1, "b"],
    "none": None,
}


def test_arrays_and_scalars_are_encoded_as_lists_and_numbers() -> None:
    assert orjson.loads(media.encode(VALUES, media.JSON)) == PLAIN
    assert ormsgpack.unpackb(media.encode(VALUES, media.MSGPACK)) == PLAIN


def test_bytes_are_base64_in_json_only() -> None:
    assert media.encode({"x": b"\x00\x00\x00"}, media.JSON) == b'{"x":"AAAA"}'
    assert ormsgpack.unpackb(media.encode({"x": b"\x00"}, media.MSGPACK)) == {"x": b"\x00"}


@pytest.mark.parametrize("kind", [media.JSON, media.MSGPACK])
def test_other_objects_cannot_be_encoded(kind: str) -> None:
    with pytest.raises(TypeError):
        media.encode({"x": object()}, kind)


def packed_arrays(element: bytes, count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + element * count


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (media.JSON, b"[" + b"[]," * media.MOST_COST + b"1]"),
        (media.JSON, b"[" + b"{}," * (media.MOST_COST // 4) + b"1]"),
        (media.MSGPACK, packed_arrays(b"\x90", media.MOST_COST)),
        (media.MSGPACK, packed_arrays(b"\x80", media.MOST_COST // 4)),
        (media.MSGPACK, packed_arrays(b"\xdd\0\0\0\0", media.MOST_COST)),
    ],
)
def test_too_many_arrays_and_objects_are_refused(kind: str, body: bytes) -> None:
    with pytest.raises(TooLarge, match="too many arrays"):
        media.decode(body, kind)


def test_the_json_of_a_form_is_counted_together() -> None:
    part = (
        b'--b\r\nContent-Disposition: form-data; name="x"\r\nContent-Type: application/json\r\n\r\n'
        + b"[" + b"{}," * 9000 + b"1]\r\n"
    )  # fmt: skip
    kind = f"{media.FORM}; boundary=b"
    assert len(media.decode(part * 9 + b"--b--\r\n", kind)["x"]) == 9
    with pytest.raises(TooLarge, match="too many arrays"):
        media.decode(part * 12 + b"--b--\r\n", kind)


def test_brackets_in_texts_are_not_counted() -> None:
    text = '[{\\"' * 200_000
    assert media.decode(orjson.dumps([text]), media.JSON) == [text]
    assert media.decode(ormsgpack.packb([text]), media.MSGPACK) == [text]


def test_a_number_of_many_characters_is_refused() -> None:
    assert media.decode(b'["%b"]' % (b"1" * 2000), media.JSON) == ["1" * 2000]
    with pytest.raises(Undecodable, match="more than 1000 characters"):
        media.decode(b"[%b]" % (b"1" * 2000), media.JSON)


@pytest.mark.parametrize(
    ("charset", "taken"),
    [("utf-8", True), ('"UTF-8"', True), ("us-ascii", True), ("latin-1", False), ("utf-16", False)],
)
def test_texts_are_utf_8(charset: str, taken: bool) -> None:
    kinds = [f"application/json; charset={charset}", f"text/json;a=b;Charset={charset}"]
    bodies: list[tuple[bytes, str]] = [(b'{"x": "a"}', kind) for kind in kinds]
    head = 'Content-Disposition: form-data; name="x"\r\nContent-Type: text/plain; charset='
    form = f"--b\r\n{head}{charset}\r\n\r\na\r\n--b--\r\n"
    bodies.append((form.encode(), f"{media.FORM}; boundary=b"))
    for body, kind in bodies:
        if taken:
            assert media.decode(body, kind) == {"x": "a"}
        else:
            with pytest.raises(UnknownMediaType, match="send UTF-8"):
                media.decode(body, kind)


def test_json_may_be_larger_if_it_has_few_values_and_large_texts() -> None:
    size = media.MOST_STRUCTURED + 1
    picture = b'{"picture": "%b"}' % (b"a" * size)
    assert len(media.decode(picture, media.JSON, texts=True)["picture"]) == size
    for body, texts in (
        (picture, False),
        (b"[%b1]" % (b"1," * (size // 2 + 1)), True),
        (b'"%b"' % (b"a" * media.MOST_TEXTS), True),
    ):
        with pytest.raises(TooLarge):
            media.decode(body, media.JSON, texts=texts)
