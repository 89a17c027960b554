"""The OCR example's functions over arrays, and its ops driven by hand."""

import base64
import io
import itertools
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

from tests.examples.ocr_chain import Chain, Refused, as_text, chain, example, overlap

detection = example().detection
geometry = example().geometry
models = example().models
orientation = example().orientation
picture = example().picture
pictures = example().pictures
recognition = example().recognition
service = example().ocr_service
strips = example().strips

BOX = np.array([[10, 20], [110, 24], [109, 54], [9, 50]], dtype=np.float32)


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


def test_a_picture_comes_out_with_blue_first() -> None:
    pixels = picture.decode_picture(encoded(Image.new("RGB", (4, 3), (10, 20, 30))))
    assert pixels.shape == (3, 4, 3)
    assert pixels.dtype == np.uint8
    assert pixels[0, 0].tolist() == [30, 20, 10]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "LA", "RGBA"])
def test_white_stays_white_in_every_colour_mode(mode: str) -> None:
    image = Image.new("RGB", (4, 3), "white").convert(mode)
    kind = "TIFF" if mode == "CMYK" else "PNG"
    assert (picture.decode_picture(encoded(image, kind)) == 255).all()


def test_sixteen_bits_of_grey_are_scaled_not_clipped() -> None:
    image = Image.fromarray(np.full((3, 4), 128 << 8, dtype=np.uint16))
    assert (picture.decode_picture(encoded(image)) == 128).all()


def test_transparent_pixels_show_white() -> None:
    assert (picture.decode_picture(encoded(Image.new("RGBA", (4, 3), (0, 0, 0, 0)))) == 255).all()


def test_line_breaks_in_the_base64_text_are_ignored() -> None:
    text = encoded(Image.new("RGB", (40, 30)))
    broken = base64.encodebytes(base64.b64decode(text)).decode()
    assert "\n" in broken
    assert picture.decode_picture(broken).shape == (30, 40, 3)


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


def test_a_sliver_is_refused() -> None:
    with pytest.raises(picture.TooNarrowError, match="101 x 1 pixels"):
        picture.decode_picture(encoded(Image.new("L", (101, 1))))
    assert picture.decode_picture(encoded(Image.new("L", (100, 1)))).shape == (1, 100, 3)


# Boxes


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_corners_in_any_order_come_clockwise_from_the_top_left(order: tuple[int, ...]) -> None:
    assert geometry.clockwise(BOX[list(order)]).tolist() == BOX.tolist()


def test_a_grown_box_has_moved_outwards_by_area_over_perimeter() -> None:
    box = np.array([[100, 100], [300, 100], [300, 140], [100, 140]], dtype=np.float32)
    grown, short_side = geometry.enclosing_box(geometry.grown(box, 1.6))
    distance = 1.6 * (200 * 40) / 480
    assert np.abs(grown - box).max() == pytest.approx(distance, abs=1)
    assert short_side == pytest.approx(40 + 2 * distance, abs=2)


def test_rows_are_read_from_left_to_right_even_when_the_right_cell_stands_higher() -> None:
    def at(x: int, y: int) -> Any:
        return np.array([[x, y], [x + 50, y], [x + 50, y + 9], [x, y + 9]], dtype=np.float32)

    ordered = geometry.reading_order([at(10, 80), at(300, 20), at(150, 24), at(10, 28)])
    assert [box[0].tolist() for box in ordered] == [[10, 28], [150, 24], [300, 20], [10, 80]]


def test_an_upright_box_cuts_out_its_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    box = np.array([[10, 5], [70, 5], [70, 35], [10, 35]], dtype=np.float32)
    assert (geometry.cut_out(pixels, box) == pixels[5:35, 10:70]).all()


def test_text_that_runs_downwards_is_laid_on_its_side() -> None:
    pixels = np.zeros((90, 60, 3), dtype=np.uint8)
    pixels[10:20, 10:30] = 255  # the top of the box
    box = np.array([[10, 10], [30, 10], [30, 80], [10, 80]], dtype=np.float32)
    crop = geometry.cut_out(pixels, box)
    assert crop.shape == (20, 70, 3)
    assert crop[:, :9].all()
    assert not crop[:, 11:].any()


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


def test_the_detector_sees_sides_that_are_multiples_of_32_and_values_around_zero() -> None:
    pixels = np.zeros((100, 301, 3), dtype=np.uint8)
    pixels[:, 150:] = 255
    values = detection.detector_input(pixels)
    assert values.shape == (1, 3, 736, 2208)
    assert values.dtype == np.float32
    assert (values.min(), values.max()) == (-1, 1)
    assert values.flags.c_contiguous


def test_a_tall_sliver_is_enlarged_only_as_far_as_memory_allows() -> None:
    values = detection.detector_input(np.zeros((2000, 32, 3), dtype=np.uint8))
    assert 4_000_000 < values[0, 0].size < 5_000_000


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


def test_boxes_never_leave_the_picture() -> None:
    working = detection.working_picture(np.zeros((40, 640, 3), dtype=np.uint8))
    assert working.top > 0
    huge = np.array([[-5, 0], [900, 0], [900, 900], [-5, 900]], dtype=np.float32)
    (box,) = detection.in_original([huge], working)
    assert box.tolist() == [[0, 0], [640, 0], [640, 40], [0, 40]]


def test_a_core_in_the_map_becomes_a_box_around_the_whole_line() -> None:
    probability = np.zeros((320, 640), dtype=np.float32)
    probability[100:120, 80:480] = 0.9
    (box,) = detection.boxes_from_map(probability, 1280, 640)
    assert box[:, 0].min() < 160 < 960 < box[:, 0].max()
    assert 160 < box[:, 1].min() < 200 < 240 < box[:, 1].max() < 280


