"""The interface of runtimes and their sessions, and the registry of runtimes.

Decides which runtime opens a model; imports no inference library. A runtime is found by name, among
the built-in ones or the entry points of the group ``penstock.runtimes``, and imported only when a
model needs it, so that its library may be missing until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, Protocol, cast

from numpy.typing import NDArray

from penstock.errors import ModelError
from penstock.tensor import DeclaredTensors, TensorSpec

ENTRY_POINTS = "penstock.runtimes"

SHAPE_KEYS = ("min_input_shape", "max_input_shape", "opt_input_shape")

BUILT_IN = {
    name: metadata.EntryPoint(
        name=name, value=f"penstock.runtimes.{name}:{made}", group=ENTRY_POINTS
    )
    for name, made in (
        ("onnx", "OnnxRuntime"),
        ("paddle", "PaddleRuntime"),
        ("torch", "TorchRuntime"),
        ("openvino", "OpenvinoRuntime"),
    )
}
"""Built-in runtimes by name; they are tried first, in this order."""

FORKABLE = ("onnxruntime", "numpy.random")
"""Modules that models need, and that may be imported before a fork; see ``preload``."""

HOLD_GIL = frozenset({"paddle"})
"""Runtimes that hold the GIL during a run, so that several threads are no faster than one."""

UNCHECKED = frozenset({"paddle"})
"""Runtimes that accept inputs of other ranks and sizes than the model declares, and whose older
models name outputs differently from their configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The options of a model: keys of ``local_service_conf``, see ``docs/configuration.md``.

    Attributes:
        path: a model file or folder.
        fetch_list: default outputs (alias or real name); None for all, empty for none.
        dynamic_shape_info: for TensorRT: for each of ``SHAPE_KEYS`` the sizes of variables, by
            name.
        devices: GPU ids, such as ``("0", "1")``. A session uses the first one.
        encryption_key: path or variable of an encrypted model's key; not the key itself.
        missing_device: ``error``, or ``cpu`` to use the CPU if the GPU is missing.
        tensors: inputs and outputs as a repository declares them; None to take the model's.
    """

    path: str
    fetch_list: tuple[str, ...] | None = None
    thread_num: int = 2
    device_type: int = -1
    devices: tuple[str, ...] = ()
    mem_optim: bool = True
    ir_optim: bool | None = None
    precision: str = "fp32"
    use_calib: bool = False
    use_mkldnn: bool = False
    mkldnn_cache_capacity: int = 0
    mkldnn_op_list: tuple[str, ...] = ()
    mkldnn_bf16_op_list: tuple[str, ...] = ()
    min_subgraph_size: int = 3
    dynamic_shape_info: Mapping[str, Any] | None = None
    encryption_key: str | None = None
    missing_device: Literal["error", "cpu"] = "error"
    tensors: DeclaredTensors | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionProblem:
    """An option with which the model cannot be opened, found without opening it.

    Attributes:
        key: the key of ``local_service_conf`` to correct.
        text: the problem, as text after the key.
    """

    key: str
    text: str

    def __str__(self) -> str:
        return f"local_service_conf.{self.key}: {self.text}"


class Session(Protocol):
    """An open model, under the names inside the model; ``Model`` adds aliases.

    ``run`` may get offsets of an input that ``is_lod`` as ``name.lod``. If there is such an input,
    the offsets of an output that ``is_lod`` may be fetched as ``name.lod``: int32, one dimension,
    empty if the run has none.

    Thread rule: several threads may call ``run`` at once only if ``thread_safe``; otherwise each
    thread needs its own ``clone``.
    """

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs; ``run`` needs all of them."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs that may be fetched."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings for the operator, such as options without effect; to be logged once."""

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may call ``run`` at once."""

    @property
    def holds_gil(self) -> bool:
        """Whether ``run`` holds the GIL, so that all other threads are blocked."""

    def run(self, feeds: Mapping[str, NDArray[Any]], fetch: Sequence[str]) -> list[NDArray[Any]]:
        """Run the model.

        Args:
            feeds: one array for each input, with name, dtype and rank as in ``inputs``, and lods.
                Only read.
            fetch: names of outputs, at least one.

        Returns:
            One array for each name in ``fetch``, in that order. The caller owns them.

        Raises:
            InputMismatch: the values do not fit the model; a retry does not help.
            InferenceFailed: the library failed, most often because of the values.
        """

    def clone(self) -> Session:
        """Return a session for another thread; the same object if that is safe."""


class Runtime(Protocol):
    """An inference library."""

    @property
    def name(self) -> str:
        """The name of its entry point."""

    def can_open(self, path: Path) -> bool:
        """Whether the file or folder looks like a model of this library. Cheap; imports nothing."""

    def problems(self, path: Path, options: ModelOptions) -> Sequence[OptionProblem]:
        """Return the reasons why ``open`` would fail that can be found without opening the model.

        Args:
            path: the model's path, which need not exist.
            options: the model's options.

        Opens no model; may import the library.
        """

    def open(self, path: Path, options: ModelOptions) -> Session:
        """Open a model for which ``can_open`` was true.

        Raises:
            MissingDevice: the GPU is missing, which is only detected by opening the model.
            ModelError: the library is missing, a file is invalid, or an option is not supported.
        """


def runtime_names() -> tuple[str, ...]:
    """Return the names of all runtimes: built-in ones, then those of entry points by name."""
    return (*BUILT_IN, *sorted(_added().keys() - BUILT_IN.keys()))


@cache
def _added() -> Mapping[str, metadata.EntryPoint]:
    """The entry points by name. To find them, the metadata of all installed packages are read."""
    return {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINTS)}


def preload() -> None:
    """Import what workers would import for most models, as far as it is installed, so that those
    which are forked from this process start sooner, and share its memory.
    """
    _added()
    for name in BUILT_IN:
        load_runtime(name)
    for name in FORKABLE:
        with suppress(ImportError):
            import_module(name)


def load_runtime(name: str) -> Runtime:
    """Import a runtime and make it.

    Raises:
        ModelError: the name is unknown, or its module cannot be imported.
    """
    entry = BUILT_IN.get(name) or _added().get(name)
    if entry is None:
        raise ModelError(f"no runtime {name!r}; known: {', '.join(runtime_names())}")
    try:
        make = entry.load()
    except (ImportError, AttributeError) as error:
        raise ModelError(f"runtime {name!r} ({entry.value}) cannot be imported: {error}") from error
    return cast("Runtime", make())


def open_session(options: ModelOptions) -> Session:
    """Open a model with the first runtime that recognises its files.

    Raises:
        ModelError: no runtime can open the files; the text names what was found.
    """
    path = Path(options.path)
    try:
        if not path.exists():
            raise ModelError(_missing(options))
        runtime = _runtime_for(path)
        if runtime is None:
            raise ModelError(_unrecognised(path, runtime_names()))
        return runtime.open(path, options)
    except OSError as error:
        raise ModelError(_unreadable(options, error)) from error


def check_installed(package: str) -> None:
    """Raise ImportError if a package is not installed, without importing it.

    A service checks its models before it starts worker processes, and cannot fork them after the
    import of a library that starts threads.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # a mere folder of that name has no origin
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def runtime_of(path: Path) -> str:
    """Return the name of the first runtime that recognises the files; empty if none does."""
    runtime = _runtime_for(path)
    return "" if runtime is None else runtime.name


