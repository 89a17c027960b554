"""The runtime of PyTorch: TorchScript and exported programs.

Threads: one module serves all threads; the GIL is released inside operators.

Options:

* ``thread_num`` is the number of threads inside of one operator. PyTorch has one number for the
  whole process: that of the model opened last.
* ``ir_optim`` freezes a TorchScript module: its weights become constants of the graph. Without the
  key it is frozen; exported programs run as they are.
* ``precision`` ``bf16`` or ``fp16`` uses autocast.
* ``device_type: 1`` needs a PyTorch with CUDA.

Signature: an exported program has all names, dtypes and shapes. TorchScript has the names of its
inputs and the number of its outputs; dtypes and shapes are in ``signature.json`` beside it, and
without that file inputs are assumed to be float32 of any shape. Outputs are named ``output_0`` and
so on, or by the keys of a dict.

Source: PyTorch's documentation of ``torch.jit`` and ``torch.export``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InferenceFailed, InputMismatch, ModelError
from penstock.runtimes.options import (
    CPU,
    GPU,
    ONEDNN,
    TENSORRT_ONLY,
    check_card,
    device_problems,
    on_cpu,
    thread_problems,
    without_effect,
)
from penstock.runtimes.runtime import ModelOptions, OptionProblem, check_installed
from penstock.runtimes.torch_files import (
    SIGNATURE,
    is_torch,
    kind_of,
    pickled_samples,
    read_signature,
    torch_file,
)
from penstock.tensor import TensorSpec

NAME: Final = "PyTorch"

_NO_EFFECT: Final = ("mem_optim", *ONEDNN, *TENSORRT_ONLY)

_DTYPES: Final = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)

_MAX_ERROR_TEXT: Final = 400  # maximum characters of the library's error text, which may be pages


class TorchRuntime:
    """Opens TorchScript and exported programs; never a pickle."""

    name = "torch"

    def can_open(self, path: Path) -> bool:
        """Whether there is a PyTorch file; ``open`` refuses pickles."""
        return is_torch(path)

    def problems(self, path: Path, options: ModelOptions) -> list[OptionProblem]:
        """See ``Runtime``; the installed library decides whether GPUs are available."""
        found: list[OptionProblem] = []
        library = None
        try:
            if not on_cpu(options):
                library = _library()
            else:
                with _needing_torch():
                    check_installed("torch")
        except ModelError as error:
            found.append(OptionProblem(key="model_config", text=str(error)))
        try:
            if path.exists():
                kind_of(torch_file(path))
        except ModelError as error:
            found.append(OptionProblem(key="model_config", text=str(error)))
        return [*found, *option_problems(options, library)]

    def open(self, path: Path, options: ModelOptions) -> TorchSession:
        """Open the model on the device in the options.

        Raises:
            ModelError: see ``Runtime``.
        """
        file = torch_file(path)
        kind = kind_of(file)
        library = _library()
        if problems := option_problems(options, library):
            raise ModelError("; ".join(map(str, problems)))
        device = "cpu" if on_cpu(options) else f"cuda:{options.devices[0]}"
        if not on_cpu(options):
            check_card(options, library.cuda.device_count(), NAME)
        library.set_num_threads(options.thread_num)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # TorchScript is deprecated
                opened = _script if kind == "script" else _exported
                program = opened(library, file, device, options)
        except (ModelError, OSError):
            raise
        except Exception as error:
            # For an invalid file the library raises RuntimeError and many others.
            raise ModelError(f"{NAME} cannot open {str(file)!r}: {_error_text(error)}") from error
        keys = _NO_EFFECT if kind == "script" else ("ir_optim", *_NO_EFFECT)
        notes = (*program.notes, *without_effect(options, keys, NAME))
        return TorchSession(library, replace(program, notes=notes), file, device, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A module and its signature.

    Attributes:
        call: takes one tensor for each input; returns a tensor, or a sequence or dict of tensors.
        inputs: the inputs, in order.
        outputs: the outputs, in order; for a dict by key.
        kept: the module's own tensors.
        in_place: whether it may write to its inputs.
        notes: warnings for the operator.
    """

    call: Callable[..., Any]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kept: tuple[Any, ...]
    in_place: bool
    notes: tuple[str, ...] = ()


