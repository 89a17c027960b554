"""Names a handwritten digit: an image comes in, the five likeliest labels go out.

python train.py
penstock run app.py
curl http://127.0.0.1:8080/classify -H 'Content-Type: image/jpeg' --data-binary @models/seven.jpg
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import onnxruntime
from PIL import Image as Pillow
from pydantic import BaseModel

from penstock import App, Image

MODEL = Path(__file__).parent / "models/digits.onnx"
LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

app = App("digits")
app.page("/", "page.html")


class Guess(BaseModel):
    label: str
    score: float


@app.route("/classify", batch=32)
class Classifier:
    """Name the digit in a picture, dark on light or light on dark."""

    def __init__(self):
        self.session = onnxruntime.InferenceSession(MODEL)
        self.input = self.session.get_inputs()[0].name

    def preprocess(self, image: Annotated[np.ndarray, Image("L")]) -> np.ndarray:
        return model_input(image)

    def inference(self, pictures):
        scores = self.session.run(None, {self.input: np.stack(pictures)})[-1]
        return list(scores)

    def postprocess(self, scores) -> list[Guess]:
        best = np.argsort(-scores)[:5]
        return [Guess(label=LABELS[index], score=scores[index]) for index in best]


def model_input(image):
    """A grey picture as the model knows digits: light on dark, cut out, 8 × 8, from 0 to 1."""
    ink = image.astype(np.float32)
    if np.median(ink) > 127:
        ink = 255 - ink
    ink -= ink.min()
    rows, columns = (np.flatnonzero(ink.max(axis) > ink.max() / 4) for axis in (1, 0))
    if not len(rows) or not ink.max():
        return np.zeros(64, np.float32)
    cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    side = max(cut.shape)
    square = np.zeros((side, side), np.float32)
    top, left = (side - cut.shape[0]) // 2, (side - cut.shape[1]) // 2
    square[top : top + cut.shape[0], left : left + cut.shape[1]] = cut
    small = np.asarray(Pillow.fromarray(square).resize((8, 8), Pillow.Resampling.BOX))
    return (small / max(small.max(), 1.0)).ravel()
