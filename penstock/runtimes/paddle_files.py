"""Finds a Paddle model's files, and checks that its parameters are complete.

Paddle's versions save models in four formats:

* ``__model__`` and ``__params__``;
* ``__model__`` and one file for each parameter;
* ``*.pdmodel`` and ``*.pdiparams``;
* ``*.json`` and ``*.pdiparams``, from Paddle 3 on.

The first may be encrypted, as ``encrypt_model`` and ``encrypt_params``.

Does not import Paddle. The sizes of parameters are checked here because the library does not check
them: with a truncated file it computes with uninitialized memory.

Source: Paddle's ``dense_tensor_serialize.cc`` for the files; ``docs/compatibility.md`` for which of
them is taken.
"""

from __future__ import annotations

import math
import os
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from penstock.errors import ModelError
from penstock.protocols.protobuf import Walker, read_varint

PROGRAM: Final = "__model__"
PARAMS: Final = "__params__"
ENCRYPTED_PROGRAM: Final = "encrypt_model"
ENCRYPTED_PARAMS: Final = "encrypt_params"

_KEY_SIZES: Final = (16, 24, 32)  # bytes, of AES
_MOST_FIELDS: Final = 100_000  # of a program's outermost message: blocks, operators' versions

_PDMODEL: Final = ".pdmodel"
_JSON: Final = ".json"
_PDIPARAMS: Final = ".pdiparams"

_PIR: Final = b'"magic":"pir"'
"""Text near the start of a program in JSON; other files of models may be ``.json`` too."""
_PIR_WITHIN: Final = 256

_WIDTHS: Final = {
    1: (0, 20, 21, 32, 33),
    2: (1, 4, 22, 36),
    4: (2, 5, 37),
    8: (3, 6, 23, 38),
    16: (24,),
}
_SIZES: Final = {kind: width for width, kinds in _WIDTHS.items() for kind in kinds}
"""Bytes of an element, by the type's number in Paddle's ``VarType``."""

_LAST_OF_PROGRAM: Final = 5
"""Highest field number of Paddle's ``ProgramDesc``."""

_MOST_DESCRIBED: Final = 1024  # maximum bytes of a tensor's description: its type and dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddleFiles:
    """The files of one model.

    Attributes:
        program: the program.
        params: the file with all parameters; None if there is none, or if they are separate.
        separate: whether each parameter has its own file beside the program.
    """

    program: Path
    params: Path | None = None
    separate: bool = False

    @property
    def is_encrypted(self) -> bool:
        """Whether the model is encrypted."""
        return self.program.name == ENCRYPTED_PROGRAM

    @property
    def is_json(self) -> bool:
        """Whether the program is of Paddle 3, which has no lod."""
        return self.program.suffix == _JSON


def is_paddle(path: Path) -> bool:
    """Whether the file or folder looks like a Paddle model."""
    if path.is_dir():
        named = any((path / name).is_file() for name in (PROGRAM, ENCRYPTED_PROGRAM))
        return named or any(_programs(path, _PDMODEL)) or any(_json(path))
    if path.name in (PROGRAM, PARAMS, ENCRYPTED_PROGRAM, ENCRYPTED_PARAMS) or path.suffix in (
        _PDMODEL,
        _PDIPARAMS,
    ):
        return True
    return path.suffix == _JSON and _is_pir(path)


def paddle_files(path: Path) -> PaddleFiles:
    """Find the files of the model.

    Raises:
        ModelError: there are several programs, or parameters without a program.
        OSError: the files cannot be read.
    """
    program = _program_in(path) if path.is_dir() else path
    folder = program.parent
    if program.name in (PARAMS, ENCRYPTED_PARAMS) or program.suffix == _PDIPARAMS:
        raise ModelError(
            f"model file {str(path)!r} holds the parameters of a Paddle model; name its program"
            f" ({PROGRAM}, *{_PDMODEL} or *{_JSON}) or its folder"
        )
    if program.name == PROGRAM:
        if (folder / PARAMS).is_file():
            return PaddleFiles(program=program, params=folder / PARAMS)
        return PaddleFiles(program=program, separate=True)
    if program.name == ENCRYPTED_PROGRAM:
        params = folder / ENCRYPTED_PARAMS
        return PaddleFiles(program=program, params=params if params.is_file() else None)
    own = program.with_suffix(_PDIPARAMS)
    found = [own] if own.is_file() else sorted(folder.glob("*" + _PDIPARAMS))
    if len(found) > 1:
        raise ModelError(
            f"model {str(program)!r}: looked for {own.name} or exactly one *{_PDIPARAMS} file,"
            f" found {', '.join(each.name for each in found)}"
        )
    return PaddleFiles(program=program, params=found[0] if found else None)


