"""Models run by ONNX Runtime alone, one request at a time: what every answer must be equal to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from penstock.batching.probe import TOLERANCES
from tests.laws.zoo import CASES, Case, save

Arrays: TypeAlias = dict[str, NDArray[Any]]

_DATATYPES: Final = {
    "float": "FP32",
    "double": "FP64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "string": "BYTES",
    "bool": "BOOL",
    **{
        f"{sign}int{bits}": f"{sign}int{bits}".upper()
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}
_ONNX_BF16: Final = 16


class Fails(Exception):
    """The model does not run on this request."""


@dataclass(frozen=True, kw_only=True)
class Bare:
    """An open model.

    Attributes:
        inputs, outputs: their datatypes, as in the Open Inference Protocol.
    """

    name: str
    case: Case
    file: Path
    session: onnxruntime.InferenceSession
    inputs: dict[str, str]
    outputs: dict[str, str]

    @classmethod
    def open(cls, name: str, folder: Path) -> Bare:
        """Save and open a model of the zoo."""
        file = save(name, folder)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return cls(
            name=name,
            case=CASES[name],
            file=file,
            session=session,
            inputs={each.name: _datatype(each.type) for each in session.get_inputs()},
            outputs={each.name: _datatype(each.type) for each in session.get_outputs()},
        )

    @property
    def datatypes(self) -> set[str]:
        """Of all inputs and outputs."""
        return {*self.inputs.values(), *self.outputs.values()}

    def run(self, feed: Arrays) -> Arrays:
        """The answer to one request.

        Raises:
            Fails: there is none.
        """
        try:
            if "BF16" in self.inputs.values():
                found = self.session.run_with_ort_values(None, self._values(feed))
                return {name: each.numpy() for name, each in zip(self.outputs, found, strict=True)}
            return dict(zip(self.outputs, self.session.run(None, feed), strict=True))
        except Exception as error:  # its classes have no base of their own
            raise Fails(str(error)) from error

    def _values(self, feed: Arrays) -> dict[str, Any]:
        make = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
        return {name: make(_bits(value), _ONNX_BF16) for name, value in feed.items()}


def difference(bare: Bare, expected: Arrays, answer: dict[str, Any]) -> str | None:
    """How an answer differs from that of the request alone, as text.

    Args:
        bare: the model; numbers of one that is ``exact`` are equal to the last bit.
        expected: the answer of the request alone.
        answer: arrays; or nested lists, which have no dtype.
    """
    if answer.keys() != expected.keys():
        return f"has {[*answer]} instead of {[*expected]}"
    for name, one in expected.items():
        got = answer[name]
        if not isinstance(got, np.ndarray):
            got = _array(got, one)
        if (got.shape, got.dtype) != (one.shape, one.dtype):
            return f"{name} is {got.dtype}{[*got.shape]} instead of {one.dtype}{[*one.shape]}"
        if bare.case.repeats and not _equal(one, got, exact=bare.case.exact):
            return f"{name} is {got.tolist()} instead of {one.tolist()}"
    return None


def _array(listed: Any, expected: NDArray[Any]) -> NDArray[Any]:
    """The array of nested lists; a list without elements has lost its further axes."""
    plain = np.array(listed, object)
    found = plain.astype(expected.dtype)
    if not found.size and not expected.size:
        return found.reshape(expected.shape)
    if expected.dtype.kind in "iub":  # a float or a text is no integer
        assert {type(each) for each in plain.ravel()} <= {type(expected.ravel()[:1].tolist()[0])}
    return found


def _equal(one: NDArray[Any], other: NDArray[Any], *, exact: bool) -> bool:
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    if exact:
        return bool(np.array_equal(one, other, equal_nan=True))
    scale = np.max(np.abs(one[np.isfinite(one)]), initial=0.0)
    most = TOLERANCES[one.dtype.name] * scale
    return bool(np.allclose(one, other, rtol=0, atol=most, equal_nan=True))


def _datatype(text: str) -> str:
    return _DATATYPES[text.removeprefix("tensor(").removesuffix(")")]


def _bits(value: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of BF16 of values that it holds exactly."""
    return (np.ascontiguousarray(value, np.float32).view(np.uint32) >> 16).astype(np.uint16)
