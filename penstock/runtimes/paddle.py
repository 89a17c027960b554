"""The runtime of Paddle Inference.

Threads: a predictor serves one thread; a clone shares its weights. The library holds the GIL during
a whole run, so a run in a thread blocks all other threads of its process, including the event loop.
Use process workers for ops whose model takes more than a moment.

Options:

* ``thread_num`` is the number of threads of the CPU's mathematical libraries.
* ``ir_optim`` switches the optimisation of the graph; without the key it is on, as in the library.
* ``mem_optim`` reuses the memory of intermediate values.
* ``use_mkldnn`` uses oneDNN's kernels, and ``mkldnn_cache_capacity`` bounds their cache. The
default
  is off, as in the original, although Paddle 3's default is on.
* ``mkldnn_op_list`` and ``mkldnn_bf16_op_list`` restrict them to some operators. Paddle 3 supports
  both only for programs of earlier versions: for ``*.json`` the first, which affects only speed, is
  a note, and the second, which changes results, is an error.
* ``precision: bf16`` on the CPU switches oneDNN on; fp16 and int8 need a GPU.
* ``device_type`` 1 and 2 need a library that is compiled with CUDA, and with TensorRT.

Lod: ``x.lod`` of an input that is lod in the program is passed to the library, and outputs that are
lod in the program are returned with their lods.

Source: Paddle's documentation of ``paddle.inference``; ``docs/compatibility.md``.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from signal import SIGKILL, SIGSTOP, valid_signals
from typing import Any, Final
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InferenceFailed, InputMismatch, ModelError
from penstock.runtimes.options import (
    CPU,
    GPU,
    ONEDNN,
    TENSORRT,
    TENSORRT_ONLY,
    check_card,
    device_problems,
    on_cpu,
    thread_problems,
    without_effect,
)
from penstock.runtimes.paddle_files import (
    ENCRYPTED_PARAMS,
    PaddleFiles,
    check_params,
    check_program,
    is_paddle,
    paddle_files,
    read_key,
)
from penstock.runtimes.runtime import SHAPE_KEYS, ModelOptions, OptionProblem, check_installed
from penstock.tensor import LOD_SUFFIX, TensorSpec, lod_offsets

NAME: Final = "Paddle Inference"

_GPU_POOL_MB: Final = 100  # initial GPU memory; it grows
_TENSORRT_WORKSPACE: Final = 1 << 30  # maximum bytes of one operator's workspace
_TENSORRT_MAX_BATCH: Final = 32  # the original's

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "bool": np.dtype(np.bool_),
    "uint8": np.dtype(np.uint8),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
}
"""Dtypes by their names in programs before Paddle 3; Paddle 3 uses numpy's names."""
_DTYPES.update((dtype.name, dtype) for dtype in tuple(_DTYPES.values()))

_MAX_ERROR_TEXT: Final = 400  # maximum characters of the library's error text, which may be pages


class PaddleRuntime:
    """Opens models in the four forms of ``paddle_files``."""

    name = "paddle"

    def can_open(self, path: Path) -> bool:
        """Whether there is a program, or a parameter file, which ``open`` refuses clearly."""
        return is_paddle(path)

    def problems(self, path: Path, options: ModelOptions) -> list[OptionProblem]:
        """See ``Runtime``; the installed library decides which features are available."""
        found: list[OptionProblem] = []
        library = has_cuda = None
        is_json = False
        try:
            with _needing_paddle():
                check_installed("paddle")
            has_cuda = _is_for_cuda()
            # Only an import shows the support of bf16 and TensorRT.
            if on_cpu(options):
                needs_import = options.precision.lower() == "bf16"
            else:
                with_tensorrt = options.device_type == TENSORRT
                needs_import = has_cuda is None or (has_cuda and with_tensorrt)
            if needs_import:
                library = _library()
        except ModelError as error:
            found.append(OptionProblem(key="model_config", text=str(error)))
        try:
            files = paddle_files(path)
            is_json = files.is_json
            if files.is_encrypted:
                found += key_problems(options)
        except ModelError as error:
            found.append(OptionProblem(key="model_config", text=str(error)))
        return [*found, *option_problems(options, library, is_json=is_json, has_cuda=has_cuda)]

    def open(self, path: Path, options: ModelOptions) -> PaddleSession:
        """Open the model on the device in the options.

        Raises:
            ModelError: see ``Runtime``.
        """
        files = paddle_files(path)
        library = _library()
        problems = option_problems(options, library, is_json=files.is_json)
        if files.is_encrypted:
            problems += key_problems(options)
        if problems:
            raise ModelError("; ".join(map(str, problems)))
        if not on_cpu(options):
            check_card(options, library.device.cuda.device_count(), NAME)
        plain = _decrypted(library, files, options)
        inputs, outputs = _signature(library, files, plain)
        config = config_for(library, files, options, plain)
        try:
            predictor = library.inference.create_predictor(config)
        except Exception as error:
            # For an invalid file the library raises ValueError, RuntimeError and others.
            raise ModelError(_cannot_open(files, error)) from error
        keys = [*_idle_keys(options, is_json=files.is_json)]
        what = f"{NAME} and a program in JSON" if files.is_json else NAME
        notes = without_effect(options, keys, what)
        own = predictor.get_output_names()
        if [spec.name for spec in outputs] != own:
            raise ModelError(f"{files.program}: it has outputs {outputs}, {NAME} sees {own}")
        return PaddleSession(library, predictor, [], files.program, inputs, outputs, notes, options)


