import base64

import cv2
import numpy as np

from paddle_serving_app.reader import *
from paddle_serving_server.web_service import Op, WebService


class FinderOp(Op):
    def init_op(self):
        self.img_preprocess = Sequential(
            [
                BGR2RGB(),
                Div(255.0),
                Normalize([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], False),
                Resize((320, 320)),
                Transpose((2, 0, 1)),
            ]
        )
        self.img_postprocess = RCNNPostprocess("label_list.txt", "output")

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, input_dict),) = input_dicts.items()
        imgs, shapes, scales = [], [], []
        for key in input_dict.keys():
            data = base64.b64decode(input_dict[key].encode("utf8"))
            data = np.fromstring(data, np.uint8)
            im = cv2.imdecode(data, cv2.IMREAD_COLOR)
            imgs.append(self.img_preprocess(im))
            shapes.append(imgs[-1].shape[1:])
            scales.append([320.0 / im.shape[0], 320.0 / im.shape[1]])
        feed = {
            "image": np.stack(imgs),
            "im_shape": np.array(shapes, "float32"),
            "scale_factor": np.array(scales, "float32"),
        }
        return feed, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        ((_, input_dict),) = input_dicts.items()
        boxes, lod = fetch_dict["boxes"], fetch_dict["boxes.lod"]
        result = {}
        for at, key in enumerate(input_dict.keys()):
            own = boxes[lod[at] : lod[at + 1]]
            fetched = {"boxes": own, "boxes.lod": np.array([0, len(own)])}
            result[key] = str(self.img_postprocess(fetched, visualize=False))
        return result, None, ""


class FinderService(WebService):
    def get_pipeline_response(self, read_op):
        return FinderOp(name="finder", input_ops=[read_op])


finder_service = FinderService(name="finder")
finder_service.prepare_pipeline_config("config.yml")
finder_service.run_service()
