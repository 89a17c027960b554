"""Multipart forms."""

from __future__ import annotations

import pytest

from penstock.errors import Undecodable
from penstock.protocols import forms, media

KIND = 'multipart/form-data; boundary="b1"'


def form(*parts: tuple[str, bytes]) -> bytes:
    pieces = [b"--b1\r\n" + head.encode() + b"\r\n\r\n" + data + b"\r\n" for head, data in parts]
    return b"".join(pieces) + b"--b1--\r\n"


def head(name: str, more: str = "", kind: str = "") -> str:
    fields = f'Content-Disposition: form-data; name="{name}"{more}'
    return fields + (f"\r\nContent-Type: {kind}" if kind else "")


def test_fields_are_texts_and_files_are_bytes() -> None:
    body = form(
        (head("title"), "ä".encode()),
        (head("picture", '; filename="a.jpg"', "image/jpeg"), b"\x00\r\n\xff"),
        (head("array", kind="application/octet-stream"), b"1"),
    )
    assert forms.read(body, KIND) == [
        ("title", "ä", ""),
        ("picture", b"\x00\r\n\xff", "image/jpeg"),
        ("array", b"1", "application/octet-stream"),
    ]


def test_an_empty_file_input_of_a_browser_is_not_given() -> None:
    body = form(
        (head("empty", '; filename=""', "application/octet-stream"), b""),
        (head("named", '; filename="a.txt"', "text/plain"), b""),
        (head("text"), b""),
    )
    assert forms.read(body, KIND) == [("named", b"", "text/plain"), ("text", "", "")]


def test_a_repeated_field_becomes_a_list_and_json_is_parsed() -> None:
    body = form((head("x"), b"1"), (head("x"), b"2"), (head("y", kind="application/json"), b"[3]"))
    assert media.decode(body, KIND) == {"x": ["1", "2"], "y": [3]}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (form((head("x"), b"1"))[:-8], KIND),
        (b"nothing", KIND),
        (b"", KIND),
        (form((head("x"), b"1")), "multipart/form-data"),
        (form(("Content-Disposition: form-data", b"1")), KIND),
        (form((head("x"), b"\xff")), KIND),
        (form((head("x" * 5000), b"1")), KIND),
        (form(*[(head("x"), b"")] * (forms.MOST_PARTS + 1)), KIND),
    ],
)
def test_an_invalid_form_is_refused(body: bytes, kind: str) -> None:
    with pytest.raises(Undecodable):
        forms.read(body, kind)
