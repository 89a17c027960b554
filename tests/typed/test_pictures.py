"""Picture files: formats, depths, orientation, and what is refused."""

from __future__ import annotations

import io
import struct
import subprocess
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageOps

from penstock.typed import pictures
from penstock.typed.arrays import Image

_RNG = np.random.default_rng(5)
NOISE = Pillow.fromarray(_RNG.integers(0, 255, (40, 30, 3), dtype=np.uint8))
RAMP = np.arange(65536, dtype=np.uint16).reshape(256, 256)


def _file(image: Pillow.Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"save_all": True, "append_images": [NOISE.rotate(90)]}),
        ("GIF", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_every_default_format_is_decoded_as_by_pillow(
    form: str, options: dict[str, Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "_STRIP", 100)
    data = _file(NOISE, form, **options)
    picture = Image(mode).decode(data)
    assert np.array_equal(picture, np.asarray(Pillow.open(io.BytesIO(data)).convert(mode)))
    assert picture.flags.writeable


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_upright(form: str, orientation: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    data = _file(NOISE, form, exif=exif)
    upright = ImageOps.exif_transpose(Pillow.open(io.BytesIO(data))).convert("RGB")
    assert np.array_equal(Image().decode(data), np.asarray(upright))


def test_the_orientation_in_xmp_counts_without_exif() -> None:
    data = _file(NOISE, "WEBP", lossless=True, xmp=b'<x tiff:Orientation="6"/>')
    assert Image().decode(data).shape == (30, 40, 3)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_pictures_of_16_bits_are_scaled_or_kept(form: str) -> None:
    data = _file(Pillow.fromarray(RAMP), form)
    assert np.array_equal(Image("L").decode(data), RAMP >> 8)
    assert np.array_equal(Image().decode(data)[..., 2], RAMP >> 8)
    assert Image("RGBA").decode(data)[..., 3].min() == 255
    assert np.array_equal(Image("I;16").decode(data), RAMP)
    assert np.array_equal(Image("F").decode(data), RAMP.astype(np.float32))


@pytest.mark.parametrize("top", [1, 255, 65535])
def test_pictures_of_floats_are_scaled_or_kept(top: int) -> None:
    values = (RAMP / 65535 * top).astype(np.float32)
    data = _file(Pillow.fromarray(values), "TIFF")
    assert np.array_equal(Image("F").decode(data), values)
    assert np.array_equal(Image("I;16").decode(data), RAMP)
    grey = Image("L").decode(data)
    assert (grey.min(), grey.max(), len(np.unique(grey))) == (0, 255, 256)


def test_pictures_of_8_bits_become_16_bits_or_floats() -> None:
    data = _file(Pillow.fromarray(np.array([[0, 1, 255]], np.uint8)), "PNG")
    assert Image("I;16").decode(data).tolist() == [[0, 257, 65535]]
    assert Image("F").decode(data).tolist() == [[0.0, 1.0, 255.0]]


@pytest.mark.parametrize("value", [-1.0, 1e6, np.nan, np.inf])
def test_floats_without_a_known_white_are_refused(value: float) -> None:
    data = _file(Pillow.fromarray(np.array([[0, value]], np.float32)), "TIFF")
    with pytest.raises(ValueError, match="which of them is white"):
        Image().decode(data)


@pytest.mark.parametrize("form", ["EPS", "PCX", "png", "XYZ"])
def test_formats_beyond_the_known_ones_are_refused_at_the_start(form: str) -> None:
    with pytest.raises(ValueError, match="take bytes, and decode them"):
        Image(formats=[form])


def test_only_listed_formats_are_decoded_and_no_program_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", pytest.fail)
    only = Image(formats=["PNG"])
    assert only.decode(_file(NOISE, "PNG")).shape == (40, 30, 3)
    for data in (EPS, _file(NOISE, "JPEG"), _file(NOISE, "JPEG2000")):
        with pytest.raises(ValueError, match="it is none of PNG"):
            only.decode(data)
    with pytest.raises(ValueError, match="it is none of PNG, JPEG, WEBP, GIF, BMP, TIFF"):
        Image().decode(EPS)


def test_further_formats_are_decoded_if_they_are_listed() -> None:
    data = _file(NOISE, "JPEG2000")
    assert np.array_equal(Image(formats=("JPEG2000",)).decode(data), np.asarray(NOISE))


def test_formats_that_are_decoded_with_the_lock_held_have_fewer_pixels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pictures, "_LOCKED", {"JPEG2000": 1000, "WEBP": 1000})
    with pytest.raises(ValueError, match="an image in JPEG2000 of more than 1000 pixels"):
        Image(formats=("JPEG2000",)).decode(_file(NOISE, "JPEG2000"))
    still = _file(NOISE, "WEBP")
    assert Image().decode(still).shape == (40, 30, 3), "decoded without the lock"
    moving = _file(NOISE, "WEBP", save_all=True, append_images=[NOISE.rotate(90)])
    with pytest.raises(ValueError, match="an animation in WEBP of more than 1000 pixels"):
        Image().decode(moving)


def _tiff(*entries: tuple[int, int, int, int]) -> bytes:
    packed = b"".join(struct.pack("<HHLL", *each) for each in entries)
    return struct.pack("<2sHLH", b"II", 42, 8, len(entries)) + packed


def test_structures_that_take_more_than_their_pixels_are_refused() -> None:
    data = _file(NOISE, "JPEG", progressive=True)
    start = data.index(b"\xff\xda")
    scan = data[start : data.index(b"\xff", start + 20)]
    with pytest.raises(ValueError, match="more than 100 scans"):
        Image().decode(data[:start] + scan * 200 + data[start:])
    with pytest.raises(ValueError, match="too many segments"):
        Image().decode(data[:2] + b"\xff\xe5\x00\x02" * 100_001 + data[2:])
    block = b"\xff\xe1\x00\x10Exif\0\0" + bytes(8)
    with pytest.raises(ValueError, match="too much EXIF"):
        Image().decode(data[:2] + block * 20 + data[2:])
    with pytest.raises(ValueError, match="too many numbers"):
        Image().decode(_tiff((256, 3, 1, 5), (273, 4, 2_000_000, 0)))


def test_scans_and_chunks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    progressive, baseline = (_file(NOISE, "JPEG", progressive=each) for each in (True, False))
    monkeypatch.setattr(pictures, "_MOST_SCANNED", 1200 * 5)
    with pytest.raises(ValueError, match="whose scans have more than 6000 pixels"):
        Image().decode(progressive)
    assert Image().decode(baseline).shape == (40, 30, 3)
    data = _file(NOISE, "PNG")
    at = data.index(b"IDAT") - 4
    chunk = struct.pack(">L4sL", 0, b"IDAT", zlib.crc32(b"IDAT"))
    assert Image().decode(data[:at] + chunk * 10 + data[at:]).shape == (40, 30, 3)
    with pytest.raises(ValueError, match="a PNG of more than 65536 chunks"):
        Image().decode(data[:at] + chunk * (1 << 16) + data[at:])


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
def test_a_tile_that_exceeds_its_picture_is_refused(order: str, kind: int) -> None:
    def tiff(side: int) -> bytes:
        packed = struct.pack(f"{order}HHL", 256, 3, 1) + struct.pack(f"{order}HH", 16, 0)
        for tag in (322, 323):
            value = struct.pack(
                f"{order}L" if kind == 4 else f"{order}HH", side, *[0] * (kind == 3)
            )
            packed += struct.pack(f"{order}HHL", tag, kind, 1) + value
        head = b"II" if order == "<" else b"MM"
        return head + struct.pack(f"{order}HLH", 42, 8, 3) + packed

    with pytest.raises(ValueError, match="tiles of more than 16777216 pixels"):
        Image().decode(tiff(16_000))
    with pytest.raises(ValueError, match="no image that can be read"):
        Image().decode(tiff(1000))


def test_a_large_bmp_in_runs_is_refused() -> None:
    def bmp(side: int) -> bytes:
        runs = (bytes([side, 7]) + b"\0\0") * side + b"\0\1"
        info = struct.pack("<LllHHLLllLL", 40, side, side, 1, 8, 1, len(runs), 0, 0, 256, 0)
        palette = bytes(each // 4 for each in range(1024))
        return struct.pack("<2sLHHL", b"BM", 1078 + len(runs), 0, 0, 1078) + info + palette + runs

    assert np.array_equal(Image("L").decode(bmp(200)), np.full((200, 200), 7))
    with pytest.raises(ValueError, match="a BMP in runs of more than 1000000 pixels"):
        Image().decode(
            bmp(200).replace(struct.pack("<ll", 200, 200), struct.pack("<ll", 2000, 2000))
        )


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_damaged_file_is_decoded_or_is_a_value_error(form: str) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6
    data = _file(NOISE, form, **({"exif": exif} if form in ("PNG", "JPEG", "WEBP") else {}))
    for cut in range(0, len(data), 23):
        _decoded(data[:cut])
    for _ in range(300):
        damaged = bytearray(data)
        for place in _RNG.integers(0, min(len(data), 400), 4):
            damaged[place] = _RNG.integers(0, 256)
        _decoded(bytes(damaged))


def _decoded(data: bytes) -> None:
    with suppress(ValueError):  # any other class would end the test
        Image(max_pixels=100_000).decode(data)


def test_a_decoders_exception_of_any_class_is_a_value_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error in (ZeroDivisionError("x"), MemoryError(), KeyError(3), UserWarning("corrupt")):

        def fail(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(Pillow, "open", fail)
        with pytest.raises(ValueError, match="no image that can be read") as caught:
            Image().decode(b"x")
        assert caught.value.__context__ is None


@pytest.mark.parametrize("form", [*pictures.MEDIA])
@pytest.mark.parametrize(
    "array",
    [
        np.asarray(NOISE),
        np.asarray(NOISE.convert("RGBA")),
        np.asarray(NOISE.convert("L")),
        RAMP,
        np.asarray(NOISE)[::2, ::-1],
    ],
    ids=["RGB", "RGBA", "L", "16", "strided"],
)
def test_a_picture_is_encoded_in_every_format(form: str, array: Any) -> None:
    data = pictures.encode(array, form)
    with Pillow.open(io.BytesIO(data)) as image:
        assert (image.format, image.size) == (form, (array.shape[1], array.shape[0]))
    if form in ("PNG", "TIFF", "WEBP") and array.dtype == np.uint8 and array.ndim == 3:
        mode = "RGB" if array.shape[2] == 3 else "RGBA"
        assert np.array_equal(Image(mode).decode(data), array)
    if form == "PNG" and array.dtype == np.uint16:
        assert np.array_equal(Image("I;16").decode(data), array)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 2, 3)),
        np.zeros((2, 2, 2), np.uint8),
        np.zeros((2, 2, 3), np.uint16),
        np.zeros((0, 2), np.uint8),
        np.zeros(2, np.uint8),
    ],
)
def test_other_arrays_are_no_pictures(array: Any) -> None:
    with pytest.raises(ValueError, match="a picture is uint8"):
        pictures.encode(array, "PNG")


@pytest.mark.parametrize(
    ("mode", "shape"),
    [
        ("RGB", (40, 30, 3)),
        ("L", (40, 30)),
        ("1", (40, 30, 3)),
        ("P", (40, 30, 3)),
        ("LA", (40, 30, 4)),
        ("CMYK", (40, 30, 3)),
        ("I;16", (40, 30)),
    ],
)
def test_an_image_of_pillow_is_an_array(mode: str, shape: tuple[int, ...]) -> None:
    grey = NOISE.convert("L")
    image = grey.convert(mode) if mode in ("I;16", "LA") else NOISE.convert(mode)
    array = Image().decode(image)
    assert array.shape == shape
    assert array.flags.writeable
