"""Continues texts, character by character: 16 at once, which join and leave between two characters.

python train.py
penstock run app.py
curl -N http://127.0.0.1:8080/generate -d '{"prompt": "The for statement "}'
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import network
import numpy as np
import onnxruntime
from network import CHARACTERS, HEADS, LAYERS, LONGEST, WIDTH, Array, Ids
from pydantic import Field

from penstock import App, Done
from penstock.openai import CompletionReply, Usage

MODEL = Path(__file__).parent / "models" / "textgen.onnx"
SEATS = 16
HIDDEN = np.float32(-1e9)

Prompt = Annotated[str, Field(min_length=1, max_length=LONGEST // 2)]
Temperature = Annotated[float, Field(ge=0, le=2)]
Count = Annotated[int, Field(ge=1, le=LONGEST // 2)]

app = App("textgen")


class Transformer:
    """The model, and the keys and values of the characters of up to ``SEATS`` texts."""

    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(MODEL, options)
        depth = WIDTH // HEADS
        self._past = np.zeros((SEATS, LAYERS, 2, HEADS, LONGEST, depth), np.float32)

    def run(self, places, ids, lengths):
        """Read new characters ``ids [B, S, 1 + BEFORE]`` of texts that had ``lengths [B]``. Gives
        the logits after the last one, and the mean of the hidden numbers.
        """
        count, longest = ids.shape[1], lengths.max(initial=0)
        at, own = np.arange(longest + count), longest + np.arange(count)
        # A character looks at the earlier ones of its text, and at the new ones up to itself.
        seen = (at < lengths[:, None, None]) | ((longest <= at) & (at <= own[:, None]))
        logits, hidden, new = self._session.run(
            None,
            {
                "ids": ids,
                "positions": lengths[:, None] + np.arange(count),
                "mask": np.where(seen, np.float32(0), HIDDEN),
                "past": self._past[places, ..., :longest, :],
            },
        )
        for place, length, each in zip(places, lengths, new, strict=True):
            self._past[place, ..., length : length + count, :] = each
        return logits[:, -1], hidden.mean(axis=1)


@dataclass
class Text:
    """A text that is being written. ``logits`` are those of its next character."""

    place: int
    recent: Ids
    length: int
    written: int
    left: int
    temperature: float
    random: np.random.Generator
    logits: Array

    def next(self):
        if self.temperature == 0:
            return int(self.logits.argmax())
        shares = network.softmax(self.logits.astype(np.float64) / self.temperature)
        return int(self.random.choice(len(shares), p=shares))


class Writer:
    """A step writes a character of each running text."""

    def load(self):
        self.model = Transformer()
        self.free = list(range(SEATS))

    def join(
        self,
        prompt: Prompt,
        max_tokens: Count = 64,
        temperature: Temperature = 0.5,
        seed: int | None = None,
    ) -> Text:
        ids = network.with_earlier(network.ids_of(prompt))
        random = np.random.default_rng(seed)
        logits, _ = self.model.run(self.free[-1:], ids[None], np.array([0]))
        # Taken at the end: no leave follows a join that has raised.
        return Text(
            self.free.pop(), ids[-1], len(ids), 0, max_tokens, temperature, random, logits[0]
        )

    def step(self, running: list[Text]) -> list[str | Done]:
        for text in running:
            text.recent = np.array([text.next(), *text.recent[:-1]])
            text.left -= 1
        going = [text for text in running if text.left]
        if going:
            ids = np.stack([text.recent for text in going])[:, None]
            lengths = np.array([text.length for text in going])
            logits, _ = self.model.run([text.place for text in going], ids, lengths)
            for text, each in zip(going, logits, strict=True):
                text.logits = each
                text.length, text.written = text.length + 1, text.written + 1
        written = [CHARACTERS[text.recent[0]] for text in running]
        pairs = zip(running, written, strict=True)
        return [one if text.left else Done(one) for text, one in pairs]

    def leave(self, text: Text):
        self.free.append(text.place)


@app.post("/generate", seats=SEATS)
class Generate(Writer):
    pass


@app.completion("textgen", seats=SEATS)
class Complete(Writer):
    """The same, as OpenAI's clients expect it: an answer says why it ends, and how long it is."""

    def step(self, running: list[Text]) -> list[str | CompletionReply | Done]:
        pairs = zip(running, super().step(running), strict=True)
        return [ended(text, one.piece) if isinstance(one, Done) else one for text, one in pairs]


def ended(text, last):
    usage = Usage(prompt_tokens=text.length - text.written, completion_tokens=text.written + 1)
    return Done(CompletionReply(text=last, finish_reason="length", usage=usage))


@app.embeddings("textgen")
class Embed:
    """The mean of what the last layer makes of a text's characters."""

    def load(self):
        self.model = Transformer()

    def predict(self, input: list[Prompt]) -> list[list[float]]:
        return [self.embedding(text) for text in input]

    def embedding(self, text):
        ids = network.with_earlier(network.ids_of(text))
        _, hidden = self.model.run([0], ids[None], np.array([0]))
        return (hidden[0] / np.linalg.norm(hidden[0])).tolist()


if __name__ == "__main__":
    app.run()