@cache
def read_key(source: str) -> bytes:
    """Read the key of an encrypted model. Cached: the source may be a pipe, and processes that are
    forked later inherit the key.

    Args:
        source: a file, or ``env:`` and the name of a variable with the key in base64.

    Raises:
        ModelError: there is no valid key; the text does not contain it.
    """
    kind, _, name = source.partition(":")
    try:
        if kind == "env":
            key = b64decode(os.environ[name], validate=True)
        else:
            key = Path(source).read_bytes()
    except KeyError:
        raise ModelError(f"{source}: the variable is not set") from None
    except ValueError:
        raise ModelError(f"{source}: the key must be written in base64") from None
    except OSError as error:
        raise ModelError(f"{source}: the key cannot be read: {error.strerror}") from error
    if len(key) not in _KEY_SIZES:
        raise ModelError(f"{source}: a key has 16, 24 or 32 bytes, this one {len(key)}")
    return key


def check_program(data: bytes, file: Path) -> None:
    """Check that a program was decrypted with the right key: the cipher does not detect a wrong
    one, and the library may crash on the result.

    Raises:
        ModelError: the key is wrong.
    """
    try:
        fields = [*Walker(data, _MOST_FIELDS).fields(0, len(data))]
    except ValueError:
        fields = []
    if not fields or any(number > _LAST_OF_PROGRAM for number, *_ in fields):
        raise ModelError(f"{file} is not encrypted with this key")


def check_params(file: Path, count: int | None = None, data: bytes | None = None) -> None:
    """Check the size of a parameter file.

    Args:
        file: the file.
        count: the number of parameters, if known.
        data: the decrypted contents, if the file is encrypted.

    Raises:
        ModelError: the file is truncated, has too many parameters, or is not a parameter file.
        OSError: it cannot be read.
    """
    broken = f"{file} is no complete file of Paddle's parameters"
    size = file.stat().st_size if data is None else len(data)
    found = 0
    try:
        with file.open("rb") if data is None else BytesIO(data) as opened:
            for end in _tensors(opened, size):
                if end > size:
                    raise ModelError(f"{broken}: cut off at {size} bytes, expected {end} or more")
                found += 1
    except (ValueError, KeyError):
        raise ModelError(f"{broken}: what follows {found} tensors is none") from None
    if count is not None and found != count:
        raise ModelError(f"{broken}: it has {found} tensors, the program {count}")


def _program_in(folder: Path) -> Path:
    for name in (PROGRAM, ENCRYPTED_PROGRAM):
        if (folder / name).is_file():
            return folder / name
    found = _programs(folder, _PDMODEL) or _json(folder)
    if len(found) != 1:
        names = ", ".join(each.name for each in found)
        raise ModelError(
            f"model folder {str(folder)!r}: looked for {PROGRAM} or exactly one *{_PDMODEL} or"
            f" *{_JSON} file, found {names}"
        )
    return found[0]


def _programs(folder: Path, suffix: str) -> list[Path]:
    return sorted(each for each in folder.glob("*" + suffix) if each.is_file())


def _json(folder: Path) -> list[Path]:
    return [each for each in _programs(folder, _JSON) if _is_pir(each)]


def _is_pir(file: Path) -> bool:
    """Whether the JSON begins like a program; true for a file that does not exist yet."""
    try:
        with file.open("rb") as opened:
            return _PIR in opened.read(_PIR_WITHIN).replace(b" ", b"")
    except FileNotFoundError:
        return False


def _tensors(file: BinaryIO, size: int) -> Iterator[int]:
    """Yield where each tensor ends, by its header.

    A header is: a version (0), the lod levels, each with its size in bytes, another version (0),
    and type and dimensions as a protobuf message with its size.
    """
    at = 0
    while at < size:
        if _number(file, 4) != 0:
            raise ValueError("unknown version")
        for _ in range(_number(file, 8)):
            file.seek(_number(file, 8), 1)
        if _number(file, 4) != 0:
            raise ValueError("unknown version")
        described = file.read(min(_number(file, 4), _MOST_DESCRIBED))
        at = file.tell() + _data_bytes(described)
        yield at
        file.seek(at)


def _number(file: BinaryIO, width: int) -> int:
    data = file.read(width)
    if len(data) < width:
        raise ValueError("the file is cut off")
    return int.from_bytes(data, "little")


def _data_bytes(described: bytes) -> int:
    """``TensorDesc``: 1 data_type, 2 dims; packed or not."""
    kind = -1
    dims: list[int] = []
    for number, wire_type, start, end in Walker(described, _MOST_DESCRIBED).fields(
        0, len(described)
    ):
        if number == 1:
            kind = start
        elif number == 2 and wire_type == 0:
            dims.append(start)
        elif number == 2:
            while start < end:
                size, start = read_varint(described, start)
                dims.append(size)
    return _SIZES[kind] * math.prod(dims)
