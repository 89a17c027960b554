import base64

import cv2
import numpy as np

from paddle_serving_app.reader import (
    RGB2BGR,
    CenterCrop,
    Div,
    Normalize,
    Resize,
    Sequential,
    Transpose,
)
from paddle_serving_server.web_service import Op, WebService


class ImagenetOp(Op):
    def init_op(self):
        self.seq = Sequential(
            [
                Resize(256),
                CenterCrop(224),
                RGB2BGR(),
                Transpose((2, 0, 1)),
                Div(255),
                Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], True),
            ]
        )
        self.label_dict = {}
        with open("imagenet.label") as fin:
            for label_idx, line in enumerate(fin):
                self.label_dict[label_idx] = line.strip()

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, input_dict),) = input_dicts.items()
        imgs = []
        for key in input_dict.keys():
            data = base64.b64decode(input_dict[key].encode("utf8"))
            data = np.fromstring(data, np.uint8)
            im = cv2.imdecode(data, cv2.IMREAD_COLOR)
            imgs.append(self.seq(im)[np.newaxis, :].copy())
        return {"image": np.concatenate(imgs, axis=0)}, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        score_list = list(fetch_dict.values())[0]
        result = {"label": [], "prob": []}
        for score in score_list:
            score = score.tolist()
            max_score = max(score)
            result["label"].append(self.label_dict[score.index(max_score)])
            result["prob"].append(max_score)
        result["label"] = str(result["label"])
        result["prob"] = str(result["prob"])
        return result, None, ""


class ImageService(WebService):
    def get_pipeline_response(self, read_op):
        return ImagenetOp(name="imagenet", input_ops=[read_op])


image_service = ImageService(name="imagenet")
image_service.prepare_pipeline_config("config.yml")
image_service.run_service()
