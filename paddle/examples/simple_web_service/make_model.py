"""Fits house prices by least squares and saves the model: uci_housing_model, uci_housing_client."""

import numpy as np
import paddle
from mlxtend.data import boston_housing_data

from paddle_serving_client.io import inference_model_to_serving

features, prices = boston_housing_data()
spread = features.max(axis=0) - features.min(axis=0)
scaled = (features - features.mean(axis=0)) / spread
solution, *_ = np.linalg.lstsq(np.c_[scaled, np.ones(len(scaled))], prices, rcond=None)

net = paddle.nn.Linear(13, 1)
net.weight.set_value(solution[:-1, None].astype("float32"))
net.bias.set_value(solution[-1:].astype("float32"))
spec = [paddle.static.InputSpec([None, 13], "float32", "x")]
paddle.jit.save(paddle.jit.to_static(net, spec), "saved/model")
inference_model_to_serving(
    "saved", "uci_housing_model", "uci_housing_client", fetch_alias_names="price"
)
