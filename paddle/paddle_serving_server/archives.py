"""Unpacks archives of models: tar, plain or compressed, and zip.

Nothing is written outside of the folder. Absolute names, names with ``..``, devices, and links to
what the archive does not contain are refused; a link to a file in a tar becomes a copy of it. The
bytes are counted while they are written, so that a small archive cannot fill the disk.
"""

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Final

MOST_FILES: Final = 100_000
_CHUNK: Final = 1 << 20

_DAMAGED: Final = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ValueError,
    RuntimeError,  # of links in a circle, and of encrypted files
)


class BadArchive(Exception):
    """An archive is refused, or cannot be read. The text says why."""


def is_archive(file: Path) -> bool:
    """Whether a file is an archive that ``unpack`` knows."""
    return _is_tar(file) or zipfile.is_zipfile(file)


def _is_tar(file: Path) -> bool:
    try:
        return tarfile.is_tarfile(file)
    except _DAMAGED:  # it has the beginning of one
        return True


def unpack(archive: Path, into: Path, most_bytes: int) -> None:
    """Unpack an archive.

    Args:
        archive: the file.
        into: a new folder.
        most_bytes: most bytes of all its files together.

    Raises:
        BadArchive: it is refused; the folder then has a part of it.
        OSError: a file cannot be written.
    """
    into.mkdir()
    left = most_bytes
    try:
        with _opened(archive) as files:
            for number, (name, file) in enumerate(files):
                if number == MOST_FILES:
                    raise BadArchive(f"{archive.name}: has more than {MOST_FILES:,} entries")
                target = into / checked(name)
                if file is None:
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                with file as packed, target.open("wb") as out:
                    while piece := packed.read(_CHUNK):
                        left -= len(piece)
                        if left < 0:
                            text = f"{archive.name}: has more than {most_bytes:,} bytes unpacked"
                            raise BadArchive(text)
                        out.write(piece)
    except _DAMAGED as error:
        raise BadArchive(f"{archive.name}: cannot be unpacked: {error}") from error


def checked(name: str) -> PurePosixPath:
    """A relative path that stays inside its folder.

    Raises:
        BadArchive: it does not.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise BadArchive(f"{name!r} leads out of its folder")
    return path


_Files = Iterator[tuple[str, AbstractContextManager[IO[bytes]] | None]]
"""The name and the contents of each file; None for a folder."""


@contextmanager
def _opened(archive: Path) -> Iterator[_Files]:
    if _is_tar(archive):
        with tarfile.open(archive) as tar:
            yield _of_tar(tar)
    else:
        with zipfile.ZipFile(archive) as zipped:
            yield _of_zip(zipped)


def _of_tar(tar: tarfile.TarFile) -> _Files:
    for member in tar:
        if member.isdir():
            yield member.name, None
            continue
        try:
            file = tar.extractfile(member)  # of a link: what it leads to in the archive
        except KeyError as error:
            raise BadArchive(f"{member.name!r} is a link out of the archive") from error
        if file is None:
            raise BadArchive(f"{member.name!r} is neither a file nor a folder")
        yield member.name, file


def _of_zip(zipped: zipfile.ZipFile) -> _Files:
    for member in zipped.infolist():
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise BadArchive(f"{member.filename!r} is neither a file nor a folder")
        yield member.filename, None if member.is_dir() else zipped.open(member)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
