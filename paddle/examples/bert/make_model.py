"""Saves a small encoder of texts, bert_model, with its vocabulary."""

import numpy as np
import paddle

from paddle_serving_client.io import inference_model_to_serving

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"今天气很好我们去公园吃饭睡觉",
    "hello",
    "world",
]
with open("vocab.txt", "w", encoding="utf-8") as vocab:
    vocab.write("\n".join(WORDS) + "\n")


class Encoder(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        paddle.seed(3)
        self.words = paddle.nn.Embedding(len(WORDS), 8)
        self.positions = paddle.nn.Embedding(128, 8)
        self.segments = paddle.nn.Embedding(2, 8)

    def forward(self, input_ids, position_ids, segment_ids, input_mask):
        sums = (
            self.words(input_ids.squeeze(-1))
            + self.positions(position_ids.squeeze(-1))
            + self.segments(segment_ids.squeeze(-1))
        )
        sequence = paddle.tanh(sums) * input_mask
        return sequence.sum(axis=1) / input_mask.sum(axis=1), sequence


spec = paddle.static.InputSpec
shape = [None, 128, 1]
inputs = [
    *(spec(shape, "int64", name) for name in ("input_ids", "position_ids", "segment_ids")),
    spec(shape, "float32", "input_mask"),
]
net = Encoder()
net.eval()
paddle.jit.save(paddle.jit.to_static(net, inputs), "saved/model")
inference_model_to_serving(
    "saved", "bert_model", "bert_client", fetch_alias_names="pooled_output,sequence_output"
)
np.save("words.npy", net.words.weight.numpy())