class PaddleSession:
    """An open Paddle model. Not thread-safe: each thread needs its own ``clone``.

    Paddle 3.3 frees the weights that a predictor shares with its clones as soon as one of them is
    destroyed, if the program is of an earlier Paddle; the others then fail. So a predictor is not
    destroyed before all sessions of the model: it is kept idle, and the next clone reuses it.
    """

    thread_safe = False
    holds_gil = True

    def __init__(
        self,
        library: Any,
        predictor: Any,
        idle: list[Any],
        program: Path,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        notes: tuple[str, ...],
        options: ModelOptions,
    ) -> None:
        self._library = library
        self._predictor = predictor
        self._idle = idle
        finalize(self, idle.append, predictor).atexit = False
        self._program = program
        self._options = options
        self.inputs = inputs
        self.outputs = outputs
        self.notes = notes
        # Arrays are used without a copy on the CPU only.
        self._place = library.base.core.CPUPlace() if on_cpu(options) else None
        self._handles = {spec.name: predictor.get_input_handle(spec.name) for spec in inputs}
        self._results = {spec.name: predictor.get_output_handle(spec.name) for spec in outputs}
        self._lods = tuple(spec.name for spec in inputs if spec.is_lod)

    def run(self, feeds: Mapping[str, NDArray[Any]], fetch: Sequence[str]) -> list[NDArray[Any]]:
        """Run the model, on the CPU without copying the inputs; see ``Session``."""
        kept = []  # references to arrays that the library reads during the run
        try:
            for name, handle in self._handles.items():
                value = feeds[name]
                if self._place is None:
                    handle.copy_from_cpu(value)
                    continue
                tensor = self._library.base.core.DenseTensor()
                tensor.set(value, self._place, True)
                handle.share_external_data(tensor)
                kept.append(tensor)
            for name in self._lods:
                given = feeds.get(name + LOD_SUFFIX)
                # Always set: otherwise the previous run's lod would stay.
                self._handles[name].set_lod([] if given is None else [lod_offsets(given)])
            self._predictor.run()
            return [self._result(name) for name in fetch]
        except KeyError as error:
            raise InputMismatch(f"{self._program.name}: nothing is fed or called {error}") from None
        except (ValueError, TypeError, IndexError) as error:
            # Paddle's InvalidArgument and OutOfRange, and values of unsupported types.
            raise InputMismatch(_error_text(error)) from error
        except Exception as error:
            raise InferenceFailed(_error_text(error)) from error

    def clone(self) -> PaddleSession:
        """Make a session with another predictor that shares the weights."""
        return PaddleSession(
            self._library,
            self._idle.pop() if self._idle else self._predictor.clone(),
            self._idle,
            self._program,
            self.inputs,
            self.outputs,
            self.notes,
            self._options,
        )

    def _result(self, name: str) -> NDArray[Any]:
        handle = self._results.get(name)
        if handle is None and name.endswith(LOD_SUFFIX):
            levels = self._results[name.removesuffix(LOD_SUFFIX)].lod()
            return np.array(levels[0] if levels else (), dtype=np.int32)
        value: NDArray[Any] = self._results[name].copy_to_cpu()
        return value

    def __repr__(self) -> str:
        return f"<PaddleSession {self._program}>"


