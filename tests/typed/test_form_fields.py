"""Fields of forms as lists, objects and optional files."""

from __future__ import annotations

import dataclasses
import io
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from PIL import Image as Pillow
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from penstock.errors import InvalidInput, TooLarge
from penstock.protocols import media
from penstock.typed.arrays import Image
from penstock.typed.signature import Signature

FORM = "multipart/form-data; boundary=b"
JSON = "application/json"
EMPTY = ("picture", b"", "", "application/octet-stream")

Picture = Annotated[np.ndarray, Image("L")]


def _png() -> bytes:
    out = io.BytesIO()
    Pillow.new("L", (3, 2), 7).save(out, "PNG")
    return out.getvalue()


PNG = ("picture", _png(), "a.png", "image/png")


def form(*parts: tuple[str, bytes, str | None, str]) -> bytes:
    found = b""
    for name, data, file, kind in parts:
        found += f'--b\r\nContent-Disposition: form-data; name="{name}"'.encode()
        found += b"" if file is None else f'; filename="{file}"'.encode()
        found += f"\r\nContent-Type: {kind}".encode() if kind else b""
        found += b"\r\n\r\n" + data + b"\r\n"
    return found + b"--b--"


def read(function: Any, *parts: tuple[str, bytes, str | None, str]) -> Any:
    return Signature(function, batched=False).request.read(form(*parts), FORM)


class Item(BaseModel):
    size: int


@dataclasses.dataclass
class Box:
    left: int = 0


class Shot(BaseModel):
    picture: Picture | None = None
    title: str = ""


@dataclasses.dataclass
class Data:
    picture: Picture
    title: str = ""


class Dict(TypedDict):
    picture: Picture


class Aliased(BaseModel):
    photo: Picture = Field(alias="picture")


def maybe(picture: Picture | None = None) -> int:
    return 0


def maybe_bytes(picture: bytes | None = None) -> int:
    return 0


def several(picture: list[Picture]) -> int:
    return 0


def maybe_several(picture: list[Picture] | None = None) -> int:
    return 0


def of_model(shot: Shot) -> int:
    return 0


def of_data(shot: Data) -> int:
    return 0


def of_dict(shot: Dict) -> int:
    return 0


def of_alias(shot: Aliased) -> int:
    return 0


@pytest.mark.parametrize("function", [maybe, maybe_bytes, maybe_several, of_model])
def test_an_optional_file_is_none_if_the_browser_sends_an_empty_one(function: Any) -> None:
    assert read(function, EMPTY).picture is None
    assert read(function).picture is None
    assert read(function, PNG).picture is not None


def test_a_file_that_is_not_optional_is_missing_if_it_is_empty() -> None:
    with pytest.raises(InvalidInput, match="picture: Field required"):
        read(several, EMPTY)


@pytest.mark.parametrize("function", [several, maybe_several])
def test_a_list_of_files_takes_one_or_more(function: Any) -> None:
    assert [each.shape for each in read(function, PNG).picture] == [(2, 3)]
    assert len(read(function, PNG, PNG).picture) == 2


@pytest.mark.parametrize(
    "function", [maybe, maybe_bytes, several, maybe_several, of_model, of_data, of_dict, of_alias]
)
def test_every_spelling_of_a_file_takes_a_body_that_is_one(function: Any) -> None:
    signature = Signature(function, batched=False)
    assert signature.files == ("picture",)
    value = signature.request.read(PNG[1], "image/png", signature.raw)
    assert len(vars(value) if not isinstance(value, dict) else value) > 0


def of_items(items: list[Item]) -> int:
    return 0


def of_item(items: Item, number: int = 1) -> int:
    return 0


def of_boxes(items: list[Box] | None = None) -> int:
    return 0


def of_pair(items: tuple[int, int]) -> int:
    return 0


ONE, TWO = b'{"size": 1}', b'{"size": 2}'


@pytest.mark.parametrize("kind", ["", JSON, "text/plain"])
@pytest.mark.parametrize("file", [None, "a.json"])
def test_a_list_of_objects_is_read_from_a_form(kind: str, file: str | None) -> None:
    items = [Item(size=1), Item(size=2)]
    assert read(of_items, ("items", ONE, file, kind)).items == items[:1]
    both = ("items", ONE, file, kind), ("items", TWO, file, kind)
    assert read(of_items, *both).items == items
    assert read(of_items, ("items", b"[%b, %b]" % (ONE, TWO), file, kind)).items == items


def test_texts_in_place_of_other_objects_are_json() -> None:
    assert read(of_item, ("items", ONE, None, "")).items == Item(size=1)
    assert read(of_boxes, ("items", b'{"left": 3}', None, "")).items == [Box(3)]
    assert read(of_pair, ("items", b"[1, 2]", None, "")).items == (1, 2)


def test_many_texts_of_a_large_form_are_parsed() -> None:
    text = b'{"size": 1, "%b": 0}' % (b"x" * 500)
    parts = [("items", text, None, "")] * 300
    assert len(form(*parts)) > 64 << 10
    assert len(read(of_items, *parts).items) == 300


@pytest.mark.parametrize("function", [of_item, of_items, of_pair])
def test_a_text_that_is_no_json_in_place_of_an_object_is_refused_with_the_fix(
    function: Any,
) -> None:
    with pytest.raises(InvalidInput, match="items: send the field as JSON: curl -F 'items="):
        read(function, ("items", b"size", None, ""))


def test_faults_in_such_texts_have_their_places() -> None:
    with pytest.raises(InvalidInput) as caught:
        read(of_items, ("items", b'{"size": "x"}', None, ""))
    assert caught.value.details[0]["loc"] == ["body", "items", 0, "size"]


def test_json_in_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MOST_STRUCTURED", 100)
    with pytest.raises(TooLarge):
        read(of_items, *[("items", ONE, None, "")] * 20)


class Pair(NamedTuple):
    number: int
    data: bytes


def test_named_tuples_are_fields_of_forms_as_json() -> None:
    def one(pair: Pair, more: list[Pair]) -> None: ...

    request = Signature(one, batched=False).request
    parts = [("pair", '[1, "_w"]'), ("more", '[2, "_w"]'), ("more", '{"number": 3, "data": ""}')]
    text = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in parts
    )
    found = request.read(f"{text}--b--\r\n".encode(), FORM)
    assert found.pair == Pair(1, b"\xff")
    assert found.more == [Pair(2, b"\xff"), Pair(3, b"")]
