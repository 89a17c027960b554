"""Decoding of image files to arrays."""

from __future__ import annotations

import base64
import io
from typing import Annotated

import numpy as np
import pytest
from PIL import Image as Pillow
from pydantic import BaseModel

from penstock.errors import HookError
from penstock.typed.arrays import Image
from penstock.typed.signature import Schema


def _file(form: str = "PNG", size: tuple[int, int] = (4, 2)) -> bytes:
    out = io.BytesIO()
    Pillow.new("RGB", size, (255, 0, 10)).save(out, form)
    return out.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP"])
def test_an_image_is_decoded_to_height_by_width_by_channels(form: str) -> None:
    picture = Image().decode(_file(form))
    assert (picture.shape, picture.dtype) == ((2, 4, 3), np.uint8)
    assert picture[0, 0, 0] > 250


def test_base64_is_decoded_and_a_grey_image_has_no_channels() -> None:
    assert Image("L").decode(base64.b64encode(_file()).decode()).shape == (2, 4)


@pytest.mark.parametrize(
    "value", [b"", b"no image", "no base64!", _file()[:40], _file(size=(100, 100)), 5, None]
)
def test_invalid_and_too_large_images_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"image|Base64"):
        Image(max_pixels=5000).decode(value)


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ValueError, match="RGB"):
        Image("BGR")


def test_a_type_with_an_image_needs_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shot(BaseModel):
        picture: Annotated[np.ndarray, Image()]

    class Order(BaseModel):
        shots: list[Shot]

    with_image, without = Schema(Order, "order"), Schema(int, "order")
    with_image.check_packages("order")
    monkeypatch.setattr("penstock.typed.signature.find_spec", lambda _: None)
    without.check_packages("order")
    with pytest.raises(HookError, match=r"order: an Image needs .* 'penstock-serving\[images\]'"):
        with_image.check_packages("order")
