"""Saves a classifier by the colour of a picture, two pictures and the labels."""

import cv2
import numpy as np
import paddle

from paddle_serving_client.io import inference_model_to_serving


class ByColour(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.pool = paddle.nn.AdaptiveAvgPool2D(1)
        self.last = paddle.nn.Linear(3, 3)
        self.last.weight.set_value(4 * np.eye(3, dtype="float32"))
        self.last.bias.set_value(np.zeros(3, "float32"))

    def forward(self, image):
        return paddle.nn.functional.softmax(self.last(self.pool(image).flatten(1)))


net = paddle.jit.to_static(
    ByColour(), [paddle.static.InputSpec([None, 3, 224, 224], "float32", "image")]
)
paddle.jit.save(net, "saved/model")
inference_model_to_serving("saved", fetch_alias_names="prediction")

with open("imagenet.label", "w") as labels:
    labels.write("red, Red\ngreen, Green\nblue, Blue\n")
random = np.random.default_rng(7)
for name, colour in (("sky", (220, 90, 60)), ("meadow", (40, 180, 50))):  # BGR
    picture = np.full((300, 400, 3), colour) + random.integers(-30, 30, (300, 400, 3))
    cv2.imwrite(f"{name}.jpg", picture.astype("uint8"))
