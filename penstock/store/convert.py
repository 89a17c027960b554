"""``penstock convert``: makes a version of a model in a repository, with a manifest.

The version is made under a hidden name beside the others, opened, and run on its examples; then it
is renamed. So a service that reads the repository sees all of it or nothing.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.errors import InferenceFailed, InputMismatch, ModelError, StoreError, WrongType
from penstock.ops.short import model_name
from penstock.protocols import oip
from penstock.protocols.protobuf import Walker
from penstock.repository.layout import EXAMPLES
from penstock.repository.manifest import (
    MANIFEST,
    SIGNATURE,
    Entry,
    Manifest,
    format_manifest,
    why_unsafe,
)
from penstock.repository.policy import canonical
from penstock.request import Feed
from penstock.runtimes.model import Model
from penstock.runtimes.paddle_files import paddle_files
from penstock.runtimes.runtime import ModelOptions, runtime_of
from penstock.runtimes.torch_files import SIGNATURE as MODEL_SIGNATURE
from penstock.store.cache import digest_of_file
from penstock.store.local import LocalStore
from penstock.store.signing import sign
from penstock.tensor import TensorSpec

FORMS: Final = ("onnx", "openvino", "paddle", "torch")
"""What a version may be converted to, by the name of its runtime."""

_TOOLS: Final = {"onnx": {"paddle": "paddle2onnx", "torch": "torch.onnx.export"}}
"""Programs that are not part of Penstock and convert to a form, by the form of the source."""

_MOST_FIELDS: Final = 10_000_000
_LONGEST: Final = 2**31  # bytes of an ONNX file: the limit of protobuf


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A version that was made.

    Attributes:
        path: its folder.
        name, version: of the model.
        runtime: the library that opens it.
        manifest: of its files.
        model: the open model.
    """

    path: Path
    name: str
    version: str
    runtime: str
    manifest: Manifest
    model: Model


def convert(
    source: Path,
    repository: Path,
    *,
    name: str | None = None,
    to: str | None = None,
    examples: Sequence[Path] = (),
    key: Path | None = None,
) -> Converted:
    """Make the next version of a model in a repository.

    Args:
        source: a model's file or folder, of a form that a runtime opens.
        repository: its folder; made if it does not exist.
        name: the model's name; by default that under which ``penstock serve`` serves it.
        to: the form of the version, one of ``FORMS``; None for that of the source.
        examples: files ``.npz`` with one request each, on which the model must run.
        key: a PEM file with the private key that signs the manifest; None for no signature.

    Returns:
        The version, whose number is the highest of the model's folder and one.

    Raises:
        ModelError: there is no model, it cannot be opened or converted, or does not run on an
            example.
        StoreError: a name, a link, or the key is refused, or a file cannot be written.
    """
    if not source.exists():
        raise ModelError(f"{source}: no such file or folder")
    name = model_name(source.absolute()) if name is None else name
    reason = "begins with a dot or has a slash" if name[:1] == "." or "/" in name else None
    reason = reason or why_unsafe(name)
    if reason is not None:
        raise StoreError(f"the model's name {name!r} {reason}: give another one")
    folder = repository / name
    try:
        repository.mkdir(parents=True, exist_ok=True)
        staged = repository / f".new-{secrets.token_hex(8)}"  # no model: its name begins with a dot
        staged.mkdir()
        try:
            return _converted(source, staged, folder, name, to, examples, key)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"{repository}: {error}") from error


def _converted(
    source: Path,
    staged: Path,
    folder: Path,
    name: str,
    to: str | None,
    examples: Sequence[Path],
    key: Path | None,
) -> Converted:
    found = runtime_of(source)
    if to is not None and found and to != found:
        _write_as(to, source, found, staged)
    elif source.is_dir():
        _copy_folder(source, staged)
    else:
        _COPIES.get(found, _copy_file)(source, staged)
    try:
        model = Model.open(ModelOptions(path=str(staged)))
    except ModelError as error:
        given, text = source, str(error)
        if not source.is_dir():
            given = source.parent
            text = text.replace(str(staged / f"model{source.suffix}"), str(source))
        raise ModelError(text.replace(str(staged), str(given))) from error
    if not (staged / MODEL_SIGNATURE).exists():
        (staged / MODEL_SIGNATURE).write_text(json.dumps(_signature(model), indent=2) + "\n")
    _add_examples(examples, staged, model)
    folder.mkdir(exist_ok=True)
    while True:
        version = _next_version(folder)
        manifest = Manifest(model=name, version=version, files=tuple(_entries(staged)))
        data = format_manifest(manifest)
        (staged / MANIFEST).write_bytes(data)
        if key is not None:
            (staged / SIGNATURE).write_bytes(sign(data, key))
        try:
            (folder / version).mkdir()  # this number is ours, whoever else makes a version
        except FileExistsError:
            continue
        staged.rename(folder / version)
        return Converted(
            path=folder / version,
            name=name,
            version=version,
            runtime=model.runtime,
            manifest=manifest,
            model=model,
        )


def _next_version(folder: Path) -> str:
    numbers = filter(None, (canonical(each.name) for each in folder.iterdir()))
    return str(max(map(int, numbers), default=0) + 1)


# Copies


def _copy_folder(source: Path, to: Path) -> None:
    store = LocalStore(source)
    found = store.scan()
    for path, reason in found.refused.items():
        raise StoreError(f"{source}/{path} {reason}")
    for path in found.unfinished:
        raise StoreError(f"{source}/{path} is being written")
    for each in found.files:
        if each.path in (MANIFEST, SIGNATURE):
            continue  # of another version
        file = to / each.path
        file.parent.mkdir(parents=True, exist_ok=True)
        store.copy(each, file, _ignore)