def model_problems(options: ModelOptions) -> list[OptionProblem]:
    """Return the reasons why ``open_session`` would fail, found without opening the model."""
    path = Path(options.path)
    found: list[OptionProblem] = []
    try:
        if not path.exists():
            found.append(OptionProblem(key="model_config", text=_missing(options)))
        runtime = _runtime_for(path)
        if runtime is not None:  # a missing file is recognised by its suffix
            found.extend(runtime.problems(path, options))
        elif not found:
            text = _unrecognised(path, runtime_names())
            found.append(OptionProblem(key="model_config", text=text))
    except OSError as error:
        found.append(OptionProblem(key="model_config", text=_unreadable(options, error)))
    except ModelError as error:
        found.append(OptionProblem(key="model_config", text=str(error)))
    return found


def _runtime_for(path: Path) -> Runtime | None:
    for name in runtime_names():
        runtime = load_runtime(name)
        if runtime.can_open(path):
            return runtime
    return None


def _missing(options: ModelOptions) -> str:
    return f"model {options.path!r}: no such file or folder"


def _unreadable(options: ModelOptions, error: OSError) -> str:
    return f"model {options.path!r} cannot be read: {error}"


_LISTED = 8  # maximum file names in an error


_EXPORT: Final = "export the network, with torch.export or torch.onnx"
_TENSORFLOW: Final = "a model of TensorFlow: convert it to ONNX, with tf2onnx"
_FOREIGN: Final = {
    "saved_model.pb": _TENSORFLOW,
    "model.savedmodel": _TENSORFLOW,
    ".graphdef": _TENSORFLOW,
    ".keras": _TENSORFLOW,
    ".h5": _TENSORFLOW,
    ".tflite": _TENSORFLOW,
    ".plan": "an engine of TensorRT: give the ONNX file of which it was made",
    ".engine": "an engine of TensorRT: give the ONNX file of which it was made",
    "model.py": "a model of Triton's Python backend: write it as an op, see docs/from/triton.md",
    ".mar": "an archive of TorchServe: give the model in it, see docs/from/torchserve.md",
    ".safetensors": f"weights without a network: {_EXPORT}",
    "pytorch_model.bin": f"weights without a network: {_EXPORT}",
    ".ckpt": f"weights without a network: {_EXPORT}",
    ".pkl": "a pickle: open it in an op, or convert it to ONNX",
    ".joblib": "a pickle: open it in an op, or convert it to ONNX",
    ".bst": "a model of XGBoost: open it in an op, or convert it to ONNX",
}
"""What files are that no runtime here opens, by name or suffix, and what to do."""


