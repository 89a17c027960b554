"""Saves a model that finds the dark thing in each picture, and draws two pictures.

It answers as detectors do: all boxes below each other, and how many each picture has.
"""

import cv2
import numpy as np
import paddle

from paddle_serving_client.io import inference_model_to_serving


class Finder(paddle.nn.Layer):
    def forward(self, image, im_shape, scale_factor):
        dark = (image.mean(axis=1) < 0.4).astype("float32")
        sides = []
        for axis in (1, 2):  # over rows: columns that are dark anywhere, and the other way round
            there = dark.max(axis=axis)
            count = paddle.arange(there.shape[1], dtype="float32").unsqueeze(0)
            first = paddle.where(there > 0, count, paddle.full_like(there, 1e6)).min(axis=1)
            last = (count * there).max(axis=1) + 1
            sides.append((first, last))
        (left, right), (top, bottom) = sides
        corners = paddle.stack([left, top, right, bottom], axis=1)
        corners = paddle.minimum(corners, paddle.concat([im_shape, im_shape], axis=1))
        scale = paddle.concat([scale_factor, scale_factor], axis=1)
        scale = paddle.stack([scale[:, 1], scale[:, 0], scale[:, 1], scale[:, 0]], axis=1)
        score = dark.sum(axis=[1, 2]) / ((right - left) * (bottom - top))
        boxes = paddle.concat(
            [paddle.zeros_like(score)[:, None], score[:, None], corners / scale], axis=1
        )
        return boxes, paddle.ones_like(score).astype("int32")


spec = paddle.static.InputSpec
inputs = [
    spec([None, 3, 320, 320], "float32", "image"),
    spec([None, 2], "float32", "im_shape"),
    spec([None, 2], "float32", "scale_factor"),
]
paddle.jit.save(paddle.jit.to_static(Finder(), inputs), "saved/model")
inference_model_to_serving("saved", fetch_alias_names="boxes,bbox_num")
# The configuration of a published detector marks its boxes so.
with open("serving_server/serving_server_conf.prototxt", "r+") as conf:
    head, mark, tail = conf.read().partition('alias_name: "boxes"\n  is_lod_tensor: ')
    conf.seek(0)
    conf.write(head + mark + tail.replace("false", "true", 1))

with open("label_list.txt", "w") as labels:
    labels.write("thing\n")
for name, (left, top, right, bottom) in {
    "one": (40, 60, 200, 160),
    "two": (10, 10, 90, 210),
}.items():
    picture = np.full((240, 320, 3), 230, "uint8")
    cv2.rectangle(picture, (left, top), (right - 1, bottom - 1), (20, 20, 20), -1)
    cv2.imwrite(f"{name}.png", picture)
