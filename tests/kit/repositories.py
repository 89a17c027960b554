"""A repository of models in the layouts of Triton, TensorFlow Serving and Paddle Serving."""

from __future__ import annotations

from pathlib import Path

from tests.kit.onnx_models import save, scale

ENCODER = "(float[n, 3] pixels) => (float[n, 3] features) { features = Add(pixels, pixels) }"
HEAD = "(float[n, 3] embedding) => (float[n, 3] scores) { scores = Softmax(embedding) }"
THIRD = (
    "(float[n, 3] pixels) => (float[n, 3] features)"
    " { twice = Add(pixels, pixels) features = Add(twice, pixels) }"
)

ENCODER_CONFIG = """
name: "encoder"
platform: "onnxruntime_onnx"
max_batch_size: 16
input [
  {
    name: "pixels"
    data_type: TYPE_FP32
    dims: [ 3 ]
  }
]
output [ { name: "features" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 1000
}
model_warmup [
  {
    name: "two rows"
    batch_size: 2
    inputs { key: "pixels" value: { data_type: TYPE_FP32 dims: [ 3 ] input_data_file: "six" } }
  }
]
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
"""

RANK_CONFIG = """
name: "rank"
platform: "ensemble"
max_batch_size: 16
input [ { name: "PIXELS" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [
  { name: "SCORES" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "FEATURES" data_type: TYPE_FP32 dims: [ 3 ] }
]
ensemble_scheduling {
  step [
    {
      model_name: "encoder"
      model_version: -1
      input_map { key: "pixels" value: "PIXELS" }
      output_map { key: "features" value: "FEATURES" }
    },
    {
      model_name: "head"
      model_version: -1
      input_map { key: "embedding" value: "FEATURES" }
      output_map { key: "scores" value: "SCORES" }
    }
  ]
}
"""

FLAT_CONFIG = """
backend: "onnxruntime"
default_model_filename: "flat.onnx"
input { name: "x" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }
output { name: "y" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }
"""

MEAN = "(float[n, 3] x) => (float[m, 3] y) { y = ReduceMean <axes = [0]> (x) }"
"""A model whose answers change in batches, and which says that it has a batch axis."""

MEAN_CONFIG = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 3 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
dynamic_batching { }
"""

PADDLE_CONF = """
feed_var { name: "x" alias_name: "rows" feed_type: 1 shape: 3 }
fetch_var { name: "y" alias_name: "doubled" fetch_type: 1 shape: 3 }
"""


def model(folder: Path, text: str, config: str | None = None, file: str = "1/model.onnx") -> Path:
    """A model in its folder."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, text)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    return path


def make_repository(root: Path) -> Path:
    """Models of Triton's and other layouts, and an ensemble of two of them."""
    model(root / "encoder", ENCODER, ENCODER_CONFIG)
    model(root / "encoder", THIRD, file="2/model.onnx")
    (root / "encoder" / "warmup").mkdir()
    (root / "encoder" / "warmup" / "six").write_bytes(bytes(4 * 6))
    model(root / "head", HEAD, 'backend: "onnxruntime"\nmax_batch_size: 16')
    (root / "rank").mkdir()
    (root / "rank" / "config.pbtxt").write_text(RANK_CONFIG)
    flat = "(float[2, 2] x) => (float[2, 2] y) { y = Add(x, x) }"
    model(root / "flat", flat, FLAT_CONFIG, "1/flat.onnx")
    model(root / "served", ENCODER, file="00000007/model.onnx")
    for version, body in (("9", ENCODER), ("10", THIRD)):
        model(root / "both", body, "version_policy { all { } }", f"{version}/model.onnx")
    uci = root / "uci"
    uci.mkdir()
    scale(uci / "model.onnx", 2.0)
    (uci / "serving_server_conf.prototxt").write_text(PADDLE_CONF)
    scale(root / "triple.onnx", 3.0)
    return root