def key_problems(options: ModelOptions) -> list[OptionProblem]:
    """Return the problem of a missing key of an encrypted model."""
    if options.encryption_key is None:
        text = "must name the key, as the model is encrypted; and use_encryption_model be true"
        return [OptionProblem(key="encryption_key", text=text)]
    try:
        read_key(options.encryption_key)
    except ModelError as error:
        return [OptionProblem(key="encryption_key", text=str(error))]
    return []


def option_problems(
    options: ModelOptions, library: Any, *, is_json: bool, has_cuda: bool | None = None
) -> list[OptionProblem]:
    """Return the options that change results or placement and are not supported.

    Args:
        options: the options.
        library: the installed Paddle; None if there is none, or if it is not needed.
        is_json: whether the program is of Paddle 3.
        has_cuda: whether Paddle is compiled with CUDA; None: ask the library.
    """
    if has_cuda is None and library is not None:
        has_cuda = library.is_compiled_with_cuda()
    found = thread_problems(options)
    cpu = on_cpu(options)
    with_tensorrt = options.device_type == TENSORRT
    precision = options.precision.lower()
    why = None
    if precision not in ("fp32", "fp16", "bf16", "int8"):
        why = "is unknown; use fp32, fp16, bf16 or int8"
    elif cpu and precision == "bf16":
        if library is not None and not library.base.core.supports_bfloat16():
            why = "needs a CPU with AVX-512"
    elif cpu and precision != "fp32":
        why = f"is not available with {NAME} on the CPU; use fp32 or bf16"
    elif precision == "int8" and not with_tensorrt:
        why = f"is available with {NAME} through TensorRT only (device_type 2)"
    elif precision == "bf16" and with_tensorrt:
        why = f"is not available with {NAME} through TensorRT; use fp32, fp16 or int8"
    if why is not None:
        found.append(OptionProblem(key="precision", text=f"{options.precision} {why}"))
    if options.use_calib and not (with_tensorrt and precision == "int8"):
        text = f"int8 calibration is available with {NAME} through TensorRT only: device_type 2"
        found.append(OptionProblem(key="use_calib", text=f"{text} and precision int8"))
    if options.mkldnn_bf16_op_list and cpu and precision == "bf16" and is_json:
        text = f"{NAME} cannot narrow bf16 to some operators of a program in JSON"
        found.append(OptionProblem(key="mkldnn_bf16_op_list", text=text))
    shapes = options.dynamic_shape_info
    if with_tensorrt and shapes and any(not shapes.get(key) for key in SHAPE_KEYS):
        text = f"needs {', '.join(SHAPE_KEYS)}, each with the sizes of variables by name"
        found.append(OptionProblem(key="dynamic_shape_info", text=text))
    return [*found, *_placement_problems(options, library, has_cuda)]


def _placement_problems(
    options: ModelOptions, library: Any, has_cuda: bool | None
) -> list[OptionProblem]:
    no_cards = None
    if has_cuda is False:
        no_cards = (
            f"the installed {NAME} is compiled for the CPU only;"
            " install paddlepaddle-gpu or use the CPU"
        )
    found = device_problems(options, NAME, (CPU, GPU, TENSORRT), no_cards)
    if found or library is None or options.device_type != TENSORRT:
        return found
    if not any(library.inference.get_trt_compile_version()):
        text = f"2 (GPU with TensorRT): the installed {NAME} is compiled without TensorRT"
        found.append(OptionProblem(key="device_type", text=text))
    return found


def _idle_keys(options: ModelOptions, *, is_json: bool) -> Iterator[str]:
    """Yield the keys that have no effect with these options."""
    if not on_cpu(options):
        yield from ONEDNN
    else:
        uses_onednn = options.use_mkldnn or options.precision.lower() == "bf16"
        if not uses_onednn:
            yield "mkldnn_cache_capacity"
        if not uses_onednn or is_json:
            yield "mkldnn_op_list"
        if options.precision.lower() != "bf16":
            yield "mkldnn_bf16_op_list"
    if options.device_type != TENSORRT:
        yield from TENSORRT_ONLY


_Plain = tuple[bytes, bytes]
"""Decrypted program and parameters."""