def _copy_file(source: Path, to: Path) -> None:
    shutil.copyfile(source, to / source.name)


def _copy_onnx(source: Path, to: Path) -> None:
    """Copy a model with the files of its weights, whose names are in it."""
    shutil.copyfile(source, to / "model.onnx")
    for location in sorted(_external_data(source)):
        reason = why_unsafe(location)
        if reason is not None:
            raise StoreError(f"{source} has weights in {location!r}, which {reason}")
        file = source.parent / location
        if not file.is_file():
            raise ModelError(f"{source} has weights in {location}, which does not exist")
        (to / location).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to / location)


def _copy_openvino(source: Path, to: Path) -> None:
    shutil.copyfile(source, to / "model.xml")
    weights = source.with_suffix(".bin")
    if weights.is_file():
        shutil.copyfile(weights, to / "model.bin")


def _copy_torch(source: Path, to: Path) -> None:
    shutil.copyfile(source, to / f"model{source.suffix}")
    if source.with_name(MODEL_SIGNATURE).is_file():
        shutil.copyfile(source.with_name(MODEL_SIGNATURE), to / MODEL_SIGNATURE)


def _copy_paddle(source: Path, to: Path) -> None:
    files = paddle_files(source)
    if files.separate:
        raise ModelError(f"{source}: its parameters are separate files: give the folder")
    for each in (files.program, files.params):
        if each is not None:
            shutil.copyfile(each, to / each.name)


_COPIES: Final[Mapping[str, Callable[[Path, Path], None]]] = {
    "onnx": _copy_onnx,
    "openvino": _copy_openvino,
    "torch": _copy_torch,
    "paddle": _copy_paddle,
}
"""How a single file is copied, by the runtime that opens it."""


def _external_data(file: Path) -> set[str]:
    """The files of an ONNX model's weights, by the names in it.

    ``ModelProto``: 7 graph. ``GraphProto``: 5 initializer. ``TensorProto``: 13 external_data, pairs
    of 1 key and 2 value, where the key is ``location``.
    """
    if file.stat().st_size > _LONGEST:
        raise ModelError(f"{file} is larger than a file of ONNX can be")
    data = file.read_bytes()
    found: set[str] = set()
    try:
        walker = Walker(data, _MOST_FIELDS)
        for graph in _fields(walker, (0, len(data)), 7):
            for tensor in _fields(walker, graph, 5):
                for pair in _fields(walker, tensor, 13):
                    texts = {
                        number: data[start:end]
                        for number, _, start, end in walker.fields(*pair)
                        if number in (1, 2)
                    }
                    if texts.get(1) == b"location":
                        found.add(texts.get(2, b"").decode())
    except (ValueError, IndexError) as error:
        raise ModelError(f"{file} is no ONNX model: {error}") from error
    return found


def _fields(walker: Walker, within: tuple[int, int], wanted: int) -> list[tuple[int, int]]:
    """Where the inner messages of one field are."""
    return [
        (start, end)
        for number, wire_type, start, end in walker.fields(*within)
        if number == wanted and wire_type == 2
    ]


# Conversions


def _write_as(to: str, source: Path, found: str, staged: Path) -> None:
    if to != "openvino" or found not in ("onnx", "paddle"):
        tool = _TOOLS.get(to, {}).get(found)
        hint = "" if tool is None else f"; {tool} does, then give its result"
        raise ModelError(f"{source}: no library here converts a model of {found} to {to}{hint}")
    try:
        import openvino
    except ImportError as error:
        raise ModelError(
            "OpenVINO converts this model, and is missing: install 'penstock-serving[openvino]'"
        ) from error
    file = paddle_files(source).program if found == "paddle" else _onnx_file(source)
    try:
        openvino.save_model(
            openvino.convert_model(str(file)), staged / "model.xml", compress_to_fp16=False
        )
    except Exception as error:
        raise ModelError(f"OpenVINO cannot convert {file}: {error}") from error


def _onnx_file(source: Path) -> Path:
    from penstock.runtimes.onnx import model_file

    return model_file(source)


# What is added


def _signature(model: Model) -> dict[str, Any]:
    """The inputs and outputs under the model's own names, which PyTorch's runtime reads."""
    sides = {"inputs": model.inputs, "outputs": model.outputs}
    return {side: [_tensor(each) for each in specs] for side, specs in sides.items()}


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": spec.name,
        "dtype": spec.dtype.name,
        "datatype": oip.datatype_of(spec),
    }
    if spec.alias != spec.name:
        described["alias"] = spec.alias
    if spec.shape is not None:
        axes = spec.axes or (None,) * len(spec.shape)
        described["shape"] = [
            axis if size is None else size for size, axis in zip(spec.shape, axes, strict=True)
        ]
    return described


def _add_examples(examples: Sequence[Path], staged: Path, model: Model) -> None:
    for number, file in enumerate(examples, 1):
        try:
            with np.load(file, allow_pickle=False) as arrays:
                feed: Feed = dict(arrays)
        except (OSError, ValueError, TypeError) as error:  # the last: it is one array
            raise ModelError(f"the example {file} cannot be read: {error}") from error
        try:
            model.run(feed)
        except (InputMismatch, InferenceFailed, WrongType) as error:
            raise ModelError(f"the model does not run on the example {file}: {error}") from error
        (staged / EXAMPLES).mkdir(exist_ok=True)
        shutil.copyfile(file, staged / EXAMPLES / f"{number}.npz")


def _entries(folder: Path) -> list[Entry]:
    files = sorted(
        each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()
    )
    return [
        Entry(path=path, size=(folder / path).stat().st_size, sha256=digest_of_file(folder / path))
        for path in files
        if path not in (MANIFEST, SIGNATURE)
    ]


def _ignore(_transferred: int) -> None:
    """No progress."""
