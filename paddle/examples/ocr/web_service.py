import base64
import copy

import cv2
import numpy as np

from paddle_serving_app.reader import (
    DBPostProcess,
    Div,
    FilterBoxes,
    GetRotateCropImage,
    Normalize,
    OCRReader,
    ResizeByFactor,
    Sequential,
    SortedBoxes,
    Transpose,
)
from paddle_serving_server.web_service import Op, WebService


def decoded(raw):
    return cv2.imdecode(np.fromstring(raw, np.uint8), cv2.IMREAD_COLOR)


class DetOp(Op):
    def init_op(self):
        self.det_preprocess = Sequential(
            [
                ResizeByFactor(32, 960),
                Div(255),
                Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
                Transpose((2, 0, 1)),
            ]
        )
        self.filter_func = FilterBoxes(10, 10)
        self.post_func = DBPostProcess(
            {
                "thresh": 0.3,
                "box_thresh": 0.5,
                "max_candidates": 1000,
                "unclip_ratio": 1.5,
                "min_size": 3,
            }
        )

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, input_dict),) = input_dicts.items()
        # One request at a time in this process, so its values may wait on the op.
        self.raw_im = base64.b64decode(input_dict["image"].encode("utf8"))
        im = decoded(self.raw_im)
        self.ori_h, self.ori_w, _ = im.shape
        det_img = self.det_preprocess(im)
        _, self.new_h, self.new_w = det_img.shape
        return {"x": det_img[np.newaxis, :].copy()}, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        det_out = list(fetch_dict.values())[0]
        ratio_list = [float(self.new_h) / self.ori_h, float(self.new_w) / self.ori_w]
        dt_boxes_list = self.post_func(det_out, [ratio_list])
        dt_boxes = self.filter_func(dt_boxes_list[0], [self.ori_h, self.ori_w])
        return {"dt_boxes": dt_boxes, "image": self.raw_im}, None, ""


class RecOp(Op):
    def init_op(self):
        self.ocr_reader = OCRReader(char_dict_path="./ppocr_keys_v1.txt")
        self.get_rotate_crop_image = GetRotateCropImage()
        self.sorted_boxes = SortedBoxes()

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, input_dict),) = input_dicts.items()
        im = decoded(input_dict["image"])
        self.dt_list = self.sorted_boxes(input_dict["dt_boxes"])
        if len(self.dt_list) == 0:
            return {}, True, None, ""
        feed_list = []
        for box in self.dt_list:
            img = self.get_rotate_crop_image(im, copy.deepcopy(box))
            height, width = img.shape[:2]
            ratio = max(width * 1.0 / height, 1)
            feed_list.append({"x": self.ocr_reader.resize_norm_img(img, ratio)[np.newaxis, :]})
        return feed_list, False, None, ""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        result_list = []
        rec_list = fetch_data if isinstance(fetch_data, list) else []
        for box, one_batch in zip(self.dt_list, rec_list):
            text, score = self.ocr_reader.postprocess_ocrv2(one_batch, with_score=True)[0]
            result_list.append([(text, score), box.tolist()])
        return {"result": str(result_list)}, None, ""


class OcrService(WebService):
    def get_pipeline_response(self, read_op):
        det_op = DetOp(name="det", input_ops=[read_op])
        rec_op = RecOp(name="rec", input_ops=[det_op])
        return rec_op


ocr_service = OcrService(name="ocr")
ocr_service.prepare_pipeline_config("config.yml")
ocr_service.run_service()
