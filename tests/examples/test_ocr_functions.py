"""The OCR example's functions over arrays, and its ops driven by hand."""

import base64
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.examples.ocr_chain import Chain, Refused, as_text, chain, example

detection = example().detection
geometry = example().geometry
models = example().models
orientation = example().orientation
picture = example().picture
pictures = example().pictures
recognition = example().recognition
service = example().ocr_service
strips = example().strips


def encoded(image: Image.Image, kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return as_text(buffer.getvalue())


def note(text: str) -> str:
    """A small, square sheet with one line, which the detector is quick with."""
    page = pictures.sheet(320, 320)
    pictures.write(page, 30, 120, text, pictures.font("DejaVuSans", 36))
    return encoded(page)


def png_header(width: int, height: int) -> str:
    """A PNG that claims a size and holds nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    )
    return as_text(b"\x89PNG\r\n\x1a\n" + chunks)


# Pictures


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "must hold a picture"),
        (np.zeros(3), "must hold a picture"),
        ("not base64!", "not base64"),
        ("\u00e4", "not base64"),
        ("", "not a picture"),
        (as_text(b"plain words"), "not a picture"),
        (as_text(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "not a picture"),
        (as_text(b"\x89PNG\r\n\x1a\n"), "not a picture"),
        (png_header(30, 30), "damaged"),
    ],
)
def test_what_is_no_picture_is_refused_with_a_reason(value: Any, said: str) -> None:
    with pytest.raises(picture.NotAPictureError, match=said):
        picture.decode_picture(value)


@settings(deadline=None)
@given(cut=st.floats(0.01, 0.95), flips=st.lists(st.integers(0, 10_000), max_size=5))
def test_damaged_files_are_read_or_refused_but_never_break_anything(
    cut: float, flips: list[int]
) -> None:
    data = bytearray(base64.b64decode(encoded(pictures.small())))
    for place in flips:
        data[place % len(data)] ^= 0x55
    try:
        pixels = picture.decode_picture(as_text(bytes(data[: int(len(data) * cut)])))
    except picture.PictureError:
        return
    assert pixels.ndim == 3


@pytest.mark.parametrize("size", [(8001, 8000), (10_000, 10_000), (60_000, 60_000)])
def test_a_picture_over_the_limit_is_refused_by_its_header(size: tuple[int, int]) -> None:
    # The file holds no pixels at all: decoding it would have failed in another way.
    with pytest.raises(picture.TooLargeError, match="at most 64 million"):
        picture.decode_picture(png_header(*size))


# Boxes


def test_rows_are_read_from_left_to_right_even_when_the_right_cell_stands_higher() -> None:
    def at(x: int, y: int) -> Any:
        return np.array([[x, y], [x + 50, y], [x + 50, y + 9], [x, y + 9]], dtype=np.float32)

    ordered = geometry.reading_order([at(10, 80), at(300, 20), at(150, 24), at(10, 28)])
    assert [box[0].tolist() for box in ordered] == [[10, 28], [150, 24], [300, 20], [10, 80]]


# Detection


@settings(deadline=None)
@given(width=st.integers(1, 3000), height=st.integers(1, 3000))
def test_every_picture_is_brought_into_the_detectors_range(width: int, height: int) -> None:
    assume(max(width, height) <= picture.MAX_ASPECT * min(width, height))
    assume(width * height < 1_000_000)  # keeps the test quick
    working = detection.working_picture(np.zeros((height, width, 3), dtype=np.uint8))
    rows, columns = working.pixels.shape[:2]
    assert rows > detection.SHORTEST_SIDE or columns > detection.SHORTEST_SIDE
    assert columns <= 8.1 * rows
    ratio = min(736 / min(rows, columns), (detection.DETECTOR_PIXELS / (rows * columns)) ** 0.5)
    assert max(1, ratio) ** 2 * rows * columns < 5_000_000


@pytest.mark.parametrize("size", [(900, 560), (2600, 1000), (20, 90), (1300, 48), (700, 2100)])
def test_a_box_in_the_working_picture_is_found_again_in_the_original(size: tuple[int, int]) -> None:
    width, height = size
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = 255
    working = detection.working_picture(pixels)
    y, x = (axis[[0, -1]] for axis in np.nonzero(working.pixels.max(axis=2) > 127))
    left, right, top, bottom = x.min(), working.pixels.shape[1] // 2, y[0], y[1] + 1
    box = np.array([[left, top], [right, top], [right, bottom], [left, bottom]], dtype=np.float32)
    (found,) = detection.in_original([box], working)
    w4, w2, h4, h2 = width // 4, width // 2, height // 4, height // 2
    expected = [[w4, h4], [w2, h4], [w2, h2], [w4, h2]]
    assert np.abs(found - expected).max() <= max(2.0, 2 * max(working.scale))


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), level=st.floats(0.2, 0.9))
def test_any_map_gives_boxes_that_can_be_cut_out(seed: int, level: float) -> None:
    noise = np.random.default_rng(seed).random((64, 96), dtype=np.float32)
    probability = (cv2.GaussianBlur(noise, (0, 0), 3) * 2 * level).astype(np.float32)
    pixels = np.zeros((40, 60, 3), dtype=np.uint8)
    for box in detection.boxes_from_map(probability, 60, 40):
        assert (box >= 0).all()
        assert (box <= [59, 39]).all()
        assert min(geometry.cut_out(pixels, box).shape[:2]) >= 1


# Strips


@given(widths=st.lists(st.integers(1, 400), max_size=30))
def test_crops_are_grouped_by_six_from_narrow_to_wide(widths: list[int]) -> None:
    crops = [np.zeros((20, width, 3), dtype=np.uint8) for width in widths]
    batches = strips.by_shape(crops)
    flat = [i for batch in batches for i in batch]
    assert sorted(flat) == list(range(len(widths)))
    assert [widths[i] for i in flat] == sorted(widths)
    assert [len(batch) for batch in batches[:-1]] == [6] * (len(batches) - 1)
    assert all(1 <= len(batch) <= 6 for batch in batches)


# Orientation and recognition


# Models and pictures


def test_without_the_package_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match="pip install"):
        models.install_models(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# The ops


@pytest.fixture
def ops() -> Chain:
    return chain()


def test_lines_on_their_heads_are_read(ops: Chain) -> None:
    texts = [line["text"] for line in ops.read(encoded(pictures.upside_down()))]
    assert "Turn the sheet around" in texts


def test_a_picture_without_text_gives_an_empty_list_and_skips_two_models(ops: Chain) -> None:
    before = dict(ops.runs)
    assert ops.read(encoded(pictures.blank())) == []
    assert ops.runs == {**before, "det": before["det"] + 1}


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (as_text(b"no picture"), 101),
        (png_header(9000, 8000), 102),
        (encoded(Image.new("L", (10, 1001))), 103),
    ],
)
def test_a_refused_picture_has_its_own_number(ops: Chain, value: str, code: int) -> None:
    with pytest.raises(Refused) as refused:
        ops.read(value)
    assert refused.value.code is service.OcrErrCode(code)
    assert str(refused.value)


def test_a_request_without_the_key_is_refused(ops: Chain) -> None:
    with pytest.raises(Refused) as refused:
        ops.reply({"picture": "?"})
    assert refused.value.code is service.OcrErrCode.NOT_A_PICTURE


def test_two_requests_in_one_op_at_the_same_time_do_not_mix(ops: Chain) -> None:
    values = [note("first note"), note("second one")]
    alone = [ops.read(value) for value in values]
    assert [line["text"] for (line,) in alone] == ["first note", "second one"]
    inputs: list[dict[str, Any]] = [{"@DAGExecutor": {"image": value}} for value in values]
    for op in ops.ops:
        fetched = [ops.start(op, given) for given in inputs]
        results = [ops.finish(op, given, got) for given, got in zip(inputs, fetched, strict=True)]
        inputs = [{op.name: result} for result in results]
    together = [given["rec"]["result"] for given in inputs]
    assert together == [service.json.dumps(lines, ensure_ascii=False) for lines in alone]


def test_the_reply_tells_the_time_of_every_hook(ops: Chain) -> None:
    reply = ops.reply({"image": note("in time")})
    assert all(isinstance(value, str) for value in reply.values())
    times = service.json.loads(reply["times"])
    assert list(times) == ["det", "cls", "rec"]
    for hooks in times.values():
        assert list(hooks) == ["preprocess", "process", "postprocess"]
        assert all(milliseconds >= 0 for milliseconds in hooks.values())