def test_the_weak_ends_of_a_line_belong_to_it() -> None:
    probability = np.zeros((320, 640), dtype=np.float32)
    probability[100:120, 80:480] = 0.35
    probability[100:120, 120:440] = 0.9
    (box,) = detection.boxes_from_map(probability, 640, 320)
    assert box[:, 0].min() < 80 < 480 < box[:, 0].max()


@pytest.mark.parametrize("value", [0.29, 0.45])
def test_a_faint_core_is_no_line(value: float) -> None:
    probability = np.zeros((320, 640), dtype=np.float32)
    probability[100:120, 80:480] = value
    assert detection.boxes_from_map(probability, 640, 320) == []


def test_specks_are_no_lines() -> None:
    probability = np.zeros((320, 640), dtype=np.float32)
    probability[::40, ::40] = 1
    assert detection.boxes_from_map(probability, 640, 320) == []


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


def test_strips_are_scaled_in_proportion_and_padded_with_zeros() -> None:
    white = np.full((24, 50, 3), 255, dtype=np.uint8)
    values = strips.padded_strips([white], 192)
    assert values.shape == (1, 3, 48, 192)
    assert (values[..., :100] == 1).all()
    assert (values[..., 100:] == 0).all()


def test_a_strip_that_would_be_too_wide_is_squeezed() -> None:
    crop = np.zeros((24, 500, 3), dtype=np.uint8)
    crop[:, -50:] = 255
    values = strips.padded_strips([crop], 192)
    assert (values[..., -1] == 1).all()
    assert (values[..., 0] == -1).all()


def test_a_batch_for_the_recogniser_is_as_wide_as_its_widest_crop_needs() -> None:
    crops = [np.zeros((48, width, 3), dtype=np.uint8) for width in (900, 40, 50, 60, 70, 80, 90)]
    shapes = [batch.shape for batch in recognition.recogniser_inputs(crops)]
    assert shapes == [(6, 3, 48, 320), (1, 3, 48, 900)]


# Orientation and recognition


def test_only_crops_that_surely_stand_on_their_heads_are_turned() -> None:
    crops = [np.full((4, 10 + i, 3), i, dtype=np.uint8) for i in range(3)]
    for crop in crops:
        crop[0, 0] = 255
    scores = np.array([[0.05, 0.95], [0.11, 0.89], [0.9, 0.1]], dtype=np.float32)
    upright = orientation.turned_upright(crops, [scores])
    assert [crop[0, 0].max() == 255 for crop in upright] == [False, True, True]
    assert upright[0][-1, -1].max() == 255
    assert all(crop[0, 0].max() == 255 for crop in crops), "what was given must not change"


def test_each_crop_gets_the_answer_to_its_own_strip() -> None:
    crops = [np.zeros((48, 400 - i, 3), dtype=np.uint8) for i in range(8)]  # widest first
    answers = [np.zeros((6, 3, 9), dtype=np.float32), np.zeros((2, 3, 9), dtype=np.float32)]
    for place in range(8):
        answers[place // 6][place % 6, :, place + 1] = 1
    lines = recognition.read_lines(crops, answers, "abcdefgh")
    assert [text for text, _ in lines] == list("hgfedcba")


def test_repeated_letters_are_one_unless_a_blank_stands_between() -> None:
    best = [0, 1, 1, 0, 1, 2, 2, 2, 0, 0]
    steps = np.zeros((len(best), 3), dtype=np.float32)
    steps[range(len(best)), best] = [0.9, 0.6, 1, 0.9, 0.8, 0.7, 1, 1, 0.9, 0.9]
    text, confidence = recognition.read_line(steps, "ab")
    assert text == "aab"
    assert confidence == pytest.approx((0.6 + 0.8 + 0.7) / 3, abs=1e-6)


def test_only_blanks_are_no_text() -> None:
    steps = np.zeros((5, 3), dtype=np.float32)
    steps[:, 0] = 1
    assert recognition.read_line(steps, "ab") == ("", 0.0)


# Models and pictures


def test_the_models_are_copied_once_with_a_dictionary_that_fits(tmp_path: Path) -> None:
    models.install_models(tmp_path)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {f"{name}/model.onnx" for name in models.SOURCES} | {"rec/characters.txt"}
    characters = models.read_characters(tmp_path)
    assert len(characters) + 1 == 6625, "one class per letter, and the blank"
    assert characters[-1] == " "
    kept = tmp_path / "det" / "model.onnx"
    kept.write_bytes(b"the user's own")
    models.install_models(tmp_path)
    assert kept.read_bytes() == b"the user's own"


def test_without_the_package_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match="pip install"):
        models.install_models(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_drawn_pictures_are_the_same_every_time(tmp_path: Path) -> None:
    first = pictures.draw_pictures(tmp_path / "a")
    second = pictures.draw_pictures(tmp_path / "b")
    assert len(first) == len(pictures.GOOD) + 1
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()


# The ops


@pytest.fixture
def ops() -> Chain:
    return chain()


def test_a_plain_sheet_is_read_as_it_was_drawn(ops: Chain) -> None:
    lines = ops.read(encoded(pictures.plain()))
    found = "".join(line["text"] for line in lines).replace(" ", "")
    assert found == "".join(pictures.PLAIN_LINES).replace(" ", "")
    assert all(0.5 <= line["confidence"] <= 1 for line in lines)
    first = lines[0]["box"]
    assert overlap(first, [[60, 45], [672, 45], [672, 80], [60, 80]]) > 0.9


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
