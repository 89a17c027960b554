"""A folder of this machine as a store.

Links are followed inside the repository: mounted volumes of Kubernetes consist of links. A link
that leaves it is refused, and so is everything that is no file and no folder. What is opened is
checked again, since a link may have changed since the scan.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import ContentRefused, StoreUnavailable, VersionUnfinished
from penstock.repository.manifest import MOST_FILES, File, is_unfinished, why_unsafe
from penstock.store.listing import Listing, Progress, is_hidden

_CHUNK: Final = 2**20
_SETTLED_NS: Final = 2 * 10**9
"""Age from which a file's times tell apart all its contents: clocks of file systems are coarse."""


class LocalStore:
    """A folder as a store; see the module.

    Args:
        folder: of the repository; may be a link, which is read anew for each scan.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    @property
    def url(self) -> str:
        return str(self._folder)

    def scan(self, folder: str = "") -> Listing:
        root = self._root()
        walk = _Walk(root)
        try:
            if folder:
                walk.visit_one(folder)
            else:
                walk.visit(str(root), "", ())
        except OSError as error:
            raise StoreUnavailable(f"{self.url}: cannot be listed: {error}") from error
        return walk.listing()

    def file(self, path: str) -> File | None:
        return next((each for each in self.scan(path).files if each.path == path), None)

    def read(self, file: File, limit: int) -> bytes:
        with self._opened(file) as descriptor:
            try:
                data = os.read(descriptor, limit + 1)
                while len(data) <= limit and (more := os.read(descriptor, limit + 1 - len(data))):
                    data += more
            except OSError as error:
                raise StoreUnavailable(f"{self.url}/{file.path}: {error}") from error
        if len(data) > limit:
            raise ContentRefused(f"{self.url}/{file.path} has more than {limit:,} bytes")
        return data

    def copy(self, file: File, to: Path, progress: Progress) -> None:
        size = 0
        with self._opened(file) as descriptor, to.open("wb") as written:
            while True:
                try:
                    data = os.read(descriptor, _CHUNK)
                except OSError as error:
                    raise StoreUnavailable(f"{self.url}/{file.path}: {error}") from error
                if not data:
                    break
                size += len(data)
                if file.size is not None and size > file.size:
                    break
                written.write(data)
                progress(len(data))
        if file.size is not None and size != file.size:
            raise VersionUnfinished(f"{self.url}/{file.path} changed while it was read")

    def _root(self) -> Path:
        root = Path(os.path.realpath(self._folder))
        if not root.is_dir():
            raise StoreUnavailable(f"{self.url}: no such folder")
        return root

    @contextmanager
    def _opened(self, file: File) -> Iterator[int]:
        """The descriptor of a regular file inside the repository."""
        root = self._root()
        try:
            # Without O_NONBLOCK a pipe that took the file's place would block.
            descriptor = os.open(root / file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise VersionUnfinished(f"{self.url}/{file.path} has gone") from error
        except OSError as error:
            raise StoreUnavailable(f"{self.url}/{file.path}: {error}") from error
        try:
            real = os.readlink(f"/proc/self/fd/{descriptor}")
            if not _is_below(real, str(root)):
                raise ContentRefused(f"{self.url}/{file.path} {_LEAVES}")
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ContentRefused(f"{self.url}/{file.path} {_NO_FILE}")
            yield descriptor
        finally:
            os.close(descriptor)


_LEAVES: Final = "is a link that leaves the repository"
_NO_FILE: Final = "is neither a file nor a folder"


class _Walk:
    """One scan."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._files: list[File] = []
        self._refused: dict[str, str] = {}
        self._unfinished: list[str] = []

    def listing(self) -> Listing:
        files = sorted(self._files, key=lambda each: each.path)
        return Listing(
            files=tuple(files), refused=self._refused, unfinished=tuple(sorted(self._unfinished))
        )

    def visit_one(self, path: str) -> None:
        """Visit a folder, or a file, by its path; nothing if it has gone."""
        at = os.path.join(self._root, path)
        if os.path.lexists(at) and not _is_below(os.path.realpath(at), self._root):
            self._refuse(path, _LEAVES)
        else:
            self._entry(at, path, ())

    def visit(self, folder: str, path: str, above: tuple[str, ...]) -> None:
        """Visit a folder.

        Args:
            folder: where it is.
            path: relative to the repository; empty for the repository itself.
            above: the real paths of the folders that contain it.
        """
        real = os.path.realpath(folder)
        if real in above:
            self._refuse(path, "is a link to a folder that contains it")
            return
        try:
            with os.scandir(folder) as entries:
                names = sorted(each.name for each in entries)
        except FileNotFoundError:
            if not path:
                raise
            return  # deleted while we looked
        for name in names:
            below = f"{path}/{name}" if path else name
            self._entry(os.path.join(folder, name), below, (*above, real))

    def _entry(self, at: str, path: str, above: tuple[str, ...]) -> None:
        name = path.rpartition("/")[2]
        if is_unfinished(name):
            self._unfinished.append(path)
            return
        if is_hidden(name):
            return
        reason = why_unsafe(path)
        if reason is not None:
            self._refuse(path, reason)
            return
        try:
            found = os.stat(at)
            if os.path.islink(at) and not _is_below(os.path.realpath(at), self._root):
                self._refuse(path, _LEAVES)
                return
        except FileNotFoundError:
            if os.path.islink(at):
                self._refuse(path, "is a link to nothing")
            return
        except OSError as error:
            if os.path.islink(at):  # such as a link to itself
                self._refuse(path, f"is a link that cannot be followed: {error.strerror}")
                return
            raise
        if stat.S_ISDIR(found.st_mode):
            self.visit(at, path, above)
        elif stat.S_ISREG(found.st_mode):
            self._found(path, found)
        else:
            self._refuse(path, _NO_FILE)

    def _found(self, path: str, found: os.stat_result) -> None:
        if len(self._files) == MOST_FILES:
            raise OSError(f"it has more than {MOST_FILES:,} files")
        newest = max(found.st_mtime_ns, found.st_ctime_ns)
        self._files.append(
            File(
                path=path,
                size=found.st_size,
                revision=f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_ctime_ns:x}",
                strong=time.time_ns() - newest > _SETTLED_NS,
                written=found.st_mtime,
            )
        )

    def _refuse(self, path: str, reason: str) -> None:
        self._refused[ascii(path)[1:-1]] = reason


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(folder.rstrip("/") + "/")
