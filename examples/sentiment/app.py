"""Says whether a text is in good spirits: texts in, a probability out, 16 at a time.

python export.py
penstock run app.py
curl http://127.0.0.1:8080/sentiment -d '{"text": "what a wonderful day"}'
"""

from pathlib import Path

import numpy as np
import onnxruntime
from pydantic import BaseModel

from penstock import App

MODELS = Path(__file__).parent / "models"

app = App("sentiment")


class Mood(BaseModel):
    positive: bool
    score: float


@app.route("/sentiment", batch=16, examples=[{"text": "a wonderful day"}, {"text": "a sad end"}])
class Sentiment:
    def load(self):
        self.words = {
            word: at for at, word in enumerate((MODELS / "words.txt").read_text().split())
        }
        self.session = onnxruntime.InferenceSession(MODELS / "lexicon.onnx")

    def preprocess(self, text: str) -> np.ndarray:
        counts = np.zeros(len(self.words), np.float32)
        for word in text.lower().split():
            if word in self.words:
                counts[self.words[word]] += 1
        return counts

    def inference(self, counts):
        return self.session.run(None, {"counts": np.stack(counts)})[0][:, 0]

    def postprocess(self, score) -> Mood:
        return Mood(positive=score > 0.5, score=score)
