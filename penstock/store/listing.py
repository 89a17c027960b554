"""What a store lists, and the interface of stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from penstock.repository.manifest import File

Progress: TypeAlias = Callable[[int], None]
"""Called with the number of bytes that were transferred since the last call, in any thread. What it
raises ends the transfer."""


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is no part of a version: its name starts with a dot, or
    it is what Python keeps beside programs when they run.
    """
    return name.startswith(".") or name == "__pycache__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a repository, or of a folder in it, at one time.

    Attributes:
        files: by path. Hidden ones are left out, see ``is_hidden``.
        refused: why a path is not used, by path as text that can be printed.
        unfinished: paths of files that a program is still writing.
    """

    files: tuple[File, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()


class Store(Protocol):
    """A place with files. Every method may block, and may be called in any thread."""

    @property
    def url(self) -> str:
        """The place, without passwords: for messages, and as the key of what is known of it."""

    def scan(self, folder: str = "") -> Listing:
        """List the files of the place, or of one folder in it; never from a cache.

        Raises:
            StoreUnavailable: the store does not answer.
        """

    def file(self, path: str) -> File | None:
        """One file, as it is now; None if there is none. Less work than a scan of its folder.

        Raises:
            StoreUnavailable: the store does not answer.
        """

    def read(self, file: File, limit: int) -> bytes:
        """Read a small file.

        Raises:
            ContentRefused: it is larger than the limit, in bytes, or not what was listed.
            StoreUnavailable: the store does not answer.
        """

    def copy(self, file: File, to: Path, progress: Progress) -> None:
        """Transfer a file, of at most its listed size.

        Args:
            file: as listed.
            to: the file to write; its folder exists.
            progress: told the bytes.

        Raises:
            ContentRefused: it is not what was listed, such as a link that leaves the repository.
            VersionUnfinished: it has another size than was listed, or has gone.
            StoreUnavailable: the store does not answer.
            OSError: the file cannot be written.
        """


class Within:
    """A store as the one folder of a larger one: the folder of a model as a repository of it.

    Args:
        store: the folder.
        name: of the folder; one part of a path.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self.url = store.url

    def scan(self, folder: str = "") -> Listing:
        """See ``Store``."""
        if folder and self._below(folder) is None:
            return Listing()
        found = self._store.scan(self._below(folder) or "")
        return Listing(
            files=tuple(map(self._above, found.files)),
            refused={f"{self._name}/{path}": why for path, why in found.refused.items()},
            unfinished=tuple(f"{self._name}/{path}" for path in found.unfinished),
        )

    def file(self, path: str) -> File | None:
        """See ``Store``."""
        below = self._below(path)
        found = self._store.file(below) if below else None
        return None if found is None else self._above(found)

    def read(self, file: File, limit: int) -> bytes:
        """See ``Store``."""
        return self._store.read(self._of_store(file), limit)

    def copy(self, file: File, to: Path, progress: Progress) -> None:
        """See ``Store``."""
        self._store.copy(self._of_store(file), to, progress)

    def _below(self, path: str) -> str | None:
        """A path in the store; None if it is not below the folder."""
        first, _, rest = path.partition("/")
        return rest if first == self._name else None

    def _above(self, file: File) -> File:
        return replace(file, path=f"{self._name}/{file.path}")

    def _of_store(self, file: File) -> File:
        return replace(file, path=self._below(file.path) or "")
