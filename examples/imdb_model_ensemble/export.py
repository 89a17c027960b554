"""Writes a trained network as an ONNX model that takes many sentences at once.

Inputs are ``words`` (ids, int64 ``[n, 1]``), the words of all sentences one after another, and
``words.lod`` (int64 ``[k + 1]``), the offsets that cut them into k sentences; the output is
``prediction`` (float32 ``[k, 2]``, the probabilities of bad and good).

The graph first works out the number of the sentence that each word belongs to. Words are then
gathered into sentences by that number (ScatterElements with a sum or a maximum), and a word looks
at its neighbour only when that has the same number. So a sentence gets the same answer alone and
in company, and nothing is filled up.
"""

from pathlib import Path

import numpy as np
import onnx
from networks import EMBEDDING, FILTERS, Weights
from onnx import NodeProto, TensorProto, helper, numpy_helper

OPSET = 18  # the first whose ScatterElements knows "max"

SERVING_CONF = """\
feed_var {
  name: "words"
  alias_name: "words"
  is_lod_tensor: true
  feed_type: 0
  shape: -1
}
fetch_var {
  name: "prediction"
  alias_name: "prediction"
  is_lod_tensor: false
  fetch_type: 1
  shape: 2
}
"""


class Graph:
    """Nodes and constants in the making. Every method gives the name of its result."""

    def __init__(self, weights: Weights) -> None:
        self.nodes: list[NodeProto] = []
        self.constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]

    def constant(self, value: object, dtype: type = np.int64) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype=dtype), name))
        return name

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: object) -> str:
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def sentence_numbers(self) -> str:
        """``[n]``: how many sentences have ended before each word."""
        count = self.node("Shape", "words", start=0, end=1)
        zero, one = self.constant(0), self.constant(1)
        positions = self.node("Range", zero, self.node("Squeeze", count), one)
        column = self.node("Unsqueeze", positions, self.constant([1]))
        ends = self.node(
            "Slice", "words.lod", self.constant([1]), self.constant([np.iinfo(np.int64).max])
        )
        passed = self.node("GreaterOrEqual", column, ends)
        passed = self.node("Cast", passed, to=TensorProto.INT64)
        return self.node("ReduceSum", passed, self.constant([1]), keepdims=0)

    def embedded(self) -> str:
        """``[n, EMBEDDING]``."""
        ids = self.node("Squeeze", "words", self.constant([1]))
        return self.node("Gather", "embedding", ids)

    def gathered(self, rows: str, numbers: str, width: int, reduction: str, start: float) -> str:
        """``[n, width]`` to ``[k, width]`` by sentence number; ``start`` for an empty sentence."""
        offsets = self.node("Shape", "words.lod")
        sentences = self.node("Sub", offsets, self.constant([1]))
        shape = self.node("Concat", sentences, self.constant([width]), axis=0)
        blank = self.node("Expand", self.constant(start, np.float32), shape)
        column = self.node("Unsqueeze", numbers, self.constant([1]))
        index = self.node("Expand", column, self.node("Shape", rows))
        return self.node("ScatterElements", blank, index, rows, axis=0, reduction=reduction)

    def windows(self, rows: str, numbers: str) -> str:
        """Each word's vector between its neighbours', zero beyond the sentence's ends."""
        ends = np.iinfo(np.int64).max
        before, after = (0, -1), (1, ends)
        parts = []
        for pads, (start, stop) in (((1, 0), before), ((0, 1), after)):
            shifted = self._shifted(rows, (pads[0], 0, pads[1], 0), start, stop)
            theirs = self._shifted(numbers, pads, start, stop, fill=-1)
            same = self.node("Cast", self.node("Equal", numbers, theirs), to=TensorProto.FLOAT)
            mask = self.node("Unsqueeze", same, self.constant([1]))
            parts.append(self.node("Mul", shifted, mask))
        return self.node("Concat", parts[0], rows, parts[1], axis=1)

    def _shifted(
        self, rows: str, pads: tuple[int, ...], start: int, stop: int, fill: int | None = None
    ) -> str:
        filling = [] if fill is None else [self.constant(fill)]
        padded = self.node("Pad", rows, self.constant(pads), *filling)
        return self.node("Slice", padded, self.constant([start]), self.constant([stop]))

    def judged(self, sentence: str) -> None:
        """The last layer, and the output."""
        scores = self.node("Add", self.node("MatMul", sentence, "judge"), "bias")
        self.node("Softmax", scores, output="prediction", axis=1)


def bow_graph(weights: Weights) -> Graph:
    graph = Graph(weights)
    numbers = graph.sentence_numbers()
    summed = graph.gathered(graph.embedded(), numbers, EMBEDDING, "add", 0.0)
    graph.judged(graph.node("Tanh", summed))
    return graph


def cnn_graph(weights: Weights) -> Graph:
    graph = Graph(weights)
    numbers = graph.sentence_numbers()
    windows = graph.windows(graph.embedded(), numbers)
    answers = graph.node("Add", graph.node("MatMul", windows, "filters"), "filters_bias")
    answers = graph.node("Tanh", answers)
    graph.judged(graph.gathered(answers, numbers, FILTERS, "max", -1.0))
    return graph


def write(graph: Graph, name: str, folder: Path) -> None:
    """``folder/name.onnx`` and the aliases beside it."""
    proto = helper.make_graph(
        graph.nodes,
        name,
        [
            helper.make_tensor_value_info("words", TensorProto.INT64, ["words", 1]),
            helper.make_tensor_value_info("words.lod", TensorProto.INT64, ["offsets"]),
        ],
        [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, ["sentences", 2])],
        graph.constants,
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))
    (folder / "serving_server_conf.prototxt").write_text(SERVING_CONF)