class TorchSession:
    """An open model. Thread-safe."""

    thread_safe = True
    holds_gil = False

    def __init__(
        self, library: Any, program: Program, file: Path, device: str, options: ModelOptions
    ) -> None:
        self._library = library
        self._program = program
        self._file = file
        self._device = device
        self._precision = options.precision.lower()
        self._kept = frozenset(_address(each) for each in program.kept)
        self.inputs = program.inputs
        self.outputs = program.outputs
        self.notes = program.notes

    def run(self, feeds: Mapping[str, NDArray[Any]], fetch: Sequence[str]) -> list[NDArray[Any]]:
        """Run the model; writable contiguous inputs are not copied. See ``Session``."""
        library = self._library
        try:
            given = [self._tensor(feeds[spec.name], spec.bf16) for spec in self.inputs]
        except KeyError as error:
            raise InputMismatch(f"{self._file.name}: nothing is fed to {error}") from None
        except (TypeError, ValueError) as error:
            raise InputMismatch(_error_text(error)) from error
        try:
            with library.inference_mode(), self._autocast():
                got = self._program.call(*given)
            named = self._named(got)
            ours = self._kept | {_address(each) for each in given}
            return [self._array(named[name], ours) for name in fetch]
        except KeyError as error:
            raise InferenceFailed(f"{self._file.name} returned no output {error}") from None
        except MemoryError as error:
            raise InferenceFailed(_error_text(error)) from error
        except library.OutOfMemoryError as error:
            raise InferenceFailed(_error_text(error)) from error
        except Exception as error:
            # Operators raise RuntimeError for invalid operands, as for all other errors.
            raise InputMismatch(_error_text(error)) from error

    def clone(self) -> TorchSession:
        """Return this session: modules without state are thread-safe."""
        return self

    def _tensor(self, value: NDArray[Any], bf16: bool) -> Any:
        if self._program.in_place or not value.flags.writeable:
            value = value.copy()  # PyTorch warns about read-only arrays
        tensor = self._library.from_numpy(np.ascontiguousarray(value))
        return tensor.to(self._device, self._library.bfloat16 if bf16 else None)

    def _autocast(self) -> AbstractContextManager[Any]:
        dtypes = {"bf16": self._library.bfloat16, "fp16": self._library.float16}
        dtype = dtypes.get(self._precision)
        context: AbstractContextManager[Any] = self._library.autocast(
            self._device.partition(":")[0], dtype=dtype, enabled=dtype is not None
        )
        return context

    def _named(self, got: Any) -> Mapping[str, Any]:
        if isinstance(got, dict):
            return got
        values = got if isinstance(got, list | tuple) else [got]
        return dict(zip((spec.name for spec in self.outputs), values, strict=False))

    def _array(self, tensor: Any, ours: frozenset[int]) -> NDArray[Any]:
        library = self._library
        if tensor.dtype == library.bfloat16:  # numpy has no such type
            tensor = tensor.float()
        array: NDArray[Any] = tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
        # An output may share memory with an input or a weight.
        return array.copy() if _address(tensor) in ours else array

    def __repr__(self) -> str:
        return f"<TorchSession {self._file}>"


def option_problems(options: ModelOptions, library: Any) -> list[OptionProblem]:
    """Return the options that change results or placement and are not supported.

    Args:
        options: the options.
        library: the installed PyTorch; None if there is none, or if it is not needed.
    """
    found = thread_problems(options)
    if options.precision.lower() not in ("fp32", "fp16", "bf16"):
        text = f"{options.precision} is not available with {NAME}; use fp32, fp16 or bf16"
        found.append(OptionProblem(key="precision", text=text))
    if options.use_calib:
        text = f"int8 calibration is not available with {NAME}"
        found.append(OptionProblem(key="use_calib", text=text))
    no_cards = None
    if library is not None and not library.cuda.is_available():
        no_cards = f"the installed {NAME} reaches no card; install one with CUDA or use the CPU"
    return [*found, *device_problems(options, NAME, (CPU, GPU), no_cards)]


def _library() -> Any:
    with _needing_torch():
        import torch
    return torch


@contextmanager
def _needing_torch() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ModelError(
            f"opening a PyTorch model needs {NAME}: install 'penstock-serving[torch]' ({error})"
        ) from error


def _script(library: Any, file: Path, device: str, options: ModelOptions) -> Program:
    module = library.jit.load(str(file), map_location=device).eval()
    arguments = module.forward.schema.arguments[1:]
    odd = [each.name for each in arguments if str(each.type) != "Tensor"]
    needed = [each.name for each in arguments if str(each.type) == "Tensor"]
    if any(not each.has_default_value() for each in arguments if each.name in odd):
        raise ModelError(f"{file}: its forward takes {', '.join(odd)}, which are no tensors")
    declared = read_signature(file)
    notes: tuple[str, ...] = ()
    if declared is None:
        inputs = tuple(_unknown(name) for name in needed)
        if options.tensors is None or not options.tensors.inputs:
            notes = (
                f"{file} declares no types: its inputs are assumed to be float32 of any shape;"
                f" {SIGNATURE} beside it can declare them",
            )
    else:
        inputs = declared[0]
        if [spec.name for spec in inputs] != needed:
            names = [spec.name for spec in inputs]
            raise ModelError(f"{file.with_name(SIGNATURE)}: inputs {names}, the model's: {needed}")
    outputs = declared[1] if declared and declared[1] else _outputs_of(module.forward.schema, file)
    graph = module.inlined_graph
    in_place = any(node.kind().rstrip("_") != node.kind() for node in _nodes(graph))
    kept = (*module.parameters(), *module.buffers())
    if options.ir_optim is not False:
        module = library.jit.freeze(module)

    def call(*tensors: Any) -> Any:
        return module(**dict(zip(needed, tensors, strict=True)))

    return Program(
        call=call, inputs=inputs, outputs=outputs, kept=kept, in_place=in_place, notes=notes
    )


