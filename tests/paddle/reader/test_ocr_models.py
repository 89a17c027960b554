"""The readers with real models: text is detected and recognised as in the original's example."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import pytest

from paddle_serving_app.reader import (
    DBPostProcess,
    Div,
    FilterBoxes,
    GetRotateCropImage,
    Normalize,
    OCRReader,
    ResizeByFactor,
    Sequential,
    SortedBoxes,
    Transpose,
)
from tests.examples.ocr_judge import example

pytestmark = pytest.mark.real


def test_lines_of_text_are_detected_and_recognised(tmp_path: Path) -> None:
    models = example().models
    models.install_models(tmp_path)
    detect, recognise = (
        onnxruntime.InferenceSession(tmp_path / name / "model.onnx") for name in ("det", "rec")
    )
    letters = models.read_characters(tmp_path).removesuffix(" ")  # the reader adds the space
    (tmp_path / "keys.txt").write_text("\n".join(letters), encoding="utf-8")
    picture = cv2.cvtColor(np.asarray(example().pictures.tilted()), cv2.COLOR_RGB2BGR)

    prepare = Sequential(
        [
            ResizeByFactor(32, 960),
            Div(255),
            Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            Transpose((2, 0, 1)),
        ]
    )
    image = prepare(picture)
    (probability,) = detect.run(None, {"x": image[np.newaxis].copy()})
    height, width = picture.shape[:2]
    (found,) = DBPostProcess(
        {"thresh": 0.3, "box_thresh": 0.6, "max_candidates": 1000, "unclip_ratio": 1.5}
    )(probability, [(image.shape[1] / height, image.shape[2] / width)])
    boxes = SortedBoxes()(FilterBoxes(10, 10)(found, (height, width)))

    reader = OCRReader(char_dict_path=tmp_path / "keys.txt", image_shape=[3, 48, 320])
    crops = [GetRotateCropImage()(picture, box) for box in boxes]
    widest = max(crop.shape[1] / crop.shape[0] for crop in crops)
    feed = np.stack([reader.resize_norm_img(crop, widest) for crop in crops])
    (steps,) = recognise.run(None, {"x": feed})
    lines = reader.postprocess_ocrv2({"save_infer_model/scale_0.tmp_1": steps})
    assert [text for text, _ in lines] == [
        "Laid down in a hurry",
        "at an angle of six degrees",
        "No.4711",
    ]
    assert min(score for _, score in lines) > 0.9
