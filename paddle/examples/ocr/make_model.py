"""Saves two models for a script of three letters, r, g and b, each a block of its colour; and draws
two pictures of such texts.

The detector marks what is not white, and what is near it. The recogniser says for each four columns
which colour there is, or none.
"""

import cv2
import numpy as np
import paddle

from paddle_serving_client.io import inference_model_to_serving

OUTPUT = "save_infer_model/scale_0.tmp_1"
COLOURS = {"r": (0, 0, 255), "g": (0, 255, 0), "b": (255, 0, 0)}  # blue first


class Detector(paddle.nn.Layer):
    def forward(self, x):
        coloured = (x.min(axis=1, keepdim=True) < 0).astype("float32")
        return paddle.nn.functional.max_pool2d(coloured, (5, 37), stride=1, padding=(2, 18))


class Recogniser(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        # From blue, green, red to: none, r, g, b, and the space, which is never seen.
        self.last = paddle.nn.Linear(3, 5)
        weights = [[0, -4, -4, 4, 0], [0, -4, 4, -4, 0], [0, 4, -4, -4, 0]]
        self.last.weight.set_value(np.array(weights, "float32"))
        self.last.bias.set_value(np.array([0, 0, 0, 0, -20], "float32"))

    def forward(self, x):
        columns = paddle.nn.functional.avg_pool1d(x.min(axis=2), 4)
        return paddle.nn.functional.softmax(self.last(columns.transpose([0, 2, 1])))


spec = paddle.static.InputSpec
for name, net, shape in (
    ("det", Detector(), [None, 3, None, None]),
    ("rec", Recogniser(), [None, 3, 32, None]),
):
    paddle.jit.save(paddle.jit.to_static(net, [spec(shape, "float32", "x")]), f"saved/{name}/model")
    folders = (f"ocr_{name}_model", f"ocr_{name}_client")
    inference_model_to_serving(f"saved/{name}", *folders, fetch_alias_names=OUTPUT)

with open("ppocr_keys_v1.txt", "w") as keys:
    keys.write("\n".join(COLOURS) + "\n")
for name, lines in {"note": ["rgbbr", "grg"], "empty": []}.items():
    picture = np.full((320, 480, 3), 255, "uint8")
    for row, line in enumerate(lines):
        for at, letter in enumerate(line):
            corner = (60 + 52 * at, 60 + 130 * row)
            cv2.rectangle(picture, corner, (corner[0] + 19, corner[1] + 31), COLOURS[letter], -1)
    cv2.imwrite(f"{name}.png", picture)
