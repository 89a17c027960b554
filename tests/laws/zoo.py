"""The models of the law: ONNX models of a few nodes, each with what must be known about its rows.

``by`` is the decision: ``rows``, or None for models that are not batched; ``why`` is a part of its
reason. ``draw`` makes the inputs of one request, some of which the model refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

Draw = Callable[[np.random.Generator], dict[str, NDArray[Any]]]

_HEAD: Final = '<ir_version: 10, opset_import: ["" : 21]>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model.

    Attributes:
        text: its graph, in ONNX's text format.
        draw: makes the inputs of one request.
        by: how its requests must be batched.
        why: a part of the reason.
        exact: whether answers are equal to the last bit.
        named: whether its variable axes have names.
        pads: whether requests of other sizes may be padded.
        repeats: whether a request alone has the same answer twice.
        options: further options of its op.
        conf: aliases and lod marks: the text of its ``serving_server_conf.prototxt``.
    """

    text: str
    draw: Draw
    by: str | None = "rows"
    why: str = ""
    exact: bool = False
    named: bool = True
    pads: bool = False
    repeats: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    conf: str = ""


def save(name: str, folder: Path) -> Path:
    """Write a model's file, with its configuration beside it; names end with ``.lod``, where the
    text, whose names have no dots, has ``_lod``.
    """
    folder, case = folder / name, CASES[name]
    folder.mkdir()
    model = onnx.parser.parse_model(f"{_HEAD} {case.text}")
    for value in (*model.graph.input, *model.graph.output):
        value.name = _dotted(value.name)
        if not case.named:
            for dim in value.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")
    for node in model.graph.node:
        node.input[:] = map(_dotted, node.input)
    onnx.save(model, str(folder / f"{name}.onnx"))
    if case.conf:
        (folder / "serving_server_conf.prototxt").write_text(case.conf)
        return folder
    return folder / f"{name}.onnx"


def _dotted(name: str) -> str:
    return re.sub("_lod$", ".lod", name)


def _rows(rng: np.random.Generator) -> int:
    return int(rng.choice([1, 1, 1, 2, 3, 5]))