def _foreign(names: Iterable[str]) -> str:
    """What the first known one of files is, and what to do; empty if none is known."""
    for name in names:
        known = _FOREIGN.get(name) or _FOREIGN.get(Path(name).suffix)
        if known is not None:
            return f"; {name} is {known}"
    return ""


def _newest_version(path: Path) -> Path | None:
    """The folder of a model's highest version, as in a model repository; None without one."""
    try:
        names = [each.name for each in path.iterdir()] if path.is_dir() else []
    except OSError:  # this only completes the text of another error
        return None
    versions = [each for each in names if each.isascii() and each.isdigit()]
    return path / max(versions, key=int) if versions else None


def _unrecognised(path: Path, names: Sequence[str]) -> str:
    if path.is_dir():
        files = sorted(entry.name for entry in path.iterdir())
        shown = ", ".join(files[:_LISTED]) or "nothing"
        if len(files) > _LISTED:
            shown += f" and {len(files) - _LISTED} more"
        text = f"model folder {str(path)!r} holds no model that a runtime here can open: "
        text += f"looked for files of {', '.join(names)}, found {shown}{_foreign(files)}"
        if version := _newest_version(path):
            text += f"; give the folder of a version: {version}"
        elif models := [*filter(None, map(_newest_version, map(path.joinpath, files)))]:
            text += f"; give the folder of a version of each model: {models[0]}"
            text += f" and {len(models) - 1} more" if len(models) > 1 else ""
    else:
        text = f"model file {str(path)!r} is of no kind that a runtime here can open ("
        text += f"{', '.join(names)}){_foreign([path.name])}"
    return text