def config_for(
    library: Any, files: PaddleFiles, options: ModelOptions, plain: _Plain | None = None
) -> Any:
    """Make a Paddle Config.

    Args:
        library: Paddle.
        files: the model's files.
        options: without ``option_problems``.
        plain: the decrypted files, if they are encrypted.
    """
    inference = library.inference
    if plain is not None:
        program, params = plain
        config = inference.Config()
        config.set_model_buffer(program, len(program), params, len(params))
    elif files.separate:
        config = inference.Config(str(files.program.parent))
    else:
        config = inference.Config(str(files.program), str(files.params or ""))
    config.disable_glog_info()
    if files.is_json:
        # The library would do this later, but enable_memory_optim fails without it.
        config.enable_new_executor(True)
        config.enable_new_ir(True)
    if on_cpu(options):
        config.disable_gpu()
        config.set_cpu_math_library_num_threads(options.thread_num)
        _use_onednn(config, options)
    else:
        _use_card(inference, config, options)
    config.switch_ir_optim(options.ir_optim is not False)
    config.enable_memory_optim(options.mem_optim)
    return config


def _use_onednn(config: Any, options: ModelOptions) -> None:
    bf16 = options.precision.lower() == "bf16"
    if not (options.use_mkldnn or bf16):
        config.disable_onednn()
        return
    config.enable_onednn()
    if options.mkldnn_cache_capacity > 0:
        config.set_onednn_cache_capacity(options.mkldnn_cache_capacity)
    if options.mkldnn_op_list:
        config.set_onednn_op({*options.mkldnn_op_list})
    if bf16:
        config.enable_onednn_bfloat16()
        if options.mkldnn_bf16_op_list:
            config.set_bfloat16_op({*options.mkldnn_bf16_op_list})


def _use_card(inference: Any, config: Any, options: ModelOptions) -> None:
    kinds = inference.PrecisionType
    wanted = options.precision.lower()
    precision = {"fp16": kinds.Half, "bf16": kinds.Bfloat16, "int8": kinds.Int8}.get(wanted)
    card = int(options.devices[0])
    if options.device_type != TENSORRT:
        config.enable_use_gpu(_GPU_POOL_MB, card, precision or kinds.Float32)
        return
    config.enable_use_gpu(_GPU_POOL_MB, card)
    config.enable_tensorrt_engine(
        workspace_size=_TENSORRT_WORKSPACE,
        max_batch_size=_TENSORRT_MAX_BATCH,
        min_subgraph_size=options.min_subgraph_size,
        precision_mode=precision or kinds.Float32,
        use_static=False,
        use_calib_mode=options.use_calib,
    )
    if options.dynamic_shape_info:
        config.set_trt_dynamic_shape_info(*map(options.dynamic_shape_info.get, SHAPE_KEYS))


def _library() -> Any:
    with _needing_paddle(), _without_side_effects():
        check_installed("paddle")  # a mere folder of that name can be imported too
        import paddle
        import paddle.inference
    return paddle


def _is_for_cuda() -> bool | None:
    """Whether the installed Paddle's files say that it is compiled with CUDA; None if unknown."""
    spec = find_spec("paddle")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "version" / "__init__.py"
    if not file.is_file():
        return None
    found = re.search(r"^cuda_version\s*=\s*'(.+)'", file.read_text(), re.MULTILINE)
    return found and found[1] != "False"


@contextmanager
def _needing_paddle() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ModelError(
            f"opening a Paddle model needs {NAME}: install 'penstock-serving[paddle]' ({error})"
        ) from error


@contextmanager
def _without_side_effects() -> Iterator[None]:
    """Undo the side effects of importing Paddle: signal handlers, logging, environment variables
    such as OMP_NUM_THREADS. Also suppresses its warning about a missing compiler cache.
    """
    signals = [*(valid_signals() - {SIGKILL, SIGSTOP})]
    libc = ctypes.CDLL(None)
    # By sigaction(): Python sets handlers only in the main thread, and cannot read C handlers.
    before = [ctypes.create_string_buffer(1024) for _ in signals]  # six times a struct sigaction
    for number, action in zip(signals, before, strict=True):
        libc.sigaction(number, None, action)
    environment = dict(os.environ)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for number, action in zip(signals, before, strict=True):
            libc.sigaction(number, action, None)
        root.handlers[:] = handlers
        root.setLevel(level)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


