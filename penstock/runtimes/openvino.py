"""The runtime of OpenVINO.

Threads: a session serves one thread, and each clone compiles the model again. Infer requests of one
compiled model would need less memory, but after a failed run, such as with inputs that do not fit
each other, OpenVINO 2026.4 refuses valid inputs too. So a model is compiled again after a failed
run, without effect on other sessions.

Options:

* ``thread_num`` is the number of threads of one run.
* ``precision`` ``bf16`` or ``fp16`` is the kernels' precision, if the CPU supports it. OpenVINO's
  own default may be bf16; here it is fp32.
* A quantised model runs as it is, with ``precision: fp32``; ``int8`` is an error.
* Graphs are always optimised, memory is always reused, and oneDNN's kernels are always used.

Source: OpenVINO's documentation of the CPU device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InferenceFailed, InputMismatch, ModelError
from penstock.runtimes.options import (
    CPU,
    ONEDNN,
    TENSORRT_ONLY,
    device_problems,
    thread_problems,
    without_effect,
)
from penstock.runtimes.runtime import ModelOptions, OptionProblem, check_installed
from penstock.tensor import TensorSpec

NAME: Final = "OpenVINO"
MODEL_FILE: Final = "model.xml"

_SUFFIX: Final = ".xml"
_BEGINS: Final = b"<net "
_WITHIN: Final = 4096  # bytes of a file that are searched for it; comments may precede it

_NO_EFFECT: Final = ("ir_optim", "mem_optim", *ONEDNN, *TENSORRT_ONLY)

_HINTS: Final = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
_CAPABILITIES: Final = {"bf16": "BF16", "fp16": "FP16"}

_MAX_ERROR_TEXT: Final = 400  # maximum characters of the library's error text


class OpenvinoRuntime:
    """Opens ``.xml`` files with their ``.bin``, and folders that hold them."""

    name = "openvino"

    def can_open(self, path: Path) -> bool:
        """Whether there is an ``.xml`` file that begins like OpenVINO's."""
        if path.is_dir():
            return any(_models(path))
        return path.suffix == _SUFFIX and _is_model(path)

    def problems(self, path: Path, options: ModelOptions) -> list[OptionProblem]:
        """See ``Runtime``; the installed library decides what the CPU supports."""
        found: list[OptionProblem] = []
        library = None
        try:
            if options.precision.lower() != "fp32":
                library = _library()
            else:
                with _needing_openvino():
                    check_installed("openvino")
        except ModelError as error:
            found.append(OptionProblem(key="model_config", text=str(error)))
        try:
            model_file(path)
        except ModelError as error:
            found.append(OptionProblem(key="model_config", text=str(error)))
        capabilities = None
        if library is not None:
            capabilities = library.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return [*found, *option_problems(options, capabilities)]

    def open(self, path: Path, options: ModelOptions) -> OpenvinoSession:
        """Open the model.

        Raises:
            ModelError: see ``Runtime``.
        """
        file = model_file(path)
        library = _library()
        core = library.Core()
        capabilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if problems := option_problems(options, capabilities):
            raise ModelError("; ".join(map(str, problems)))
        try:
            model = core.read_model(str(file))
            _mark_axes(library, model)
            compile_model = partial(core.compile_model, model, "CPU", properties_for(options))
            compiled = compile_model()
        except Exception as error:
            # The library raises RuntimeError for any invalid file.
            raise ModelError(f"{NAME} cannot open {str(file)!r}: {_error_text(error)}") from error
        axes = _named_axes(compiled.inputs)
        inputs, outputs = (
            tuple(_spec(port, f"{kind}_{at}", axes, file) for at, port in enumerate(ports))
            for kind, ports in (("input", compiled.inputs), ("output", compiled.outputs))
        )
        notes = without_effect(options, _NO_EFFECT, NAME)
        return OpenvinoSession(library, compile_model, compiled, file, inputs, outputs, notes)


class OpenvinoSession:
    """An open model. Not thread-safe: each thread needs its own ``clone``."""

    thread_safe = False
    holds_gil = False

    def __init__(
        self,
        library: Any,
        compile_model: Callable[[], Any],
        compiled: Any,
        file: Path,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        notes: tuple[str, ...],
    ) -> None:
        self._library = library
        self._compile = compile_model
        self._request = compiled.create_infer_request()
        self._file = file
        self._places = {spec.name: at for at, spec in enumerate(outputs)}
        self.inputs = inputs
        self.outputs = outputs
        self.notes = notes

    def run(self, feeds: Mapping[str, NDArray[Any]], fetch: Sequence[str]) -> list[NDArray[Any]]:
        """Run the model; writable contiguous inputs are not copied. See ``Session``."""
        request = self._request
        copies = []  # kept alive: the request holds no references to shared arrays
        try:
            for at, spec in enumerate(self.inputs):
                value = feeds[spec.name]
                flags = value.flags
                if not (flags.c_contiguous and flags.writeable):  # OpenVINO shares no others
                    value = np.array(value, order="C")
                    copies.append(value)
                request.set_input_tensor(at, self._library.Tensor(value, shared_memory=True))
        except KeyError as error:
            raise InputMismatch(f"{self._file.name}: nothing is fed to {error}") from None
        except Exception as error:
            raise InputMismatch(_error_text(error)) from error
        try:
            # With one thread, infer() loses failures: the outputs of the previous run stay.
            request.start_async()
            request.wait()
            # Copied, because the request's next run writes to the same memory.
            return [request.get_output_tensor(self._places[name]).data.copy() for name in fetch]
        except Exception as error:
            self._request = self._compile().create_infer_request()
            raise InferenceFailed(_error_text(error)) from error

    def clone(self) -> OpenvinoSession:
        """Compile the model again."""
        return OpenvinoSession(
            self._library,
            self._compile,
            self._compile(),
            self._file,
            self.inputs,
            self.outputs,
            self.notes,
        )

    def __repr__(self) -> str:
        return f"<OpenvinoSession {self._file}>"


