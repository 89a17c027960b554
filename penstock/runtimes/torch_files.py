"""Finds a PyTorch model's file and its kind, and reads its inputs.

Does not import PyTorch. Files that need Python's pickle, modules and weights of ``torch.save``, are
refused before PyTorch opens them, and so are pickled parts of an exported program. TorchScript's
records have the same format, but PyTorch reads them without Python's pickle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal
from zipfile import BadZipFile, ZipFile

import numpy as np

from penstock.errors import ModelError
from penstock.tensor import TensorSpec

SUFFIXES: Final = (".pt2", ".pt", ".pth", ".ts")
"""Suffixes, in the order in which a folder is searched."""

SIGNATURE: Final = "signature.json"

_SAMPLES: Final = "/data/sample_inputs/"

Kind = Literal["script", "exported"]
Signature = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]


def is_torch(path: Path) -> bool:
    """Whether the file or folder looks like a PyTorch model, or like weights."""
    if path.is_dir():
        return any(_models(path))
    return path.suffix in SUFFIXES


def torch_file(path: Path) -> Path:
    """Return the file to open: the path, or the folder's only model.

    Raises:
        ModelError: there are several.
        OSError: the folder cannot be read.
    """
    if not path.is_dir():
        return path
    found = [*_models(path)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(each.name for each in found) or "none"
    raise ModelError(
        f"model folder {str(path)!r}: looked for exactly one file of"
        f" {', '.join('*' + suffix for suffix in SUFFIXES)}, found {names}"
    )


def kind_of(file: Path) -> Kind:
    """Return the kind of model in a file.

    Raises:
        ModelError: the file cannot be opened without Python's pickle.
        OSError: the file cannot be read.
    """
    try:
        with ZipFile(file) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
            if "models/model.json" in names:
                _check_exported(file, archive)
                return "exported"
    except (BadZipFile, ValueError, KeyError) as error:
        raise ModelError(
            f"{file} is no TorchScript and no exported program ({error}); pickled modules and"
            " weights are not opened: save with torch.jit.save or torch.export.save"
        ) from error
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        return "script"
    if any(name.startswith("data/aotinductor/") for name in names):
        raise ModelError(f"{file} is compiled by AOTInductor; save with torch.export.save")
    if "serialized_exported_program.json" in archive.namelist():
        raise ModelError(f"{file} was exported before PyTorch 2.8; export it anew")
    raise ModelError(
        f"{file} is a pickle of modules or weights, which is not opened: save the model with"
        " torch.jit.save or torch.export.save"
    )


def pickled_samples(file: Path) -> Iterator[bytes]:
    """Yield the example inputs of an exported program, which are always pickled."""
    with ZipFile(file) as archive:
        for name in archive.namelist():
            if _SAMPLES in name:
                yield archive.read(name)


def read_signature(file: Path) -> Signature | None:
    """Read the file ``signature.json`` beside the model; None without one.

    Raises:
        ModelError: the file cannot be read.
    """
    path = file.with_name(SIGNATURE)
    if not path.is_file():
        return None
    try:
        described = json.loads(path.read_bytes())
        inputs, outputs = (
            tuple(_spec(each) for each in described.get(side, [])) for side in ("inputs", "outputs")
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{path}: cannot be read: {error!r}") from error
    return inputs, outputs


def _models(folder: Path) -> Iterator[Path]:
    for suffix in SUFFIXES:
        yield from sorted(each for each in folder.glob("*" + suffix) if each.is_file())


def _check_exported(file: Path, archive: ZipFile) -> None:
    for name in archive.namelist():
        if "/data/aotinductor/" in name:
            raise ModelError(f"{file} is compiled by AOTInductor; save with torch.export.save")
        if not name.endswith(("_weights_config.json", "_constants_config.json")):
            continue
        entries = json.loads(archive.read(name)).get("config", {})
        pickled = [key for key, value in entries.items() if value.get("use_pickle")]
        if pickled:
            raise ModelError(
                f"{file} holds {', '.join(map(repr, sorted(pickled)[:8]))} as a pickle, which is"
                " not opened; export the model without tensor subclasses and objects"
            )


def _spec(described: dict[str, Any]) -> TensorSpec:
    name = str(described["name"])
    dtype = np.dtype(described.get("dtype", "float32"))
    dims = described.get("shape")
    if dims is None:
        return TensorSpec(name=name, alias=name, dtype=dtype, shape=None)
    axes = tuple(dim if isinstance(dim, str) else None for dim in dims)
    shape = tuple(None if dim is None or isinstance(dim, str) else int(dim) for dim in dims)
    return TensorSpec(name=name, alias=name, dtype=dtype, shape=shape, axes=axes)
