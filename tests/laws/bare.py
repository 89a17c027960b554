"""Models run by ONNX Runtime alone, one request at a time: what every answer must be equal to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from penstock.batching.probe import TOLERANCES
from penstock.tensor import LOD_SUFFIX
from tests.laws.zoo import CASES, GRAPHS, REQUEST, Case, save

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
    """An open model, or a graph of models.

    Attributes:
        file: what is served; None for a graph.
        inputs, outputs: their datatypes, as in the Open Inference Protocol.
        run: the answer to one request; raises Fails if there is none.
    """

    name: str
    case: Case
    file: Path | None
    inputs: dict[str, str]
    outputs: dict[str, str]
    run: Callable[[Arrays], Arrays]

    @classmethod
    def open(cls, name: str, folder: Path) -> Bare:
        """Save and open a model of the zoo."""
        file = save(name, folder)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        of_onnx = file / f"{name}.onnx" if file.is_dir() else file
        session = onnxruntime.InferenceSession(of_onnx, options, providers=["CPUExecutionProvider"])
        inputs = {each.name: _datatype(each.type) for each in session.get_inputs()}
        outputs = {each.name: _datatype(each.type) for each in session.get_outputs()}
        keeps_lod = bool(CASES[name].conf)

        def run(feed: Arrays) -> Arrays:
            given = {key: value for key, value in feed.items() if key in inputs}
            try:
                if "BF16" in inputs.values():
                    values = session.run_with_ort_values(None, _ort_values(given))
                    found = [each.numpy() for each in values]
                else:
                    found = session.run(None, given)
            except Exception as error:  # its classes have no base of their own
                raise Fails(str(error)) from error
            answer = dict(zip(outputs, found, strict=True))
            for output in [*answer] if keeps_lod else ():
                for lod in (value for key, value in feed.items() if key.endswith(LOD_SUFFIX)):
                    answer[output + LOD_SUFFIX] = lod.astype(np.int32)
            return answer

        return cls(name=name, case=CASES[name], file=file, inputs=inputs, outputs=outputs, run=run)

    @property
    def datatypes(self) -> set[str]:
        """Of all inputs and outputs."""
        return {*self.inputs.values(), *self.outputs.values()}


def graph(name: str, models: Mapping[str, Bare]) -> Bare:
    """A graph of the zoo, of open models."""
    reads = GRAPHS[name]
    parts = {each: models[each] for each in reads}
    last = [each for each in reads if each not in reads.values()]
    (entry, *_) = (models[each] for each, source in reads.items() if source == REQUEST)

    def named(answers: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        if len(last) == 1:
            return answers[last[0]]
        return {f"{each}/{key}": value for each in last for key, value in answers[each].items()}

    def run(feed: Arrays) -> Arrays:
        answers: dict[str, Arrays] = {}
        for each, source in reads.items():
            if source == REQUEST:
                answers[each] = parts[each].run(feed)
            else:
                outputs = answers[source].values()
                answers[each] = parts[each].run(dict(zip(parts[each].inputs, outputs, strict=True)))
        return named(answers)

    return Bare(
        name=name,
        case=replace(entry.case, exact=all(each.case.exact for each in parts.values())),
        file=None,
        inputs=entry.inputs,
        outputs=named({each: models[each].outputs for each in last}),
        run=run,
    )


def each_row(model: Bare) -> Bare:
    """A model that answers each row of a request as if it was alone."""

    def run(feed: Arrays) -> Arrays:
        rows = range(len(next(iter(feed.values()))))
        found = [model.run({key: x[at : at + 1] for key, x in feed.items()}) for at in rows]
        return {key: np.concatenate([each[key] for each in found]) for key in model.outputs}

    return replace(model, run=run)


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


def _ort_values(feed: Arrays) -> dict[str, Any]:
    make = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
    return {name: make(_bits(value), _ONNX_BF16) for name, value in feed.items()}


def _bits(value: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of BF16 of values that it holds exactly."""
    return (np.ascontiguousarray(value, np.float32).view(np.uint32) >> 16).astype(np.uint16)
