"""Images of lines to a recogniser's input, and its output to text."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_serving_app.reader import OCRReader

PROBABILITIES = "save_infer_model/scale_0.tmp_1"
LETTERS = "abc天"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> OCRReader:
    path = tmp_path_factory.mktemp("ocr") / "keys.txt"
    path.write_bytes("a\nb\r\nc\n天\n".encode())
    return OCRReader(char_dict_path=path)


def steps(*classes: int, count: int = 6, probability: float = 0.5) -> np.ndarray:
    result = np.full((len(classes), count), (1 - probability) / (count - 1), dtype=np.float32)
    result[np.arange(len(classes)), classes] = probability
    return result


def test_a_line_is_resized_to_the_height_and_padded_on_the_right(reader: OCRReader) -> None:
    picture = np.full((16, 24, 3), (0, 51, 255), dtype=np.uint8)
    values = reader.resize_norm_img(picture, 2.6)
    # 32 x 2.6 is 83.2; the image is 1.5 times as wide as high.
    assert values.shape == (3, 32, 83)
    assert values.dtype == np.float32
    for channel, value in enumerate((-1, -0.6, 1)):
        assert np.abs(values[channel, :, :48] - value).max() < 1e-6
    assert not values[:, :, 48:].any()
    # At most as wide as the batch, then squeezed.
    assert reader.resize_norm_img(picture, 1).shape == (3, 32, 32)
    assert reader.resize_norm_img(picture, 1).all()


def test_the_width_is_computed_for_a_height_of_32(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a")
    reader = OCRReader(image_shape=[3, 48, 320], char_dict_path=tmp_path / "keys")
    values = reader.resize_norm_img(np.zeros((24, 48, 3), np.uint8), 2)
    # 96 columns at this height, squeezed into 64.
    assert values.shape == (3, 48, 64)
    assert values.all()


def test_preprocess_takes_one_image_at_its_own_width(reader: OCRReader) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (20, 50, 3), dtype=np.uint8)
    assert np.array_equal(reader.preprocess([picture]), reader.resize_norm_img(picture, 2.5))
    for several in ([], [picture, picture]):
        with pytest.raises(ValueError, match=r"OCRReader.preprocess takes one image, got [02]"):
            reader.preprocess(several)


def test_english_readers_have_a_fixed_width_and_their_own_letters() -> None:
    english = OCRReader(char_type="en", image_shape=[3, 32, 100])
    assert english.resize_norm_img(np.zeros((32, 32, 3), np.uint8), 9).shape == (3, 32, 100)
    answer = {PROBABILITIES: steps(11, 0, 11, 36, count=37)[np.newaxis]}
    assert english.postprocess_ocrv2(answer)[0][0] == "aaz"
    with pytest.raises(ValueError, match="got letters from 36 to 36; the dictionary has 36"):
        english.postprocess_ocrv2({PROBABILITIES: steps(37, count=38)[np.newaxis]})


def test_repeated_letters_are_merged_and_blanks_removed(reader: OCRReader) -> None:
    # Blank, a, a, blank, a, space, the last letter; the second image has blanks only.
    lines = np.stack([steps(0, 1, 1, 0, 1, 5, 4), steps(*[0] * 7)])
    lines[0, 1, 1] = 0.75  # the first of two a; the second is ignored
    lines[0, 2, 1] = 0.625
    (text, score), (nothing, none) = reader.postprocess_ocrv2({PROBABILITIES: lines})
    assert text == "aa 天"
    assert isinstance(score, np.float32)
    assert score == (0.75 + 0.5 + 0.5 + 0.5) / 4
    assert nothing == ""
    assert np.isnan(none)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_decoding_merges_equal_consecutive_classes(reader: OCRReader, classes: list[int]) -> None:
    answer = {PROBABILITIES: steps(*classes)[np.newaxis]}
    letters = LETTERS + " "
    expected = "".join(letters[label - 1] for label, _ in groupby(classes) if label)
    assert reader.postprocess_ocrv2(answer)[0][0] == expected


@pytest.mark.parametrize("plain", [False, True])
def test_outputs_that_the_model_has_decoded_are_read(reader: OCRReader, plain: bool) -> None:
    # Classes are the letters', and 4 is the blank; nothing is grouped any more.
    outputs: dict[str, Any] = {
        "ctc_greedy_decoder_0.tmp_0": np.array([[0], [0], [3], [4], [2]]),
        "ctc_greedy_decoder_0.tmp_0.lod": np.array([0, 3, 5]),
        "softmax_0.tmp_0": np.concatenate(
            [steps(0, 4, 3, count=5), steps(4, 4, count=5, probability=0.75)]
        ),
        "softmax_0.tmp_0.lod": np.array([0, 3, 5]),
    }
    if plain:  # as decoded from JSON
        outputs = {name: value.tolist() for name, value in outputs.items()}
    before = str(outputs)
    assert reader.postprocess(outputs) == [["aa天"], ["c"]]
    (first, score), (second, none) = reader.postprocess(outputs, with_score=True)
    assert (first, second) == ("aa天", "c")
    assert isinstance(score, np.float32)
    assert score == 0.5
    assert np.isnan(none)
    assert str(outputs) == before


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda r: OCRReader(char_type="fr"), ValueError, "char_type 'ch' or 'en', got 'fr'"),
        (lambda r: OCRReader(char_dict_path="none.txt"), FileNotFoundError, "none.txt"),
        (lambda r: r.postprocess({}), ValueError, "takes the output 'ctc_greedy_decoder_0.tmp_0'"),
        (lambda r: r.postprocess_ocrv2({"a": 1}), ValueError, r"scale_0.tmp_1', got \['a'\]"),
        (
            lambda r: r.postprocess_ocrv2({PROBABILITIES: steps(1)}),
            ValueError,
            "OCRReader.postprocess_ocrv2 takes an array of 3 axes",
        ),
        (
            lambda r: r.postprocess_ocrv2({PROBABILITIES: steps(6, count=7)[np.newaxis]}),
            ValueError,
            "got letters from 5 to 5; the dictionary has 5",
        ),
        (
            lambda r: r.postprocess(
                {
                    "ctc_greedy_decoder_0.tmp_0": [[-1]],
                    "ctc_greedy_decoder_0.tmp_0.lod": [0, 1],
                }
            ),
            ValueError,
            "OCRReader.postprocess got letters from -1",
        ),
        (lambda r: r.resize_norm_img(None, 1), TypeError, "OCRReader.resize_norm_img takes"),
        (
            lambda r: r.resize_norm_img(np.zeros((99, 1, 3), np.uint8), 0.01),
            ValueError,
            "would make an image of 0 x 32",
        ),
    ],
)
def test_errors_name_the_method_and_the_invalid_argument(
    reader: OCRReader, call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(reader)