def _floats(*shape: int, dtype: str = "float32") -> Draw:
    """An input x with rows and these further axes."""

    def draw(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        return {"x": rng.standard_normal((_rows(rng), *shape)).astype(dtype)}

    return draw


def _special(*shape: int, dtype: str = "float32") -> Draw:
    """The same, with NaN, infinities, and the largest and smallest numbers."""
    info = np.finfo(dtype)
    values = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.1, info.max, info.min, info.tiny]

    def draw(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        return {"x": rng.choice(np.array(values, dtype), (_rows(rng), *shape))}

    return draw


def _integers(*shape: int, dtype: str) -> Draw:
    """An input x of integers, the largest and smallest among them; or of truth values."""
    if dtype == "bool":
        values = np.array([False, True])
    else:
        info = np.iinfo(dtype)
        values = np.array([0, 1, info.max - 1, info.max, info.min], dtype)

    def draw(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        return {"x": rng.choice(values, (_rows(rng), *shape))}

    return draw


def _below(high: int, *shape: int) -> Draw:
    """An input x of int64 from 0 on."""

    def draw(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        return {"x": rng.integers(0, high, (_rows(rng), *shape))}

    return draw


def _pictures(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    sizes = rng.integers(4, 9, 2)
    return {"x": rng.standard_normal((_rows(rng), 2, *sizes)).astype("float32")}


def _texts(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    texts = np.array(["ab", "Cd", "eF", "é", "", "\U0001f600", 'a"b\\c', "[1, 2]"], object)
    return {"x": texts[rng.integers(0, len(texts), (_rows(rng), 2))]}


def _ragged(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {"x": rng.standard_normal((_rows(rng), int(rng.integers(1, 9)))).astype("float32")}


def _no_rows(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {"x": rng.standard_normal((int(rng.integers(0, 3)), 2)).astype("float32")}


def _bfloat16(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Values that BF16 holds exactly."""
    return {"x": rng.integers(-64, 64, (_rows(rng), 2)).astype("float32") / 8}


def _sequences(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Sequences, some of them empty, as rows and their lod."""
    lengths = rng.integers(0, 4, _rows(rng))
    x = rng.integers(-9, 9, (int(lengths.sum()), 2)).astype("float32")
    return {"x": x, "x.lod": np.cumsum([0, *lengths])}


def _some_sequences(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """The same, or rows without a lod."""
    return _floats(2)(rng) if rng.integers(4) == 0 else _sequences(rng)


def _with(draw: Draw, **others: Callable[[np.random.Generator, int], NDArray[Any]]) -> Draw:
    """Further inputs, made from the number of rows of x."""

    def both(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        feed = draw(rng)
        return {**feed, **{name: make(rng, len(feed["x"])) for name, make in others.items()}}

    return both


def _scalar(rng: np.random.Generator, rows: int) -> NDArray[Any]:
    return np.array(rng.integers(1, 4), np.float32)


def _vector(rng: np.random.Generator, rows: int) -> NDArray[Any]:
    return rng.integers(1, 4, 1).astype("float32")


def _weights(rng: np.random.Generator, rows: int) -> NDArray[Any]:
    return rng.integers(1, 4, (rows, 2)).astype("float32")


_X2: Final = "float[n,2] x"
_ALONE: Final = "no row axis"

CASES: Final[dict[str, Case]] = {
    "double": Case(
        text=f"g ({_X2}) => (float[n,2] y) {{ y = Add(x, x) }}", draw=_floats(2), exact=True
    ),
    "matmul": Case(
        text=f"g ({_X2}) => (float[n,3] y)"
        " <float[2,3] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }",
        draw=_floats(2),
    ),
    "softmax-of-a-row": Case(
        text=f"g ({_X2}) => (float[n,2] y) {{ y = Softmax <axis = 1> (x) }}", draw=_floats(2)
    ),
    "softmax-over-rows": Case(
        text=f"g ({_X2}) => (float[n,2] y) {{ y = Softmax <axis = 0> (x) }}",
        draw=_floats(2),
        by=None,
        why="output 'y'",
    ),
    "mean-over-rows": Case(
        text=f"g ({_X2}) => (float[2] y) <int64[1] a = {{0}}>"
        " { y = ReduceMean <keepdims = 0> (x, a) }",
        draw=_floats(2),
        by=None,
        why=_ALONE,
    ),
    "mean-subtracted": Case(
        text=f"g ({_X2}) => (float[n,2] y) <int64[1] a = {{0}}>"
        " { m = ReduceMean (x, a) y = Sub(x, m) }",
        draw=_floats(2),
        by=None,
        why="output 'y'",
    ),
    "maximum-kept": Case(
        text=f"g ({_X2}) => (float[k,2] y) <int64[1] a = {{0}}> {{ y = ReduceMax (x, a) }}",
        draw=_floats(2),
        by=None,
        why=_ALONE,
    ),
    "maximum-of-a-row": Case(
        text=f"g ({_X2}) => (float[n] y) <int64[1] a = {{1}}>"
        " { y = ReduceMax <keepdims = 0> (x, a) }",
        draw=_floats(2),
        exact=True,
    ),
    "count-of-rows": Case(
        text=f"g ({_X2}) => (float[n,2] y, int64[1] c)"
        " { y = Identity(x) c = Shape <start = 0, end = 1> (x) }",
        draw=_floats(2),
        by=None,
        why="output 'c'",
    ),
    "class-names": Case(
        text=f"g ({_X2}) => (float[n,2] y, int64[3] names) <int64[3] k = {{7, 8, 9}}>"
        " { y = Neg(x) names = Identity(k) }",
        draw=_floats(2),
        exact=True,
    ),
    "class-names-of-the-rows-size": Case(
        text=f"g ({_X2}) => (float[n,2] y, int64[4] names) <int64[4] k = {{6, 7, 8, 9}}>"
        " { y = Neg(x) names = Identity(k) }",
        draw=_floats(2),
        exact=True,
    ),
    "positive-boxes": Case(
        text=f"g ({_X2}) => (float[k,2] y) <int64[1] a = {{1}}, float z = {{0}}>"
        " { m = ReduceMax <keepdims = 0> (x, a) b = Greater(m, z) y = Compress <axis = 0> (x, b) }",
        draw=_floats(2),
        by=None,
        why="output 'y'",
    ),
    "scaled-by-a-scalar": Case(
        text=f"g ({_X2}, float s) => (float[n,2] y) {{ y = Mul(x, s) }}",
        draw=_with(_floats(2), s=_scalar),
        exact=True,
    ),
    "scaled-by-a-vector": Case(
        text=f"g ({_X2}, float[k] s) => (float[n,2] y) {{ y = Mul(x, s) }}",
        draw=_with(_floats(2), s=_vector),
        exact=True,
    ),
    "scaled-by-a-vector-of-one-name": Case(
        text=f"g ({_X2}, float[n] s) => (float[n,2] y) {{ y = Mul(x, s) }}",
        draw=_with(_floats(2), s=_vector),
        by="rows",
        exact=True,
    ),
    "weighted": Case(
        text=f"g ({_X2}, float[n,2] s) => (float[n,2] y) {{ y = Mul(x, s) }}",
        draw=_with(_floats(2), s=_weights),
        exact=True,
    ),
    "weighted-with-other-names": Case(
        text="g (float[a,2] x, float[b,2] s) => (float[c,2] y) { y = Mul(x, s) }",
        draw=_with(_floats(2), s=_weights),
        exact=True,
    ),
    "rows-on-axis-1": Case(
        text="g (float[3,n] x) => (float[2,n] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}>"
        " { y = MatMul(w, x) }",
        draw=lambda rng: {"x": rng.standard_normal((3, _rows(rng))).astype("float32")},
        options={"rows": {"x": 1, "y": 1}},
    ),
    "transposed-answer": Case(
        text=f"g ({_X2}) => (float[2,n] y) {{ y = Transpose(x) }}", draw=_floats(2), exact=True
    ),
    "similarity": Case(
        text=f"g ({_X2}) => (float[n,m] y) {{ t = Transpose(x) y = MatMul(x, t) }}",
        draw=_floats(2),
        by=None,
    ),
    "two-outputs-of-different-rows": Case(
        text=f"g ({_X2}) => (float[n,2] y, float[m,1] z) <int64[2] s = {{-1, 1}}>"
        " { y = Neg(x) z = Reshape(x, s) }",
        draw=_floats(2),
        by=None,
        why="output 'z'",
    ),
    "zero-rows": Case(
        text=f"g ({_X2}) => (float[n,2] y) {{ y = Neg(x) }}", draw=_no_rows, exact=True
    ),
    "zero-rows-of-two-inputs": Case(
        text=f"g ({_X2}, float[k] s) => (float[n,2] y) {{ y = Mul(x, s) }}",
        draw=_with(_no_rows, s=_vector),
        exact=True,
    ),
    "zero-columns": Case(
        text="g (float[n,t] x) => (float[n] y) <int64[1] a = {1}>"
        " { y = ReduceSum <keepdims = 0> (x, a) }",
        draw=lambda rng: {"x": np.ones((_rows(rng), int(rng.integers(0, 2))), "float32")},
        pads=True,
    ),
    "detections": Case(
        text=f"g ({_X2}) => (float[k,2] boxes, float[k] scores, int64[1] count)"
        " <int64[1] a = {1}, float z = {0}>"
        " { m = ReduceMax <keepdims = 0> (x, a) b = Greater(m, z)"
        " boxes = Compress <axis = 0> (x, b) scores = Compress <axis = 0> (m, b)"
        " count = Shape <start = 0, end = 1> (scores) }",
        draw=_floats(2),
        by=None,
        why="output 'boxes'",
    ),
    "positions": Case(
        text="g (int64[n,2] x) => (int64[2,k] y) { y = NonZero(x) }",
        draw=_below(2, 2),
        by=None,
    ),
    "sums-so-far": Case(
        text=f"g ({_X2}) => (float[n,2] y) <int64 a = {{0}}> {{ y = CumSum(x, a) }}",
        draw=_floats(2),
        by=None,
        why="output 'y'",
    ),
    "numbers-of-rows": Case(
        text=f"g ({_X2}) => (int64[n] y) <int64 z = {{0}}, int64 o = {{1}}>"
        " { s = Shape <start = 0, end = 1> (x) e = Squeeze(s) y = Range(z, e, o) }",
        draw=_floats(2),
        by=None,
        why="output 'y'",
    ),
    "less-the-first-row": Case(
        text=f"g ({_X2}) => (float[n,2] y) <int64[1] i = {{0}}>"
        " { f = Gather <axis = 0> (x, i) y = Sub(x, f) }",
        draw=_floats(2),
        by=None,
        why="output 'y'",
    ),
    "sorted-rows": Case(
        text=f"g ({_X2}) => (float[n,2] y) <int64[1] k = {{0}}>"
        " { s = Shape <start = 0, end = 1> (x) y, i = TopK <axis = 0> (x, s) }",
        draw=_floats(2),
        by=None,
        why="output 'y'",
    ),
    "best-row": Case(
        text=f"g ({_X2}) => (int64[2] y) {{ y = ArgMax <axis = 0, keepdims = 0> (x) }}",
        draw=_floats(2),
        by=None,
        why="output 'y'",
    ),
    "best-columns": Case(
        text="g (float[n,4] x) => (float[n,2] y, int64[n,2] i) <int64[1] k = {2}>"
        " { y, i = TopK (x, k) }",
        draw=_floats(4),
        exact=True,
    ),
    "two-outputs": Case(
        text=f"g ({_X2}) => (float[n,2] y, float[n] z, float[2,n] t) <int64[1] a = {{1}}>"
        " { y = Neg(x) z = ReduceMin <keepdims = 0> (x, a) t = Transpose(x) }",
        draw=_floats(2),
        exact=True,
    ),
    "two-rows-of-one": Case(
        text="g (float[n,4] x) => (float[m,2] y) <int64[2] s = {-1, 2}> { y = Reshape(x, s) }",
        draw=_floats(4),
        by=None,
        why="output 'y'",
    ),
    "flattened": Case(
        text="g (float[n,2,3] x) => (float[n,6] y) { y = Flatten(x) }",
        draw=_floats(2, 3),
        exact=True,
    ),
    "filled-up": Case(
        text=f"g ({_X2}) => (float[8,2] y) <int64[2] w = {{8, 2}}, float v = {{0}},"
        " int64[2] z = {0, 0}> { s = Shape(x) d = Sub(w, s)"
        " p = Concat <axis = 0> (z, d) y = Pad(x, p, v) }",
        draw=_floats(2),
        by=None,
    ),
    "each-with-each": Case(
        text="g (float[a,2] x, float[b,2] s) => (float[a,b] y)"
        " { t = Transpose(s) y = MatMul(x, t) }",
        draw=_with(_floats(2), s=lambda rng, rows: rng.integers(0, 3, (2, 2)).astype("float32")),
    ),
    "at-least": Case(
        text=f"g ({_X2}, float t) => (bool[n,2] y) {{ y = Greater(x, t) }}",
        draw=_with(_floats(2), t=_scalar),
        exact=True,
    ),
    "looked-up": Case(
        text="g (int64[n,2] x) => (float[n,2,2] y)"
        " <float[3,2] t = {1, 2, 3, 4, 5, 6}> { y = Gather <axis = 0> (t, x) }",
        draw=_below(4, 2),  # the model refuses the 3
        exact=True,
    ),
    "texts-of-one-axis": Case(
        text="g (string[n] x) => (string[n] y) { y = StringConcat(x, x) }",
        draw=lambda rng: {"x": _texts(rng)["x"][:, 0]},
        exact=True,
    ),
    "compared-texts": Case(
        text="g (string[n,2] x, string[k] s) => (bool[n,2] y) { y = Equal(x, s) }",
        draw=_with(_texts, s=lambda rng, rows: np.array([["ab"], ["é"]], object)[rng.integers(2)]),
        exact=True,
    ),
    "means-of-pictures": Case(
        text="g (float[n,2,h,w] x) => (float[n,2,1,1] y) { y = GlobalAveragePool(x) }",
        draw=_pictures,
    ),
    "blurred-pictures": Case(
        text="g (float[n,2,h,w] x) => (float[n,2,h,w] y)"
        " { y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x) }",
        draw=_pictures,
    ),
    "special-numbers": Case(
        text=f"g ({_X2}) => (float[n,2] y) {{ y = Neg(x) }}", draw=_special(2), exact=True
    ),
    "special-numbers-float64": Case(
        text="g (double[n,2] x) => (double[n,2] y) { y = Neg(x) }",
        draw=_special(2, dtype="float64"),
        exact=True,
    ),
    "special-numbers-float16": Case(
        text="g (float16[n,2] x) => (float16[n,2] y) { y = Neg(x) }",
        draw=_special(2, dtype="float16"),
        exact=True,
    ),
    "from-bfloat16": Case(
        text="g (bfloat16[n,2] x) => (float[n,2] y) { y = Cast <to = 1> (x) }",
        draw=_bfloat16,
        exact=True,
    ),
    "texts": Case(
        text="g (string[n,2] x) => (string[n,2] y) { y = StringConcat(x, x) }",
        draw=_texts,
        exact=True,
    ),
    "ragged": Case(
        text="g (float[n,t] x) => (float[n,t] y) { y = Relu(x) }",
        draw=_ragged,
        exact=True,
        pads=True,
    ),
    "ragged-sums": Case(
        text="g (float[n,t] x) => (float[n] y) <int64[1] a = {1}>"
        " { y = ReduceSum <keepdims = 0> (x, a) }",
        draw=_ragged,
        pads=True,
    ),
    "ragged-means": Case(
        text="g (float[n,t] x) => (float[n] y) <int64[1] a = {1}>"
        " { y = ReduceMean <keepdims = 0> (x, a) }",
        draw=_ragged,
    ),
    "ragged-maxima": Case(
        text="g (float[n,t] x) => (float[n] y) <int64[1] a = {1}>"
        " { y = ReduceMax <keepdims = 0> (x, a) }",
        draw=_ragged,
        exact=True,
    ),
    "ragged-minima": Case(
        text="g (float[n,t] x) => (float[n] y) <int64[1] a = {1}>"
        " { y = ReduceMin <keepdims = 0> (x, a) }",
        draw=_ragged,
        exact=True,
    ),
    "number-of-columns": Case(
        text="g (float[n,t] x) => (float[n,t] y, int64[1] columns)"
        " { y = Neg(x) columns = Shape <start = 1, end = 2> (x) }",
        draw=_ragged,
        exact=True,
    ),
    "one-row-has-one-axis-less": Case(
        text="g (float[n,3] x) => (float[k] y) { y = Squeeze(x) }",
        draw=_floats(3),
        by=None,
        why="output 'y'",
    ),
    "unnamed": Case(
        text=f"g ({_X2}) => (float[n,2] y) {{ y = Abs(x) }}",
        draw=_floats(2),
        exact=True,
        named=False,
    ),
    "unnamed-mean-subtracted": Case(
        text=f"g ({_X2}) => (float[n,2] y) <int64[1] a = {{0}}>"
        " { m = ReduceMean (x, a) y = Sub(x, m) }",
        draw=_floats(2),
        by=None,
        why="output 'y'",
        named=False,
    ),
    "chosen-rows": Case(
        text=f"g ({_X2}, int64[k] i) => (float[k,2] y) {{ y = Gather <axis = 0> (x, i) }}",
        draw=_with(_floats(2), i=lambda rng, rows: rng.integers(0, rows, 2)),
        exact=True,
    ),
    "chosen-columns": Case(
        text=f"g ({_X2}, int64[k] i) => (float[n,k] y) {{ y = Gather <axis = 1> (x, i) }}",
        draw=_with(_floats(2), i=lambda rng, rows: rng.integers(0, 2, 2)),
        exact=True,
    ),
    "mask-of-the-batch": Case(
        text=f"g ({_X2}, bool[n] m) => (float[n,2] y) <float[1] z = {{0}}, int64[1] a = {{1}}>"
        " { c = Unsqueeze(m, a) y = Where(c, x, z) }",
        draw=_with(_floats(2), m=lambda rng, rows: rng.integers(0, 2, rows).astype(bool)),
        exact=True,
    ),
    "random": Case(
        text=f"g ({_X2}) => (float[n,2] y) {{ r = RandomUniformLike(x) y = Add(x, r) }}",
        draw=_floats(2),
        why="two runs",
        repeats=False,
    ),
    "quantised": Case(
        text=f"g ({_X2}) => (float[n,2] y)"
        " { q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }",
        draw=_floats(2),
        by=None,
        why="output 'y'",
    ),
    **{
        f"identity-{dtype}": Case(
            text=f"g ({onnx_type}[n,2] x) => ({onnx_type}[n,2] y) {{ y = Identity(x) }}",
            draw=_special(2, dtype=dtype)
            if dtype.startswith("float")
            else _integers(2, dtype=dtype),
            exact=True,
        )
        for dtype, onnx_type in (
            ("bool", "bool"),
            ("int8", "int8"),
            ("uint8", "uint8"),
            ("int16", "int16"),
            ("uint16", "uint16"),
            ("int32", "int32"),
            ("uint32", "uint32"),
            ("int64", "int64"),
            ("uint64", "uint64"),
            ("float16", "float16"),
            ("float64", "double"),
        )
    },
    "reshaped": Case(
        text=f"g ({_X2}, int64[2] s) => (float[a,b] y) {{ y = Reshape(x, s) }}",
        draw=_with(_floats(2), s=lambda rng, rows: np.array([rng.integers(1, 4), 2])),
        by=None,
        exact=True,
    ),
    "sums-of-sequences": Case(
        text=f"g ({_X2}, int64[m] x_lod) => (float[k,2] y)"
        " <int64[1] a = {0}, int64[1] b = {1}, int64[1] c = {-1}, int64[1] d = {1000000},"
        " int64 zero = {0}, int64 one = {1}>"
        " { starts = Slice(x_lod, a, c) ends = Slice(x_lod, b, d)"
        " count = Shape <start = 0, end = 1> (x) rows = Squeeze(count) i = Range(zero, rows, one)"
        " s = Unsqueeze(starts, b) e = Unsqueeze(ends, b) least = GreaterOrEqual(i, s)"
        " below = Less(i, e) both = And(least, below) w = Cast <to = 1> (both) y = MatMul(w, x) }",
        draw=_sequences,
        exact=True,
    ),
    "sequences": Case(
        text=f"g ({_X2}) => (float[n,2] y) {{ y = Neg(x) }}",
        draw=_some_sequences,
        exact=True,
        conf="""feed_var { name: "x" alias_name: "x" is_lod_tensor: true }
        fetch_var { name: "y" alias_name: "y" is_lod_tensor: true }""",
    ),
}

REQUEST: Final = "request"

GRAPHS: Final[dict[str, dict[str, str]]] = {
    "chain": {"softmax-of-a-row": REQUEST, "matmul": "softmax-of-a-row"},
    "chain-to-no-rows": {"double": REQUEST, "softmax-over-rows": "double"},
    "chain-from-no-rows": {"softmax-over-rows": REQUEST, "double": "softmax-over-rows"},
    "ensemble": {"double": REQUEST, "mean-subtracted": REQUEST, "softmax-of-a-row": REQUEST},
}
"""Graphs of these models: the models of each, with the model that each reads. A model takes the
outputs of the one before it by position; several last models answer together.
"""

EACH_ROW: Final = (
    *("double", "matmul", "softmax-of-a-row", "identity-int64", "identity-float16"),
    *("softmax-over-rows", "mean-subtracted"),
)
"""Models that are also served with mini-batches, in which each row of a request is a feed."""
