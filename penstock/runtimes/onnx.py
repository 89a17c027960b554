"""The runtime of ONNX Runtime.

Threads: one session serves all threads. ONNX Runtime guarantees that several threads may call
``Run`` on one session at once (its documentation, reference, high-level design); the GIL is
released during a run.

Options:

* ``thread_num`` is the size of the pool inside one operator; operators run one after another.
* ``ir_optim`` switches all graph optimisations on or off. The default is on, although the
  original's is off: ONNX Runtime's optimisations keep the results (only the last bits of a sum may
  differ, as between two processors).
* ``mem_optim`` reuses the memory of intermediate values.
* The keys of oneDNN and TensorRT have no effect; a note is logged.
* Inputs and outputs of bfloat16, which numpy lacks, are float32 here.
* ``precision``, ``use_calib``, ``device_type`` and ``devices`` change results or placement: values
  that are not supported are errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InferenceFailed, InputMismatch, MissingDevice, ModelError
from penstock.protocols.oip import rounded
from penstock.runtimes.options import (
    CPU,
    GPU,
    ONEDNN,
    TENSORRT_ONLY,
    device_problems,
    on_cpu,
    thread_problems,
    without_effect,
)
from penstock.runtimes.runtime import ModelOptions, OptionProblem
from penstock.tensor import TensorSpec

MODEL_FILE = "model.onnx"
SUFFIX = ".onnx"

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"

_NO_SUCH_CARD = "invalid device ordinal"
"""CUDA's error text for a GPU that does not exist."""

_NO_EFFECT = (*ONEDNN, *TENSORRT_ONLY)

BF16: Final = "bfloat16"
"""numpy has no such type: the arrays of such tensors are float32."""
_DTYPES: dict[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    BF16: np.dtype(np.float32),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "uint64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
    "complex64": np.dtype(np.complex64),
    "complex128": np.dtype(np.complex128),
    "string": np.dtype(object),
}
_ONNX_BF16: Final = 16
"""The number of the element type in ONNX."""
_TENSOR = re.compile(r"tensor\((\w+)\)")


class OnnxRuntime:
    """Opens ``.onnx`` files, and folders that hold one."""

    name = "onnx"

    def can_open(self, path: Path) -> bool:
        """Whether there is an ``.onnx`` file; a folder with several is refused by ``open``."""
        if path.is_dir():
            return any(path.glob("*" + SUFFIX))
        return path.suffix == SUFFIX

    def problems(self, path: Path, options: ModelOptions) -> list[OptionProblem]:
        """See ``Runtime``; the installed library decides which devices are available."""
        found: list[OptionProblem] = []
        available: Sequence[str] = (_CPU, _CUDA)
        try:
            available = _library().get_available_providers()
        except ModelError as error:
            found.append(OptionProblem(key="model_config", text=str(error)))
        try:
            model_file(path)
        except ModelError as error:
            found.append(OptionProblem(key="model_config", text=str(error)))
        return [*found, *option_problems(options, available)]

    def open(self, path: Path, options: ModelOptions) -> OnnxSession:
        """Open the model on the device in the options.

        Raises:
            ModelError: see ``Runtime``.
        """
        file = model_file(path)
        library = _library()
        available = library.get_available_providers()
        if problems := option_problems(options, available):
            raise ModelError("; ".join(map(str, problems)))
        providers = providers_for(options)
        theirs = _session_options(library, options)
        try:
            session = library.InferenceSession(
                str(file),
                theirs,
                providers=providers,
                enable_fallback=0,  # a fallback would print, and run on another device
            )
        except Exception as error:
            # For an invalid file the library raises its own classes, RuntimeError or ValueError.
            kind = MissingDevice if _NO_SUCH_CARD in str(error) else ModelError
            raise kind(f"ONNX Runtime cannot open {str(file)!r}: {error}") from error
        wanted = providers[0][0]
        # If a GPU library cannot be loaded, ONNX Runtime only logs it, and uses the CPU.
        if wanted not in session.get_providers():
            text = f"ONNX Runtime could not start {wanted} for {file}"
            raise MissingDevice(str(OptionProblem(key="devices", text=text)))
        return OnnxSession(session, file, without_effect(options, _NO_EFFECT, "ONNX Runtime"))


class OnnxSession:
    """An open ONNX model. Thread-safe."""

    thread_safe = True
    holds_gil = False

    def __init__(self, session: Any, file: Path, notes: tuple[str, ...] = ()) -> None:
        self._session = session
        self._file = file
        from onnxruntime import OrtValue
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        self._values = OrtValue
        # Raised for a dtype, rank or value that the model refuses, and for a missing name.
        self._refusals = (state.InvalidArgument, ValueError)
        self.inputs = tuple(_spec(node, file) for node in session.get_inputs())
        tensors = [node for node in session.get_outputs() if _TENSOR.fullmatch(node.type)]
        self.outputs = tuple(_spec(node, file) for node in tensors)
        self._has_bf16 = any(spec.bf16 for spec in (*self.inputs, *self.outputs))
        names = {spec.name for spec in self.outputs}
        left_out = [node for node in session.get_outputs() if node.name not in names]
        self.notes = notes + tuple(
            f"output {node.name!r} of {file} is no tensor but {node.type} and cannot be fetched"
            for node in left_out
        )

    def run(self, feeds: Mapping[str, NDArray[Any]], fetch: Sequence[str]) -> list[NDArray[Any]]:
        """Run the model, without copying the inputs; see ``Session``."""
        try:
            if self._has_bf16:
                return self._run_bf16(feeds, fetch)
            results: list[NDArray[Any]] = self._session.run(fetch, feeds)
        except self._refusals as error:
            raise InputMismatch(str(error)) from error
        except Exception as error:
            raise InferenceFailed(str(error)) from error
        return results

    def _run_bf16(
        self, feeds: Mapping[str, NDArray[Any]], fetch: Sequence[str]
    ) -> list[NDArray[Any]]:
        """Run a model with BF16 inputs or outputs, which the library takes and gives as its own
        values only.
        """
        values = {}
        for spec in self.inputs:
            given = feeds[spec.name]
            if spec.bf16:
                make = self._values.ortvalue_from_numpy_with_onnx_type
                values[spec.name] = make(rounded(given), _ONNX_BF16)
            else:
                values[spec.name] = self._values.ortvalue_from_numpy(given)
        found = self._session.run_with_ort_values(fetch, values)
        return [_array(each) for each in found]

    def clone(self) -> OnnxSession:
        """Return this session: it is thread-safe."""
        return self

    def __repr__(self) -> str:
        return f"<OnnxSession {self._file}>"