def _decrypted(library: Any, files: PaddleFiles, options: ModelOptions) -> _Plain | None:
    """Decrypt the files of an encrypted model in memory.

    Raises:
        ModelError: the key is wrong.
        OSError: the files cannot be read.
    """
    if not files.is_encrypted or options.encryption_key is None:
        return None
    key = read_key(options.encryption_key)
    if files.params is None:
        raise ModelError(f"{files.program} needs its parameters, {ENCRYPTED_PARAMS}, beside it")
    cipher = library.base.core.CipherFactory.create_cipher("")
    try:
        program, params = (
            cipher.decrypt(file.read_bytes(), key) for file in (files.program, files.params)
        )
    except (RuntimeError, IndexError) as error:  # files that are shorter than their header
        raise ModelError(f"{files.program} cannot be decrypted: {_error_text(error)}") from error
    check_program(program, files.program)
    return program, params


def _signature(
    library: Any, files: PaddleFiles, plain: _Plain | None
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return inputs and outputs of the program; also checks the sizes of the parameter files.

    Raises:
        ModelError: a file is invalid.
    """
    try:
        if files.is_json:
            program = library.static.Program()
            library.base.core.deserialize_pir_program(str(files.program), program, 1)
            inputs, outputs, parameters = _of_json(program, files.program)
        else:
            data = files.program.read_bytes() if plain is None else plain[0]
            description = library.base.core.ProgramDesc(data)
            if not description.num_blocks():
                raise ModelError(f"{files.program} is empty")  # the library would crash
            inputs, outputs, parameters = _of_program(description, files.program)
    except (ModelError, OSError):
        raise
    except Exception as error:
        raise ModelError(_cannot_open(files, error)) from error
    if not outputs:
        raise ModelError(f"{files.program} is no inference model: it fetches nothing")
    if files.separate:
        for name in parameters:
            file = files.program.parent / name
            if not file.is_file():
                raise ModelError(f"{files.program} needs the parameter {name!r}, a file beside it")
            check_params(file, 1)
    elif files.params is not None:
        check_params(files.params, len(parameters), plain and plain[1])
    elif parameters:
        raise ModelError(f"{files.program} needs a file of parameters, *.pdiparams, beside it")
    return inputs, outputs


_Program = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], list[str]]


def _of_json(program: Any, file: Path) -> _Program:
    found: dict[str, list[Any]] = {"pd_op.data": [], "pd_op.fetch": [], "builtin.parameter": []}
    for op in program.global_block().ops:
        if op.name() in found:
            found[op.name()].append(op)
    inputs, outputs = (
        tuple(
            _spec(op.attrs()["name"], op.result(0).dtype, op.result(0).shape, file)
            for op in found[kind]
        )
        for kind in ("pd_op.data", "pd_op.fetch")
    )
    return inputs, outputs, [op.attrs()["parameter_name"] for op in found["builtin.parameter"]]


def _of_program(description: Any, file: Path) -> _Program:
    block = description.block(0)
    named: dict[str, dict[int, str]] = {"feed": {}, "fetch": {}}
    for index in range(block.op_size()):
        op = block.op(index)
        if op.type() in named:
            (name,) = op.output("Out") if op.type() == "feed" else op.input("X")
            named[op.type()][op.attr("col")] = name
    inputs, outputs = (
        tuple(_of_variable(block, names[col], file) for col in sorted(names))
        for names in named.values()
    )
    parameters = [
        each.name()
        for each in block.all_vars()
        if each.persistable() and each.name() not in ("feed", "fetch")
    ]
    return inputs, outputs, parameters


def _of_variable(block: Any, name: str, file: Path) -> TensorSpec:
    variable = block.find_var(name.encode())
    is_lod = variable.lod_level() > 0
    return _spec(name, variable.dtype(), variable.shape(), file, is_lod=is_lod)


def _spec(
    name: str, theirs: Any, shape: Sequence[int], file: Path, *, is_lod: bool = False
) -> TensorSpec:
    kind = re.sub(r".*\.", "", str(theirs)).lower()
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise ModelError(f"{file}: {name!r} is {kind}, which numpy cannot hold")
    dims = tuple(dim if dim >= 0 else None for dim in shape)
    return TensorSpec(name=name, alias=name, dtype=dtype, shape=dims, is_lod=is_lod)


def _cannot_open(files: PaddleFiles, error: Exception) -> str:
    return f"{NAME} cannot open {str(files.program)!r}: {_error_text(error)}"


def _error_text(error: Exception) -> str:
    """Return the library's error text, without call stacks; the cause is at its end."""
    text = str(error)
    found = re.search(r"\w+Error: .*|\(\w+\) .*", text, re.DOTALL)
    return " ".join((found.group() if found else text).split())[:_MAX_ERROR_TEXT]
