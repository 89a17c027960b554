"""Saves two judges of sentences: imdb_bow_model and imdb_cnn_model, with their clients' folders.

Each word has a worth; the first judge adds them up, the second looks at pairs of neighbours.
"""

import numpy as np
import paddle

from paddle_serving_client.io import inference_model_to_serving

WORTH = {
    "i": 0,
    "am": 0,
    "this": 0,
    "movie": 0,
    "is": 0,
    "good": 2,
    "great": 3,
    "bad": -2,
    "sad": -1,
}
with open("imdb.vocab", "w") as vocab:
    vocab.write("\n".join(WORTH) + "\n")


class Judge(paddle.nn.Layer):
    def __init__(self, in_pairs):
        super().__init__()
        self.in_pairs = in_pairs
        self.worth = paddle.nn.Embedding(len(WORTH) + 1, 1)  # the last is of unknown words
        self.worth.weight.set_value(np.array([*WORTH.values(), 0], "float32")[:, None])

    def forward(self, words):
        worth = self.worth(words).squeeze(-1)
        if self.in_pairs:
            worth = worth[:, 1:] + 0.5 * worth[:, :-1]
        total = worth.sum(axis=1, keepdim=True)
        return paddle.nn.functional.softmax(paddle.concat([-total, total], axis=1))


for name in ("bow", "cnn"):
    net = Judge(in_pairs=name == "cnn")
    net.eval()
    spec = [paddle.static.InputSpec([None, 16], "int64", "words")]
    paddle.jit.save(paddle.jit.to_static(net, spec), f"saved/{name}/model")
    inference_model_to_serving(
        f"saved/{name}",
        f"imdb_{name}_model",
        f"imdb_{name}_client_conf",
        fetch_alias_names="prediction",
    )
