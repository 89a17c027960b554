"""What a text recogniser takes and answers: pictures of lines in, text out."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddle_serving_app.reader.arrays import numbers, picture
from paddle_serving_app.reader.functional import scaled
from paddle_serving_app.reader.libraries import opencv

ENGLISH = "0123456789abcdefghijklmnopqrstuvwxyz"
GREEDY = "ctc_greedy_decoder_0.tmp_0"  # outputs of recognisers that decode by themselves
SOFTMAX = "softmax_0.tmp_0"
PROBABILITIES = "save_infer_model/scale_0.tmp_1"  # output of recognisers since PP-OCR 2.0
BLANK = 0  # in the latter, the class that separates letters


class OCRReader:
    """Before and after a text recogniser.

    Args:
        algorithm: no effect.
        image_shape: channels, height and width of what the recogniser takes.
        char_type: ``ch`` for the letters in ``char_dict_path`` and widths that follow the
            pictures; ``en`` for digits, small letters and the width of ``image_shape``.
        batch_num: no effect.
        char_dict_path: UTF-8, the recogniser's letters in the order of its classes, one a line.

    Raises:
        OSError: the dictionary cannot be read.
        ValueError: another ``char_type``.
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
        """A picture as the recogniser takes it.

        Args:
            img: ``[height, width, 3]``, blue first, from 0 to 255.
            max_wh_ratio: width over height of the widest picture of the batch, on which the width
                depends with ``char_type`` ``ch``.

        Returns:
            ``[3, height, width]``, from -1 to 1, with zeros to the right.

        Raises:
            TypeError: not an array of numbers.
            ValueError: a picture without pixels, or so narrow that none would be left.
        """
        array = picture("OCRReader.resize_norm_img", img)
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
        """``resize_norm_img`` of one picture, at its own width.

        The original returns the first of several, and loses the others.

        Raises:
            ValueError: not exactly one picture.
        """
        if len(img_list) != 1:
            raise ValueError(
                f"OCRReader.preprocess takes one picture, got {len(img_list)}: give each to"
                " resize_norm_img, with width / height of the widest, and stack the results"
            )
        array = picture("OCRReader.preprocess", img_list[0])
        return self.resize_norm_img(array, array.shape[1] / array.shape[0])

    def postprocess(self, outputs: Mapping[str, Any], with_score: bool = False) -> list[list[Any]]:
        """Texts of a recogniser that decodes by itself: it answers classes, without repetitions.

        Args:
            outputs: under ``ctc_greedy_decoder_0.tmp_0`` classes ``[letters, 1]``, and under its
                name with ``.lod`` where each picture begins. For scores, under ``softmax_0.tmp_0``
                probabilities ``[steps, classes]``, the last of the blank, and its ``.lod``.
            with_score: also give the mean probability of what is not blank; nan if all is.

        Returns:
            For each picture ``[text]`` or ``[text, score]``.

        Raises:
            ValueError: an output is missing, or a class has no letter.
        """
        user = "OCRReader.postprocess"
        classes = numbers(user, _output(user, outputs, GREEDY)).reshape(-1)
        starts = _output(user, outputs, f"{GREEDY}.lod")
        blank = len(self._characters)
        result: list[list[Any]] = []
        for begin, end in pairwise(starts):
            line = classes[begin:end]
            result.append([self._text(user, line[line != blank])])
        if with_score:
            steps = numbers(user, _output(user, outputs, SOFTMAX), 2).astype(np.float32)
            starts = _output(user, outputs, f"{SOFTMAX}.lod")
            for line_result, (begin, end) in zip(result, pairwise(starts), strict=True):
                best = steps[begin:end].argmax(axis=1)
                line_result.append(_mean(steps[begin:end].max(axis=1)[best != steps.shape[1] - 1]))
        return result

    def postprocess_ocrv2(
        self, outputs: Mapping[str, Any], with_score: bool = False
    ) -> list[tuple[str, np.floating[Any]]]:
        """Texts of a recogniser that answers probabilities: CTC, by the best class of each step.

        Args:
            outputs: under ``save_infer_model/scale_0.tmp_1`` probabilities ``[pictures, steps,
                classes]``: the blank, the letters of the dictionary, and with ``char_type`` ``ch``
                a space.
            with_score: no effect; the score is always there.

        Returns:
            For each picture its text and the mean probability of its letters, nan without any.

        Raises:
            TypeError: the output is not an array of numbers.
            ValueError: the output is missing or has not three axes, or a class has no letter.
        """
        user = "OCRReader.postprocess_ocrv2"
        steps = numbers(user, _output(user, outputs, PROBABILITIES), 3)
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
    """The mean in the precision of the array; nan of nothing, without numpy's warning."""
    mean: np.floating[Any] = np.mean(probabilities) if probabilities.size else np.float64(np.nan)
    return mean


def _output(user: str, outputs: Mapping[str, Any], name: str) -> Any:
    if name not in outputs:
        raise ValueError(f"{user} takes the output {name!r}, got {sorted(outputs)}")
    return outputs[name]


def _dictionary(path: str | os.PathLike[str]) -> str:
    lines = Path(path).read_bytes().decode("utf-8").split("\n")
    return "".join(line.strip("\r\n") for line in lines)
