"""Items of a command line as requests."""

from __future__ import annotations

from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path

import pytest

from penstock.client.http_request import form, header, read_items
from penstock.errors import Undecodable


def test_items_are_text_json_files_and_query_parameters(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\x00")
    items = read_items(["a=1", "b:=[1, null]", f"c=@{tmp_path / 'x'}", "q==1=2", "q==3", "u=a:=b"])
    assert items.members == {"a": "1", "b": [1, None], "c": "/wA=", "u": "a:=b"}
    assert items.query == [("q", "1=2"), ("q", "3")]
    assert not items.is_plain
    assert read_items(["a=b", "c="]).is_plain
    assert read_items(["q==1"]).members is None


@pytest.mark.parametrize(
    ("text", "why"),
    [("a", "no item"), ("=1", "no item"), ("a:={", "no JSON"), ("a=@/no/file", "cannot be read")],
)
def test_an_invalid_item_is_refused(text: str, why: str) -> None:
    with pytest.raises(Undecodable, match=why):
        read_items([text])


def test_a_form_has_fields_and_files_with_their_names_and_media_types(tmp_path: Path) -> None:
    file = tmp_path / 'a"b.png'
    file.write_bytes(b"\r\n--bytes")
    content, media = form(["size=ü", f"image=@{file}"])
    message = BytesParser(policy=HTTP).parsebytes(
        f"Content-Type: {media}\r\n\r\n".encode() + content
    )
    first, second = message.iter_parts()
    assert first.get_param("name", header="content-disposition") == "size"
    assert first.get_payload(decode=True) == "ü".encode()
    assert second.get_filename() == "a%22b.png"
    assert second.get_content_type() == "image/png"
    assert second.get_payload(decode=True) == b"\r\n--bytes"
    with pytest.raises(Undecodable):
        form(["image"])


def test_a_header_is_a_name_and_a_value() -> None:
    assert header("X-A: b:c ") == ("x-a", "b:c")
    for text in ("nothing", ": a", "a: b\nc: d"):
        with pytest.raises(Undecodable):
            header(text)
