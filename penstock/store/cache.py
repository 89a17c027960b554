"""The local cache of models' files, by their content.

Each content is kept once, under its sha256; a version is a folder of hard links to its contents, so
versions that share files share their space. A version that is in use is never removed; of the
others those that were used least recently go when room is needed.

Guarantees:

* What ``Fetched.path`` names is complete, and each file has the digest that was asked for: files
  and folders are made under other names and renamed at the end. A content that is found in the
  cache is read and compared once in each process before it is used.
* A process may end at any point. Its unfinished files are removed by the next one that opens the
  cache, and what it used counts as unused: locks end with their process.
* Several processes, and threads, may use one cache.

The folder must be on a disk of this machine: the locks of network file systems are none.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from errno import EDQUOT, EMLINK, ENOSPC, ENOTSUP, EPERM, EXDEV
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Final

from penstock.errors import CacheFull, StoreError
from penstock.repository.manifest import why_unsafe

_NO_LINKS: Final = (EPERM, ENOTSUP, EMLINK, EXDEV)
_RESERVED: Final = ".reserved"
_MOST_VERIFIED: Final = 100_000
_SHOWN: Final = 16  # digits of a version's digest in the name of its folder


@dataclass(slots=True, kw_only=True, eq=False)
class Fetched:
    """A version in the cache, which stays there until ``release``.

    Attributes:
        path: the folder with its files.
        digest: of its content; equal for equal files.
        transferred: bytes that were transferred for it.
    """

    path: Path
    digest: str
    transferred: int = 0
    _lock: int = field(default=-1, repr=False)

    def release(self) -> None:
        """The version is not used any more, and may be removed. May be called again."""
        if self._lock >= 0:
            descriptor, self._lock = self._lock, -1
            # A forked process may have a copy of the descriptor, which would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


class Cache:
    """A cache in a folder; see the module.

    Args:
        folder: of the cache; made if it does not exist.
        limit: most bytes of all files; None for no limit.

    Attributes:
        folder, limit: as given.

    Raises:
        StoreError: the folder cannot be used.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder = folder.absolute()
        self.limit = limit
        self._blobs = self.folder / "blobs"
        self._versions = self.folder / "versions"
        self._staged = self.folder / "tmp"
        self._known = self.folder / "known"
        self._verified: dict[tuple[int, int, int], None] = {}
        self._verifying = threading.Lock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for each in (self._blobs, self._versions, self._staged, self._known):
                each.mkdir(exist_ok=True)
            with self._locked():
                self._sweep()
                self._forget()
        except OSError as error:
            raise StoreError(f"cache {self.folder}: {error}") from error

    def hold(self, path: Path) -> Fetched:
        """Use a version again that was fetched before.

        Args:
            path: of its folder, or in it.

        Raises:
            StoreError: it is not there any more.
        """
        try:
            folder = self._versions.joinpath(*path.relative_to(self._versions).parts[:2])
            path.stat()
            with self._locked():
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(lock, fcntl.LOCK_SH)
        except (ValueError, OSError) as error:
            raise StoreError(f"cache {self.folder}: {path} is not there any more") from error
        return Fetched(path=folder, digest="", _lock=lock)

    def used(self) -> int:
        """The bytes of all files in the cache, and of those that are being transferred."""
        return self._bytes(self._blobs, self._versions)

    def _bytes(self, *folders: Path) -> int:
        """The bytes of the files in some folders, and of those that are being transferred."""
        sizes: dict[int, int] = {}
        reserved = 0
        for top in (*folders, self._staged):
            for folder, _, names in os.walk(top):
                for name in names:
                    file = Path(folder, name)
                    with suppress(FileNotFoundError):
                        if top is self._staged and file.suffix == _RESERVED:
                            reserved += int(file.read_text() or 0)
                            continue
                        found = file.lstat()
                        if top is not self._staged or found.st_nlink > 1:  # else reserved
                            sizes[found.st_ino] = found.st_size
        return sum(sizes.values()) + reserved

    @contextmanager
    def staging(self, model: str, version: str) -> Iterator[Staging]:
        """Make a version: a folder under a name of its own until it is complete.

        Args:
            model: the model's name.
            version: its text.

        Raises:
            StoreError: a name cannot be that of a folder, or the disk fails.
            CacheFull: the disk is full.
        """
        for name in (model, version):
            reason = "has a slash" if "/" in name else why_unsafe(name)
            if reason is not None:
                raise StoreError(f"the name {name!r} cannot be that of a folder: it {reason}")
        folder = self._staged / f"{os.getpid()}-{secrets.token_hex(8)}"
        staging = None
        try:
            with self._locked():
                folder.mkdir()
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(lock, fcntl.LOCK_EX)
            staging = Staging(self, folder, lock, model, version)
            yield staging
        except OSError as error:
            if error.errno in (ENOSPC, EDQUOT):
                raise CacheFull(f"cache {self.folder}: {error.strerror}") from error
            raise StoreError(f"cache {self.folder}: {error}") from error
        finally:
            if staging is not None:
                staging.end()

    def digest_of(self, place: str, path: str, revision: str) -> str | None:
        """The sha256 that a file of a store had at a revision; None if it was never fetched.

        Args:
            place: the store's URL.
            path: of the file in it.
            revision: as listed.
        """
        try:
            known = json.loads(self._record(place, path).read_bytes())
            return str(known["sha256"]) if known["revision"] == revision else None
        except (OSError, ValueError, KeyError, TypeError):  # unknown, or written by another release
            return None

    def remember(self, place: str, path: str, revision: str, digest: str) -> None:
        """Keep what ``digest_of`` returns."""
        temporary = self._staged / f"{os.getpid()}-{secrets.token_hex(8)}"
        with self._locked():
            temporary.write_text(json.dumps({"revision": revision, "sha256": digest}))
            temporary.rename(self._record(place, path))

    def _record(self, place: str, path: str) -> Path:
        return self._known / sha256(f"{place}\0{path}".encode()).hexdigest()

    def _good(self, digest: str, size: int | None) -> bool:
        """Whether a content is in the cache, unchanged; a damaged one is removed."""
        blob = self._blobs / digest
        try:
            found = blob.stat()
            mark = (found.st_ino, found.st_size, found.st_mtime_ns)
            if mark not in self._verified:
                if size not in (None, found.st_size) or digest_of_file(blob) != digest:
                    blob.unlink()
                    return False
                self._verify(mark)
            os.utime(blob, ns=(time.time_ns(), found.st_mtime_ns))  # the last use, as its atime
        except FileNotFoundError:
            return False
        return True

    def _verify(self, mark: tuple[int, int, int]) -> None:
        """A file has the content that its name says; the oldest of many are read again later."""
        with self._verifying:
            self._verified[mark] = None
            if len(self._verified) > _MOST_VERIFIED:
                del self._verified[next(iter(self._verified))]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock of all that is not in a folder of one's own; held for moments."""
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what ended processes have left; under the lock."""
        for each in self._staged.iterdir():
            if not each.is_dir():
                if each.suffix != _RESERVED or not each.with_suffix("").is_dir():
                    each.unlink(missing_ok=True)
            elif _is_free(each):
                shutil.rmtree(each, ignore_errors=True)
                each.with_suffix(_RESERVED).unlink(missing_ok=True)

    def _forget(self) -> None:
        """Remove what is remembered of contents that the cache has no more; under the lock."""
        for each in self._known.iterdir():
            try:
                digest = json.loads(each.read_bytes())["sha256"]
                kept = (self._blobs / str(digest)).exists()
            except (ValueError, KeyError, TypeError):
                kept = False
            if not kept:
                each.unlink(missing_ok=True)

    def _reserve(self, name: Path, need: int) -> None:
        """Keep room for some bytes, until the file of that name is removed."""
        with self._locked():
            self._sweep()
            if not self._fits(need):
                self._make_room(need)
            name.write_text(str(need))

    def _make_room(self, need: int) -> None:
        """Remove what is not in use until so many bytes fit, under the lock.

        Raises:
            CacheFull: they never will; nothing was removed.
        """
        in_use = self._bytes(*(each for each in self._each_version() if not _is_free(each)))
        free = shutil.disk_usage(self.folder).free
        in_time = need <= free + self.used() - in_use
        if in_time and (self.limit is None or in_use + need <= self.limit):
            for _ in self._removals():
                if self._fits(need):
                    return
        limit = "" if self.limit is None else f" of {self.limit:,}"
        raise CacheFull(
            f"cache {self.folder}: {need:,} bytes more do not fit: what is in use takes"
            f" {in_use:,}{limit}, and the disk has {free:,} left"
        )

    def _fits(self, need: int) -> bool:
        if need > shutil.disk_usage(self.folder).free:
            return False
        return self.limit is None or self.used() + need <= self.limit

    def _removals(self) -> Iterator[None]:
        """Remove what is not in use, one thing after another: contents of no version, and versions
        with the contents of no other; those first that were used least recently.
        """
        for _, blob in sorted((each.stat().st_atime_ns, each) for each in self._alone()):
            blob.unlink()
            yield
        found = sorted((each.stat().st_mtime_ns, each) for each in self._each_version())
        for _, version in found:
            if _is_free(version):
                self._discard(version)
                with suppress(OSError):
                    version.parent.rmdir()  # unless it has other versions
                for blob in self._alone():
                    blob.unlink()
                yield

    def _each_version(self) -> list[Path]:
        """The folders of versions."""
        return [each for model in self._versions.iterdir() for each in model.iterdir()]

    def _alone(self) -> list[Path]:
        """The contents that no version has."""
        return [each for each in self._blobs.iterdir() if each.stat().st_nlink == 1]

    def _discard(self, version: Path) -> None:
        aside = self._staged / f"{os.getpid()}-{secrets.token_hex(8)}"
        version.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


class Staging:
    """A version that is being made in the cache.

    Args:
        cache: the cache.
        folder: where it is made.
        lock: a descriptor of the folder, with an exclusive lock.
        model: the model's name.
        version: its text.

    Attributes:
        lock: as given; -1 once the folder is a version's.
    """

    def __init__(self, cache: Cache, folder: Path, lock: int, model: str, version: str) -> None:
        self.lock = lock
        self._cache = cache
        self._folder = folder
        self._name = (model, version)
        self._transferred = 0
        self._reserved = 0

    def take(self, path: str, digest: str, size: int | None = None) -> bool:
        """Add a file whose content is in the cache.

        Args:
            path: of the file in the version's folder.
            digest: its sha256.
            size: its bytes, if they are known.

        Returns:
            Whether the content is there.
        """
        if not self._cache._good(digest, size):
            return False
        try:
            _link(self._cache._blobs / digest, self._place(path))
        except FileNotFoundError:  # removed in between
            return False
        return True

    def reserve(self, need: int) -> None:
        """Make room for files that will be transferred.

        Args:
            need: their bytes.

        Raises:
            CacheFull: there is none.
        """
        self._cache._reserve(self._folder.with_suffix(_RESERVED), need)
        self._reserved = need

    def place(self, path: str) -> Path:
        """Where to write a file that is transferred."""
        return self._place(path)

    def keep(self, path: str) -> str:
        """Keep a file that was transferred; from then on it is in the cache.

        Returns:
            Its sha256.
        """
        file = self._place(path)
        digest = digest_of_file(file)
        file.chmod(0o444)
        with file.open("rb") as written:
            os.fsync(written.fileno())
        size = file.stat().st_size
        self._transferred += size
        self._reserved = max(0, self._reserved - size)
        blob = self._cache._blobs / digest
        temporary = self._folder.with_suffix(".new")
        with self._cache._locked():
            _link(file, temporary)
            temporary.rename(blob)
            self._folder.with_suffix(_RESERVED).write_text(str(self._reserved))
        found = blob.stat()
        self._cache._verify((found.st_ino, found.st_size, found.st_mtime_ns))
        return digest

    def commit(self, digest: str) -> Fetched:
        """The version is complete.

        Args:
            digest: of its content.
        """
        model, version = self._name
        to = self._cache._versions / model / f"{version}-{digest[:_SHOWN]}"
        with self._cache._locked():
            to.parent.mkdir(exist_ok=True)
            lock, self.lock = self.lock, -1
            if to.exists() and _same(self._folder, to):
                shutil.rmtree(self._folder, ignore_errors=True)
                os.close(lock)
                lock = os.open(to, os.O_RDONLY | os.O_DIRECTORY)
            else:
                if to.exists():  # damaged
                    self._cache._discard(to)
                self._folder.rename(to)
            fcntl.flock(lock, fcntl.LOCK_SH)
            os.utime(to)  # its last use
            os.fsync(lock)
        return Fetched(path=to, digest=digest, transferred=self._transferred, _lock=lock)

    def end(self) -> None:
        """Remove what was not committed, and give the room back."""
        if self.lock >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self.lock)
            self.lock = -1
        self._folder.with_suffix(_RESERVED).unlink(missing_ok=True)

    def _place(self, path: str) -> Path:
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        return file


def keep(folder: Path) -> None:
    """Use a version that another process has fetched, and still uses, as long as this process and
    those that it forks live.

    Args:
        folder: ``Fetched.path`` of the version.
    """
    fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)


def digest_of_file(file: Path) -> str:
    """The sha256 of a file's content."""
    with file.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()


def _link(file: Path, to: Path) -> None:
    """Give a file another name; a copy where the file system has no hard links."""
    try:
        os.link(file, to)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(file, to)
        to.chmod(0o444)


def _is_free(folder: Path) -> bool:
    """Whether no process uses a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _same(one: Path, other: Path) -> bool:
    """Whether two folders have the same files."""
    names = [
        {each.relative_to(folder) for each in folder.rglob("*") if each.is_file()}
        for folder in (one, other)
    ]
    return names[0] == names[1] and all(
        os.path.samefile(one / each, other / each)
        or digest_of_file(one / each) == digest_of_file(other / each)
        for each in names[0]
    )
