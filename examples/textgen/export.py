"""Writes the transformer as an ONNX model that is given the keys and values of earlier characters.

Inputs, for B texts with S new characters each and P earlier ones (``mask`` hides
what a text has fewer):

    ids [B, S, 1 + BEFORE]             the new characters, each with those before it
    positions [B, S]                   their places in the text
    mask [B, S, P + S]                 0 where a new character may look at another, else -1e9
    past [B, LAYERS, 2, HEADS, P, D]   keys and values of the earlier ones; D = WIDTH / HEADS

Outputs: logits [B, S, characters] of what follows each, hidden [B, S, WIDTH], and new
[B, LAYERS, 2, HEADS, S, D], the keys and values of the new ones.
"""

from pathlib import Path

import numpy as np
import onnx
from network import BEFORE, CHARACTERS, EPSILON, HEADS, LAYERS, WIDTH, Weights
from onnx import NodeProto, TensorProto, helper, numpy_helper

DEPTH = WIDTH // HEADS


class _Graph:
    """Nodes and constants; every method gives the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def constant(self, value: object, dtype: type = np.int64) -> str:
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.array(value, dtype)
        return name

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> list[str]:
        made = [f"{kind}{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, made, **attributes))
        return made

    def one(self, kind: str, *inputs: str, **attributes: object) -> str:
        return self.add(kind, *inputs, **attributes)[0]

    def named(self, name: str, value: str) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))

    def normalised(self, x: str, scale: str) -> str:
        square = self.one("ReduceMean", self.one("Mul", x, x), axes=[-1])
        size = self.one("Sqrt", self.one("Add", square, self.constant(EPSILON, np.float32)))
        return self.one("Mul", self.one("Div", x, size), scale)

    def heads(self, x: str) -> str:
        """[B, S, WIDTH] -> [B, HEADS, S, DEPTH]"""
        parted = self.one("Reshape", x, self.constant([0, 0, HEADS, DEPTH]))
        return self.one("Transpose", parted, perm=[0, 2, 1, 3])


def write(weights: Weights, path: Path) -> None:
    graph = _Graph()
    starts = graph.constant(np.arange(1 + BEFORE) * len(CHARACTERS))
    rows = graph.one("Add", "ids", starts)
    x = graph.one(
        "Add",
        graph.one(
            "ReduceSum", graph.one("Gather", "characters", rows), graph.constant([2]), keepdims=0
        ),
        graph.one("Gather", "positions_of", "positions"),
    )
    mask = graph.one("Unsqueeze", "mask", graph.constant([1]))
    pasts = graph.add("Split", "past", outputs=LAYERS, axis=1)
    new = []
    for layer, past in enumerate(pasts):
        normal = graph.normalised(x, f"{layer}.attend.scale")
        change, kept = _attend(graph, normal, f"{layer}.attend", past, mask)
        new.append(kept)
        x = graph.one("Add", x, change)
        normal = graph.normalised(x, f"{layer}.think.scale")
        inner = graph.one("Relu", graph.one("MatMul", normal, f"{layer}.think.in"))
        squared = graph.one("Mul", inner, inner)
        x = graph.one("Add", x, graph.one("MatMul", squared, f"{layer}.think.out"))
    hidden = graph.normalised(x, "scale")
    graph.named("hidden", hidden)
    graph.named("logits", graph.one("MatMul", hidden, "next"))
    graph.named("new", graph.one("Concat", *new, axis=1))

    constants = {
        ("positions_of" if name == "positions" else name): w for name, w in weights.items()
    }
    pasts_shape = ["batch", LAYERS, 2, HEADS]
    proto = helper.make_graph(
        graph.nodes,
        "textgen",
        [
            _value("ids", TensorProto.INT64, ["batch", "new", 1 + BEFORE]),
            _value("positions", TensorProto.INT64, ["batch", "new"]),
            _value("mask", TensorProto.FLOAT, ["batch", "new", "all"]),
            _value("past", TensorProto.FLOAT, [*pasts_shape, "past", DEPTH]),
        ],
        [
            _value("logits", TensorProto.FLOAT, ["batch", "new", len(CHARACTERS)]),
            _value("hidden", TensorProto.FLOAT, ["batch", "new", WIDTH]),
            _value("new", TensorProto.FLOAT, [*pasts_shape, "new", DEPTH]),
        ],
        [numpy_helper.from_array(a, name) for name, a in (constants | graph.constants).items()],
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


_value = helper.make_tensor_value_info


def _attend(graph: _Graph, x: str, name: str, past: str, mask: str) -> tuple[str, str]:
    """What attention adds, and the keys and values [B, 1, 2, HEADS, S, DEPTH] of the new ones."""
    all_three = graph.one("MatMul", x, f"{name}.in")
    query, key, value = map(graph.heads, graph.add("Split", all_three, outputs=3, axis=-1))
    first = graph.constant([1])
    both = [graph.one("Unsqueeze", each, first) for each in (key, value)]
    kept = graph.one("Unsqueeze", graph.one("Concat", *both, axis=1), first)
    joined = graph.one("Squeeze", graph.one("Concat", past, kept, axis=4), first)
    keys, values = (
        graph.one("Squeeze", each, first) for each in graph.add("Split", joined, outputs=2, axis=1)
    )
    scores = graph.one("MatMul", query, graph.one("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = graph.one("Mul", scores, graph.constant(DEPTH**-0.5, np.float32))
    shares = graph.one("Softmax", graph.one("Add", scores, mask), axis=-1)
    seen = graph.one("Transpose", graph.one("MatMul", shares, values), perm=[0, 2, 1, 3])
    seen = graph.one("Reshape", seen, graph.constant([0, 0, WIDTH]))
    return graph.one("MatMul", seen, f"{name}.out"), kept
