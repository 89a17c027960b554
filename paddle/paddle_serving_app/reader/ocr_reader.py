"""Pre- and postprocessing of text recognisers: images of lines to inputs, outputs to text."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader.arrays import image_array, numeric_array
from paddle_serving_app.reader.functional import scaled
from paddle_serving_app.reader.libraries import opencv

ENGLISH = "0123456789abcdefghijklmnopqrstuvwxyz"
GREEDY = "ctc_greedy_decoder_0.tmp_0"  # output of recognisers with a decoder of their own
SOFTMAX = "softmax_0.tmp_0"
PROBABILITIES = "save_infer_model/scale_0.tmp_1"  # output of recognisers since PP-OCR 2.0
BLANK = 0  # class of CTC's blank in PROBABILITIES


class OCRReader:
    """Pre- and postprocessing of a text recogniser.

    Args:
        algorithm: no effect.
        image_shape: channels, height and width of the recogniser's input.
        char_type: ``ch`` for the letters in ``char_dict_path`` and an input width that depends on
            the images; ``en`` for digits, lower-case letters and the width of ``image_shape``.
        batch_num: no effect.
        char_dict_path: UTF-8 file of the recogniser's letters, one per line, in the order of its
            classes.

    Raises:
        OSError: the dictionary cannot be read.
        ValueError: ``char_type`` is neither ``ch`` nor ``en``.
    """

    def __init__(
        self,
        algorithm: str = "CRNN",
        image_shape: Sequence[int] = (3, 32, 320),
        char_type: str = "ch",
        batch_num: int = 1,
        char_dict_path: str | os.PathLike[str] = "./ppocr_keys_v1.txt",
    ) -> None:
        opencv("OCRReader")
        if char_type not in ("ch", "en"):
            raise ValueError(f"OCRReader takes the char_type 'ch' or 'en', got {char_type!r}")
        self.rec_image_shape = image_shape
        self.character_type = char_type
        self.rec_batch_num = batch_num
        self._characters = ENGLISH if char_type == "en" else _dictionary(char_dict_path)

    def resize_norm_img(self, img: NDArray[Any], max_wh_ratio: float) -> NDArray[np.float32]:
        """Resize and normalize an image for the recogniser.

        Args:
            img: ``[height, width, 3]`` in BGR order, from 0 to 255.
            max_wh_ratio: width / height of the batch's widest image; it determines the input width
                if ``char_type`` is ``ch``.

        Returns:
            ``[3, height, width]``, from -1 to 1, zero-padded at the right.

        Raises:
            TypeError: the image is not a numeric array.
            ValueError: the image has no pixels, or would have none after resizing.
        """
        array = image_array("OCRReader.resize_norm_img", img)
        channels, height, width = self.rec_image_shape
        if self.character_type == "ch":
            width = int(32 * max_wh_ratio)
        used = min(width, math.ceil(height * (array.shape[1] / array.shape[0])))
        resized = scaled("OCRReader.resize_norm_img", array, used, height)
        values = resized.astype(np.float32).transpose(2, 0, 1) / np.float32(255)
        values -= np.float32(0.5)
        values /= np.float32(0.5)
        result = np.zeros((channels, height, width), dtype=np.float32)
        result[:, :, :used] = values
        return result

    def preprocess(self, img_list: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        """Call ``resize_norm_img`` for one image with its own width / height.

        Given several, the original returned the first and lost the others.

        Raises:
            ValueError: ``img_list`` does not have exactly one image.
        """
        if len(img_list) != 1:
            raise ValueError(
                f"OCRReader.preprocess takes one image, got {len(img_list)}: give each to"
                " resize_norm_img, with width / height of the widest, and stack the results"
            )
        array = image_array("OCRReader.preprocess", img_list[0])
        return self.resize_norm_img(array, array.shape[1] / array.shape[0])

    def postprocess(self, outputs: Mapping[str, Any], with_score: bool = False) -> list[list[Any]]:
        """Convert the output of a recogniser with a decoder of its own to texts.

        Args:
            outputs: ``ctc_greedy_decoder_0.tmp_0``, the decoded classes ``[letters, 1]``, and its
                ``.lod``, the offsets of the images. For scores also ``softmax_0.tmp_0``, the
                probabilities ``[steps, classes]`` with the blank as last class, and its ``.lod``.
            with_score: also return the mean probability of the steps that are not blank; NaN if
                all are.

        Returns:
            For each image ``[text]`` or ``[text, score]``.

        Raises:
            ValueError: an output is missing, or a class has no letter.
        """
        user = "OCRReader.postprocess"
        classes = numeric_array(user, _output(user, outputs, GREEDY)).reshape(-1)
        starts = _output(user, outputs, f"{GREEDY}.lod")
        blank = len(self._characters)
        result: list[list[Any]] = []
        for begin, end in pairwise(starts):
            line = classes[begin:end]
            result.append([self._text(user, line[line != blank])])
        if with_score:
            steps = numeric_array(user, _output(user, outputs, SOFTMAX), 2).astype(np.float32)
            starts = _output(user, outputs, f"{SOFTMAX}.lod")
            for line_result, (begin, end) in zip(result, pairwise(starts), strict=True):
                best = steps[begin:end].argmax(axis=1)
                line_result.append(_mean(steps[begin:end].max(axis=1)[best != steps.shape[1] - 1]))
        return result

    def postprocess_ocrv2(
        self, outputs: Mapping[str, Any], with_score: bool = False
    ) -> list[tuple[str, np.floating[Any]]]:
        """Convert a recogniser's probabilities to texts, by greedy CTC decoding.

        Args:
            outputs: ``save_infer_model/scale_0.tmp_1``, probabilities ``[images, steps, classes]``.
                Classes: the blank, the dictionary's letters, and a space if ``char_type`` is
                ``ch``.
            with_score: no effect; the score is always returned.

        Returns:
            For each image its text and the mean probability of its letters, NaN without letters.

        Raises:
            TypeError: the output is not a numeric array.
            ValueError: the output is missing or not three-dimensional, or a class has no letter.
        """
        user = "OCRReader.postprocess_ocrv2"
        steps = numeric_array(user, _output(user, outputs, PROBABILITIES), 3)
        letters = self._characters + " " * (self.character_type == "ch")
        return [self._line(user, line, letters) for line in steps]

    def _line(self, user: str, steps: NDArray[Any], letters: str) -> tuple[str, np.floating[Any]]:
        best = steps.argmax(axis=1)
        kept = best != BLANK
        kept[1:] &= best[1:] != best[:-1]
        return _spelled(user, best[kept] - 1, letters), _mean(steps.max(axis=1)[kept])

    def _text(self, user: str, classes: NDArray[Any]) -> str:
        return _spelled(user, classes, self._characters)


def _spelled(user: str, places: NDArray[Any], letters: str) -> str:
    if places.size and not 0 <= places.min() <= places.max() < len(letters):
        raise ValueError(
            f"{user} got letters from {places.min()} to {places.max()};"
            f" the dictionary has {len(letters)}"
        )
    return "".join(letters[place] for place in places)


def _mean(probabilities: NDArray[Any]) -> np.floating[Any]:
    """Return the mean in the array's precision; NaN if it is empty, without numpy's warning."""
    mean: np.floating[Any] = np.mean(probabilities) if probabilities.size else np.float64(np.nan)
    return mean


def _output(user: str, outputs: Mapping[str, Any], name: str) -> Any:
    if name not in outputs:
        raise ValueError(f"{user} takes the output {name!r}, got {sorted(outputs)}")
    return outputs[name]


def _dictionary(path: str | os.PathLike[str]) -> str:
    lines = Path(path).read_bytes().decode("utf-8").split("\n")
    return "".join(line.strip("\r\n") for line in lines)
