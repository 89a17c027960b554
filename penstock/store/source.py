"""A repository of models: lists its files, and fetches versions into the cache.

A version is fetched only when it is whole. With a manifest that is known: all files must be there
with their sizes, and with their digests afterwards. Without one, a file ``_SUCCESS`` that is newer
than all others says so, or two scans at some distance that are equal. In each case the files must
not have changed while they were transferred.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from penstock.errors import ContentRefused, EmptyListing, VersionUnfinished
from penstock.repository.manifest import (
    DONE,
    MANIFEST,
    MOST_BYTES,
    SIGNATURE,
    File,
    Manifest,
    content_digest,
    fingerprint,
    parse_manifest,
    why_incomplete,
    why_moving,
    why_unlike,
)
from penstock.store import signing
from penstock.store.cache import Cache, Fetched
from penstock.store.listing import Listing, Store, Within
from penstock.store.local import LocalStore
from penstock.store.remote import RemoteStore
from penstock.store.signing import PublicKeys

SETTLE_SECONDS: Final = 2.0
"""Least time between two equal scans of a version without a manifest."""


def store_of(place: str | Path, options: Mapping[str, Any] | None = None) -> Store:
    """The store of a path or URL; a path needs no other package.

    Args:
        place: a folder, ``file://`` and a folder, or the URL of a store.
        options: for fsspec's file system.

    Raises:
        StoreError: a package is missing, or the scheme is unknown.
    """
    text = str(place)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return LocalStore(Path(text))
    if scheme in ("file", "local"):
        return LocalStore(Path(rest))
    return RemoteStore(text, options)


class Source:
    """A repository of models.

    Every method blocks; they may be called in several threads.

    Args:
        place: a folder, or the URL of a store.
        keys: the keys of which one must have signed each version's manifest; None: no signatures
            are needed.
        options: for fsspec's file system, beside its own configuration.
        settle: least seconds between two equal scans of a version without a manifest.
        within: the folder that the place is in the repository, which has nothing else; empty: the
            place is the repository.

    Attributes:
        url: the place, without passwords.

    Raises:
        StoreError: a package is missing, or the scheme is unknown.
    """

    def __init__(
        self,
        place: str | Path,
        *,
        keys: PublicKeys | None = None,
        options: Mapping[str, Any] | None = None,
        settle: float = SETTLE_SECONDS,
        within: str = "",
    ) -> None:
        store = store_of(place, options)
        self._store = Within(store, within) if within else store
        self._keys = keys
        self._settle = settle
        self._had_files = False
        self._scan: tuple[float, Listing] | None = None
        self._lock = threading.Lock()
        self.url = self._store.url

    def listing(self) -> Listing:
        """List all files of the repository, as they are now.

        Raises:
            EmptyListing: there are none, though there were some before.
            StoreUnavailable: the store does not answer.
        """
        now = time.monotonic()
        found = self._store.scan()
        with self._lock:
            if found.files:
                self._had_files = True
            elif self._had_files:
                raise EmptyListing(f"{self.url} lists no files, though it had some")
            self._scan = (now, found)
        return found

    def files_at(self, path: str) -> tuple[File, ...]:
        """The one file with a path, or the files of that folder; there may be none.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        one = self._store.file(path)
        if one is not None:
            return (one,)
        try:
            return self._store.scan(path).files
        except VersionUnfinished:
            return ()

    def file_at(self, path: str) -> File | None:
        """The file with a path.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        return self._store.file(path)

    def read(self, file: File, limit: int = 2**20) -> bytes:
        """Read a small file, such as a configuration.

        Args:
            file: as listed.
            limit: most bytes.

        Raises:
            StoreError: it cannot be read, or is larger.
        """
        return self._store.read(file, limit)

    def fetch(
        self,
        model: str,
        version: str,
        files: Sequence[File],
        cache: Cache,
        *,
        folder: str,
        progress: Callable[[int, int], None] | None = None,
    ) -> Fetched:
        """Copy a version into the cache, and check it.

        Only contents that the cache does not have are transferred, if a manifest or the store tells
        which those are, or if the same file was fetched before.

        Args:
            model: the model's name.
            version: its text.
            files: of the version, from ``listing``.
            cache: the cache.
            folder: the folder of the version in the repository, below which the files keep their
                paths; or, of a version of one file, the path of that file.
            progress: told the bytes that were transferred, and those that will be in all, in any
                thread. What it raises ends the transfer.

        Returns:
            The version, which stays in the cache until it is released.

        Raises:
            VersionUnfinished: files are missing, or change; a later try may succeed.
            ContentRefused: a digest, the signature or a name is wrong.
            StoreUnavailable: the store does not answer.
            CacheFull: the cache has no room.
        """
        if folder in {each.path for each in files}:
            folder = folder.rpartition("/")[0]
        with self._lock:
            known = () if self._scan is None else self._scan[1].files
        attempt = _Attempt(
            store=self._store,
            model=model,
            version=version,
            folder=folder,
            listed=tuple(files),
            others=frozenset({each.path for each in known} - {each.path for each in files}),
        )
        attempt.check_names()
        attempt.check_unchanged()
        manifest = attempt.manifest(self._keys)
        if manifest is None and not attempt.is_done():
            self._wait_until_settled(attempt)
        with cache.staging(model, version) as staging:
            entries = _entries(attempt, manifest, cache)
            missing = [
                each
                for each in entries
                if each.sha256 is None or not staging.take(each.path, each.sha256, each.file.size)
            ]
            told = _Told(sum(each.file.size or 0 for each in missing), progress)
            staging.reserve(told.total)
            digests: dict[str, str] = {}
            for each in missing:
                self._store.copy(each.file, staging.place(each.path), told)
                digests[each.path] = staging.keep(each.path)
            attempt.check_unchanged()
            for each in missing:
                if each.promised and each.sha256 != digests[each.path]:
                    raise attempt.refused(
                        f"{each.path} has the sha256 {digests[each.path]}, not {each.sha256}"
                    )
                if each.file.strong:
                    cache.remember(self.url, each.file.path, each.file.revision, digests[each.path])
            content = {each.path: digests.get(each.path) or each.sha256 or "" for each in entries}
            return staging.commit(content_digest(content.items()))

    def _wait_until_settled(self, attempt: _Attempt) -> None:
        """Return if two scans at a distance are equal, the first of which may be an earlier one.

        Raises:
            VersionUnfinished: they differ.
        """
        now = time.monotonic()
        with self._lock:
            at, last = self._scan or (now, Listing())
        known = {each.path: each for each in last.files}
        seen = at if all(known.get(each.path) == each for each in attempt.listed) else now
        time.sleep(max(0.0, seen + self._settle - now))
        attempt.check_unchanged()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A file of a version: its path in the version's folder, and what is known of its content.

    Attributes:
        path: below the version's folder.
        file: as listed.
        sha256: of the content; None if it is unknown.
        promised: whether the content must have it.
    """

    path: str
    file: File
    sha256: str | None
    promised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One attempt to fetch a version.

    Attributes:
        store: the store.
        model, version: the names.
        folder: of the version in the repository; empty for the repository's own.
        listed: the version's files.
        others: paths of further files of the repository, as it was listed.
    """

    store: Store
    model: str
    version: str
    folder: str
    listed: tuple[File, ...]
    others: frozenset[str]

    @property
    def files(self) -> dict[str, File]:
        """The files, by path below the version's folder."""
        skip = len(self.folder) + 1 if self.folder else 0
        return {each.path[skip:]: each for each in self.listed}

    def refused(self, reason: str) -> ContentRefused:
        """The error of a content that is refused."""
        text = f"{self.store.url}/{self.folder}: {reason}"
        return ContentRefused(text, fingerprint(self.listed))

    def unfinished(self, reason: str) -> VersionUnfinished:
        """The error of a version that is still being copied."""
        return VersionUnfinished(f"{self.store.url}/{self.folder} is not complete: {reason}")

    def check_names(self) -> None:
        """The files must be in the version's folder.

        Raises:
            VersionUnfinished: there are none.
        """
        if not self.listed:
            raise self.unfinished("it has no files")
        start = f"{self.folder}/" if self.folder else ""
        for each in self.listed:
            if not each.path.startswith(start):
                raise ValueError(f"{each.path} is not below {self.folder}")

    def manifest(self, keys: PublicKeys | None) -> Manifest | None:
        """The version's manifest; None if it has none, and needs none.

        Raises:
            ContentRefused: it is invalid, or not signed as it must be.
            VersionUnfinished: files are missing.
        """
        files = self.files
        if MANIFEST not in files:
            if keys is not None:
                raise self.refused(f"it has no {MANIFEST}, which must be signed")
            return None
        data = self.store.read(files[MANIFEST], MOST_BYTES)
        if keys is not None:
            if SIGNATURE not in files:
                raise self.refused(f"it has no {SIGNATURE}, and a key is configured")
            signature = self.store.read(files[SIGNATURE], signing.MOST_BYTES)
            reason = keys.why_wrong(signature, data)
            if reason is not None:
                raise self.refused(f"{SIGNATURE} {reason}")
        try:
            manifest = parse_manifest(data)
        except ValueError as error:
            raise self.refused(f"{MANIFEST} {error}") from error
        if keys is not None and (manifest.model, manifest.version) != (self.model, self.version):
            raise self.refused(
                f"the signed manifest is of version {manifest.version!r} of {manifest.model!r}"
            )
        reason = why_unlike(manifest, {path: each.size for path, each in files.items()})
        if reason is not None:
            raise self.unfinished(reason)
        return manifest

    def is_done(self) -> bool:
        """Whether a file says that the version is complete: one that was written last."""
        done = self.files.get(DONE)
        return done is not None and not any(
            each.written is None or done.written is None or each.written > done.written
            for each in self.listed
        )

    def check_unchanged(self) -> None:
        """Scan the version again.

        Raises:
            VersionUnfinished: it is another one, or is being written.
            ContentRefused: it has files that are refused.
        """
        if not self.folder and len(self.listed) == 1:
            one = self.store.file(self.listed[0].path)
            now = Listing(files=() if one is None else (one,))
        else:
            now = self.store.scan(self.folder)
        if self.folder:
            files = [each for each in now.files if each.path not in self.others]
        else:
            ours = {each.path for each in self.listed}
            files = [each for each in now.files if each.path in ours]
        reason = why_moving(self.listed, files)
        if reason is not None:
            raise self.unfinished(reason)
        if self.folder and now.unfinished:
            raise self.unfinished(f"{now.unfinished[0]} is being written")
        if self.folder and now.refused:
            path, reason = min(now.refused.items())
            raise self.refused(f"{path} {reason}")


def _entries(attempt: _Attempt, manifest: Manifest | None, cache: Cache) -> list[_Wanted]:
    """The files to fetch: those of the manifest, or all."""
    files = attempt.files
    if manifest is not None:
        return [
            _Wanted(
                path=each.path,
                file=replace(files[each.path], size=each.size),
                sha256=each.sha256,
                promised=True,
            )
            for each in manifest.files
        ]
    reason = why_incomplete(files)
    if reason is not None:
        raise attempt.unfinished(reason)
    return [
        _Wanted(
            path=path,
            file=file,
            sha256=file.sha256 or _known(attempt.store.url, file, cache),
            promised=file.sha256 is not None,
        )
        for path, file in files.items()
        if path != DONE
    ]


def _known(url: str, file: File, cache: Cache) -> str | None:
    """The sha256 of a file that was fetched before, unchanged."""
    return cache.digest_of(url, file.path, file.revision) if file.strong else None


class _Told:
    """Counts the bytes of a fetch.

    Args:
        total: bytes that will be transferred, as far as known.
        progress: told both.
    """

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self.total = total
        self._done = 0
        self._progress = progress

    def __call__(self, transferred: int) -> None:
        self._done += transferred
        if self._progress is not None:
            self._progress(self._done, self.total)
