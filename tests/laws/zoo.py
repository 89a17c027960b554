"""The models of the law: ONNX models of a few nodes, each with what must be known about its rows.

``by`` is the decision: ``rows``, or None for models that are not batched; ``why`` is a part of its
reason. ``inputs`` draws the inputs of one request.
"""

from __future__ import annotations

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
        options: further options of its op.
    """

    text: str
    draw: Draw
    by: str | None = "rows"
    why: str = ""
    exact: bool = False
    named: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def save(name: str, folder: Path) -> Path:
    """Write a model's file."""
    file, case = folder / f"{name}.onnx", CASES[name]
    model = onnx.parser.parse_model(f"{_HEAD} {case.text}")
    if not case.named:
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")
    onnx.save(model, str(file))
    return file


def _rows(rng: np.random.Generator) -> int:
    return int(rng.choice([1, 1, 1, 2, 3, 5]))


def _floats(*shape: int, dtype: str = "float32", **of: str) -> Draw:
    """An input x with rows and these further axes."""

    def draw(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        return {"x": rng.standard_normal((_rows(rng), *shape)).astype(dtype)}

    return draw


def _integers(*shape: int, dtype: str = "int64", high: int = 5) -> Draw:
    def draw(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        return {"x": rng.integers(0, high, (_rows(rng), *shape)).astype(dtype)}

    return draw


def _texts(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    texts = np.array(["ab", "Cd", "eF", "é"], object)
    return {"x": texts[rng.integers(0, 4, (_rows(rng), 2))]}


def _ragged(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {"x": rng.standard_normal((_rows(rng), int(rng.integers(1, 9)))).astype("float32")}


def _no_rows(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {"x": rng.standard_normal((int(rng.integers(0, 3)), 2)).astype("float32")}


def _with(draw: Draw, **others: Callable[[np.random.Generator, int], NDArray[Any]]) -> Draw:
    """Further inputs, made from the number of rows of x."""

    def both(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        feed = draw(rng)
        return {**feed, **{name: make(rng, len(feed["x"])) for name, make in others.items()}}

    return both


def _scalar(rng: np.random.Generator, rows: int) -> NDArray[Any]:
    return np.float32(rng.integers(1, 4)).reshape(())


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
    "texts": Case(
        text="g (string[n,2] x) => (string[n,2] y) { y = StringConcat(x, x) }",
        draw=_texts,
        exact=True,
    ),
    "ragged": Case(
        text="g (float[n,t] x) => (float[n,t] y) { y = Relu(x) }", draw=_ragged, exact=True
    ),
    "ragged-sums": Case(
        text="g (float[n,t] x) => (float[n] y) <int64[1] a = {1}>"
        " { y = ReduceSum <keepdims = 0> (x, a) }",
        draw=_ragged,
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
            draw=_integers(2, dtype=dtype, high=2),
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
}