def _array(value: Any) -> NDArray[Any]:
    """The array of an OrtValue; of BF16 as float32."""
    if value.element_type() != _ONNX_BF16:
        array: NDArray[Any] = value.numpy()
        return array
    if value.device_name() != "cpu":
        raise InferenceFailed("an output of BF16 on a GPU cannot be read: let the model cast it")
    shape = tuple(value.shape())
    if 0 in shape:
        return np.empty(shape, np.float32)
    memory = {"data": (value.data_ptr(), True), "shape": shape, "typestr": "<u2", "version": 3}
    wide = np.asarray(SimpleNamespace(__array_interface__=memory)).astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def model_file(path: Path) -> Path:
    """Return the file to open: the path, the folder's ``model.onnx``, or its only ``*.onnx``.

    Raises:
        ModelError: there is no such file, or there are several.
    """
    if not path.is_dir():
        return path
    if (path / MODEL_FILE).is_file():
        return path / MODEL_FILE
    files = sorted(entry for entry in path.glob("*" + SUFFIX) if entry.is_file())
    if len(files) == 1:
        return files[0]
    found = ", ".join(entry.name for entry in files) or "none"
    raise ModelError(
        f"model folder {str(path)!r}: looked for {MODEL_FILE} or exactly one *{SUFFIX} file,"
        f" found {found}"
    )


def option_problems(options: ModelOptions, available: Sequence[str]) -> list[OptionProblem]:
    """Return the options that change results or placement and are not supported.

    Args:
        options: the options.
        available: the names of the installed library's providers.
    """
    found = thread_problems(options)
    if options.precision.lower() != "fp32":
        text = (
            f"{options.precision} is not available with ONNX Runtime, only fp32;"
            " convert the model itself and leave it out"
        )
        found.append(OptionProblem(key="precision", text=text))
    if options.use_calib:
        text = "int8 calibration is not available with ONNX Runtime"
        found.append(OptionProblem(key="use_calib", text=text))
    no_cards = None
    if _CUDA not in available:
        no_cards = (
            f"the installed ONNX Runtime has no {_CUDA} (it has {', '.join(available)});"
            " install onnxruntime-gpu or use the CPU"
        )
    return [*found, *device_problems(options, "ONNX Runtime", (CPU, GPU), no_cards)]


def providers_for(options: ModelOptions) -> list[tuple[str, dict[str, Any]]]:
    """Return ONNX Runtime's providers: the device, then the CPU for operators it lacks.

    Args:
        options: without ``option_problems``; ``device_type`` and ``devices`` are used.
    """
    if on_cpu(options):
        return [(_CPU, {})]
    return [(_CUDA, {"device_id": int(options.devices[0])}), (_CPU, {})]


def _library() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(
            f"opening an ONNX model needs ONNX Runtime: install 'penstock-serving[onnx]' ({error})"
        ) from error
    return onnxruntime


def _session_options(library: Any, options: ModelOptions) -> Any:
    theirs = library.SessionOptions()
    theirs.intra_op_num_threads = options.thread_num
    theirs.inter_op_num_threads = 1
    levels = library.GraphOptimizationLevel
    theirs.graph_optimization_level = (
        levels.ORT_DISABLE_ALL if options.ir_optim is False else levels.ORT_ENABLE_ALL
    )
    theirs.enable_mem_pattern = options.mem_optim
    theirs.enable_mem_reuse = options.mem_optim
    # By default, idle pool threads spin on cores that the engine and workers need. Measured on two
    # busy cores, 12 convolutions of 64 channels, a run every 20 ms: 27 ms of CPU a run spinning,
    # 7 ms not spinning, and 8-9 ms instead of 11-15 ms a run back to back.
    theirs.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Failures are raised too; the library's log lines about them would go directly to stderr.
    theirs.log_severity_level = 4
    return theirs


def _spec(node: Any, file: Path) -> TensorSpec:
    match = _TENSOR.fullmatch(node.type)
    dtype = _DTYPES.get(match.group(1)) if match else None
    if dtype is None:
        raise ModelError(f"{file}: {node.name!r} is {node.type}, which numpy cannot hold")
    # An unknown rank and a scalar are both []; neither is checked here, the library checks both.
    shape = tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in node.shape) or None
    # Exporters write "?" for any unknown size: two axes of that name have nothing in common.
    axes = tuple(
        dim if isinstance(dim, str) and any(map(str.isalnum, dim)) else None for dim in node.shape
    )
    name, bf16 = node.name, match is not None and match.group(1) == BF16
    return TensorSpec(name=name, alias=name, dtype=dtype, shape=shape, bf16=bf16, axes=axes)