def model_file(path: Path) -> Path:
    """Return the file to open: the path, the folder's ``model.xml``, or its only model.

    Raises:
        ModelError: there are several, or the weights are missing.
        OSError: the files cannot be read.
    """
    file = path
    if path.is_dir():
        found = _models(path)
        named = [each for each in found if each.name == MODEL_FILE]
        if len(named or found) != 1:
            names = ", ".join(each.name for each in found) or "none"
            raise ModelError(
                f"model folder {str(path)!r}: looked for {MODEL_FILE} or exactly one model in"
                f" *{_SUFFIX}, found {names}"
            )
        (file,) = named or found
    if file.is_file() and not file.with_suffix(".bin").is_file():
        raise ModelError(f"{file} needs its weights, {file.with_suffix('.bin').name}, beside it")
    return file


def option_problems(
    options: ModelOptions, capabilities: Sequence[str] | None
) -> list[OptionProblem]:
    """Return the options that change results or placement and are not supported.

    Args:
        options: the options.
        capabilities: the library's capabilities on this CPU; None if unknown.
    """
    found = thread_problems(options)
    precision = options.precision.lower()
    why = None
    if precision not in _HINTS:
        why = f"is not available with {NAME}; use fp32, bf16 or fp16"
    elif capabilities is not None and _CAPABILITIES.get(precision, "FP32") not in capabilities:
        why = "is not available on this CPU"
    if why is not None:
        found.append(OptionProblem(key="precision", text=f"{options.precision} {why}"))
    if options.use_calib:
        text = f"int8 calibration is not available with {NAME}"
        found.append(OptionProblem(key="use_calib", text=text))
    no_cards = f"{NAME} runs models on the CPU only"
    return [*found, *device_problems(options, NAME, (CPU,), no_cards)]


def properties_for(options: ModelOptions) -> dict[str, Any]:
    """Return OpenVINO's properties.

    Args:
        options: without ``option_problems``.
    """
    return {
        "INFERENCE_NUM_THREADS": options.thread_num,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": _HINTS[options.precision.lower()],
        # Pinned threads of all worker processes would be pinned to the same CPUs.
        "ENABLE_CPU_PINNING": False,
    }


def _library() -> Any:
    with _needing_openvino():
        import openvino
    return openvino


@contextmanager
def _needing_openvino() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ModelError(
            f"opening an OpenVINO model needs {NAME}: install 'penstock-serving[openvino]'"
            f" ({error})"
        ) from error


def _models(folder: Path) -> list[Path]:
    return sorted(each for each in folder.glob("*" + _SUFFIX) if _is_model(each))


def _is_model(file: Path) -> bool:
    """Whether the XML begins like a model; other files may be ``.xml`` too."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return _BEGINS in opened.read(_WITHIN)


def _spec(port: Any, otherwise: str, axes: Sequence[tuple[str, Any]], file: Path) -> TensorSpec:
    name = port.get_any_name() if port.names else otherwise
    theirs = port.element_type
    try:
        dtype = np.dtype(theirs.to_dtype())
    except Exception as error:
        raise ModelError(f"{file}: {name!r} is {theirs}, which numpy cannot hold") from error
    if dtype.kind not in "biufc" or theirs.get_type_name() == "bf16":
        raise ModelError(f"{file}: {name!r} is {theirs}, which numpy cannot hold")
    if port.partial_shape.rank.is_dynamic:
        return TensorSpec(name=name, alias=name, dtype=dtype, shape=None)
    dims = [*port.partial_shape]
    shape = tuple(dim.get_length() if dim.is_static else None for dim in dims)
    symbols = [dim.get_symbol() if dim.has_symbol() else None for dim in dims]
    named = tuple(
        next((axis for axis, of in axes if symbol is not None and of == symbol), None)
        for symbol in symbols
    )
    return TensorSpec(name=name, alias=name, dtype=dtype, shape=shape, axes=named)


def _mark_axes(library: Any, model: Any) -> None:
    """Mark variable dimensions with symbols, which OpenVINO propagates to the outputs."""
    for parameter in model.get_parameters():
        shape = parameter.get_partial_shape()
        if shape.rank.is_dynamic:
            continue
        dims = [*shape]
        for dim in dims:
            if dim.is_dynamic:
                dim.set_symbol(library.Symbol())
        parameter.set_partial_shape(library.PartialShape(dims))
    model.validate_nodes_and_infer_types()


def _named_axes(inputs: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return a name and the symbol of each variable axis; axes with equal symbols are equal."""
    return [
        (f"{number}.{index}", dim.get_symbol())
        for number, port in enumerate(inputs)
        if not port.partial_shape.rank.is_dynamic
        for index, dim in enumerate(port.partial_shape)
        if dim.has_symbol()
    ]


def _error_text(error: Exception) -> str:
    """Return the library's error text, without source locations."""
    lines = [line for line in str(error).splitlines() if not line.startswith("Exception from ")]
    return " ".join(" ".join(lines).split())[:_MAX_ERROR_TEXT] or type(error).__name__