def _nodes(block: Any) -> list[Any]:
    found = []
    for node in block.nodes():
        found.append(node)
        for inner in node.blocks():
            found += _nodes(inner)
    return found


def _outputs_of(schema: Any, file: Path) -> tuple[TensorSpec, ...]:
    (result,) = schema.returns
    kind = result.type.kind()
    parts = [result.type] if kind == "TensorType" else []
    if kind == "TupleType":
        parts = result.type.elements()
    if not parts or any(part.kind() != "TensorType" for part in parts):
        raise ModelError(
            f"{file}: its forward gives {result.type}; name its outputs in {SIGNATURE} beside it"
        )
    return tuple(_unknown(f"output_{at}") for at in range(len(parts)))


def _unknown(name: str) -> TensorSpec:
    return TensorSpec(name=name, alias=name, dtype=np.dtype(np.float32), shape=None)


def _exported(library: Any, file: Path, device: str, options: ModelOptions) -> Program:
    for data in pickled_samples(file):
        # torch.export.load would open these with Python's pickle.
        library.load(BytesIO(data), weights_only=True)
    program = library.export.load(str(file))
    signature = program.graph_signature
    changed = signature
    if any(_writes(node.target) for node in program.graph.nodes):
        # After decomposition of in-place operators, the signature names what is written.
        changed = program.run_decompositions({}).graph_signature
    if changed.buffers_to_mutate or changed.parameters_to_mutate:
        raise ModelError(f"{file} changes its own state while it runs")
    args, kwargs = program.call_spec.in_spec.children()
    names = [*signature.user_inputs]
    by_name = [*kwargs.context]
    if not all(part.is_leaf() for part in (*args.children(), *kwargs.children())):
        raise ModelError(f"{file}: its forward takes lists or dicts of tensors")
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    # Keyword inputs have the names that callers wrote, the others those of the graph.
    public = [*names[: len(names) - len(by_name)], *by_name]
    inputs = tuple(
        _of_value(values[name], own, file) for name, own in zip(names, public, strict=True)
    )
    spec = program.call_spec.out_spec
    keys = list(spec.context) if spec.type is dict else None
    results = [*signature.user_outputs]
    outputs = tuple(
        _of_value(values[name], keys[at] if keys else f"output_{at}", file)
        for at, name in enumerate(results)
    )
    kept = (*program.state_dict.values(), *program.tensor_constants.values())
    if device != "cpu":
        program = library.export.passes.move_to_device_pass(program, device)
        kept = ()
    module = program.module()
    positional = len(args.children())

    def call(*tensors: Any) -> Any:
        named = dict(zip(by_name, tensors[positional:], strict=True))
        return module(*tensors[:positional], **named)

    in_place = bool(changed.user_inputs_to_mutate)
    return Program(call=call, inputs=inputs, outputs=outputs, kept=kept, in_place=in_place)


def _writes(operator: Any) -> bool:
    schema = getattr(operator, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _of_value(value: Any, name: str, file: Path) -> TensorSpec:
    kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    bf16 = kind == "bfloat16"  # numpy has no such type
    if bf16:
        kind = "float32"
    if kind not in _DTYPES:
        raise ModelError(f"{file}: {name!r} is {kind}, which is no tensor that numpy can hold")
    shape = tuple(dim if type(dim) is int else None for dim in value.shape)
    axes = tuple(None if type(dim) is int else str(dim) for dim in value.shape)  # s0, 2*s0
    dtype = np.dtype(kind)
    return TensorSpec(name=name, alias=name, dtype=dtype, shape=shape, bf16=bf16, axes=axes)


def _address(tensor: Any) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


def _error_text(error: Exception) -> str:
    """Return the library's error text; of TorchScript's call stacks, the last line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if lines and "TorchScript" in lines[0]:
        lines = lines[-1:]
    return " ".join(" ".join(lines).split())[:_MAX_ERROR_TEXT] or type(error).__name__
