"""The files of one version of a model: their manifest, their names, and whether they are complete.

A version may have a file ``penstock-manifest.json``, which lists its files with sizes and sha256
digests, and a detached signature of that file. With a manifest it is known which files a version
has, and whether one has changed; without one a version is taken when it is at rest.

A name that could leave the repository, or that a log does not show as it is, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import orjson

MANIFEST: Final = "penstock-manifest.json"
SIGNATURE: Final = MANIFEST + ".sig"
DONE: Final = "_SUCCESS"
"""A file that says that all others are there, as Hadoop and Spark write it."""

FORMAT: Final = 1
"""The version of the manifest's format."""

MOST_BYTES: Final = 16 * 2**20
"""Largest manifest that is read."""
MOST_FILES: Final = 100_000
"""Most files of a repository, or of one manifest."""

_LONGEST: Final = 255  # bytes of one part of a path, as on Linux
_MOST_PARTS: Final = 32

_UNFINISHED: Final = re.compile(
    r"""
    .*\.(part|partial|tmp|temp|incomplete|filepart|crdownload|download|aria2)
    | .*\._COPYING_          # HDFS
    | \..+\.[A-Za-z0-9]{6}   # rsync
    | .*\.sb-[0-9a-f]{8}-\w{6}  # Finder
    """,
    re.VERBOSE | re.IGNORECASE,
).fullmatch

_SHARD: Final = re.compile(r"(?P<stem>.+?)-(?P<index>\d{5})-of-(?P<count>\d{5})(?P<suffix>.*)")
"""One of several files of the same weights, as TensorFlow and Hugging Face write them."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}").fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a repository, as its store lists it.

    Attributes:
        path: relative to the repository, parts separated by ``/``.
        size: in bytes; None if the store does not say.
        revision: changes if the content does: an entity tag, or times and sizes.
        strong: whether two contents of this path never have one revision, so that a copy with the
            same revision need not be transferred again.
        sha256: of the content, if the store itself knows it.
        written: when, in seconds since 1970, by the store's clock; None if it does not say.
    """

    path: str
    size: int | None
    revision: str
    strong: bool = field(default=False, compare=False)
    sha256: str | None = None
    written: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of a version.

    Attributes:
        path: relative to the version's folder.
        size: in bytes.
        sha256: of the content, as 64 hexadecimal digits.
    """

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of a manifest.

    Attributes:
        model: the model's name; empty if it does not say.
        version: of the model.
        files: at least one; no path twice.
    """

    model: str
    version: str
    files: tuple[Entry, ...]

    @property
    def digest(self) -> str:
        """The digest of the content: equal for equal files, whatever the version."""
        return content_digest((each.path, each.sha256) for each in self.files)


def content_digest(files: Iterable[tuple[str, str]]) -> str:
    """The digest of some files, from each one's path and sha256."""
    lines = sorted(f"{digest} {path}\n" for path, digest in files)
    return sha256("".join(lines).encode()).hexdigest()


def fingerprint(files: Iterable[File]) -> str:
    """A digest of how a store lists some files: another one if a content has changed.

    It is known before anything is transferred, so that a content that was refused is not
    transferred again and again.
    """
    lines = sorted(f"{each.path}\0{each.size}\0{each.revision}\n" for each in files)
    return sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def why_unsafe(path: str) -> str | None:
    """Why a relative path is refused; None if it is not."""
    if not path:
        return "has no name"
    if path.startswith("/"):
        return "is absolute"
    try:
        parts = path.encode().split(b"/")
    except UnicodeEncodeError:
        return "has a name that is no UTF-8"
    if b".." in parts:
        return "has .. in its name, and could leave the repository"
    if b"" in parts or b"." in parts:
        return "has an empty part in its name"
    if "\\" in path:
        return "has a backslash in its name"
    if any(ord(each) < 32 or 127 <= ord(each) < 160 for each in path):
        return "has a control character in its name"
    if len(parts) > _MOST_PARTS or max(map(len, parts)) > _LONGEST:
        return "has too long a name"
    return None


def is_unfinished(name: str) -> bool:
    """Whether a file's name is one that programs give to a file while they write it.

    Args:
        name: the last part of the path.
    """
    return _UNFINISHED(name) is not None


def why_incomplete(paths: Iterable[str]) -> str | None:
    """Why these files of a version cannot be all: some of a numbered series are missing."""
    series: dict[tuple[str, str, int], set[int]] = {}
    for path in paths:
        found = _SHARD.fullmatch(path)
        if found is not None:
            key = (found["stem"], found["suffix"], int(found["count"]))
            series.setdefault(key, set()).add(int(found["index"]))
    for (stem, suffix, count), indexes in sorted(series.items()):
        if len(indexes) != count:
            return f"has {len(indexes)} of {count} files {stem}-*-of-{count:05}{suffix}"
    return None


def why_moving(before: Iterable[File], after: Iterable[File]) -> str | None:
    """What has changed between two scans of a version; None if nothing has."""
    old = {each.path: each for each in before}
    new = {each.path: each for each in after}
    for path in sorted(old.keys() | new.keys()):
        if path not in new:
            return f"{path} has gone"
        if path not in old:
            return f"{path} is new"
        if old[path] != new[path]:
            return f"{path} has changed"
    return None


def why_unlike(manifest: Manifest, sizes: Mapping[str, int | None]) -> str | None:
    """What of a manifest the listed files lack; None if all files are there with their sizes.

    Further files are allowed: they are not fetched.

    Args:
        manifest: of the version.
        sizes: by path below the version's folder; None where the store does not say.
    """
    for each in manifest.files:
        if each.path not in sizes:
            return f"{each.path} is missing"
        size = sizes[each.path]
        if size is not None and size != each.size:
            return f"{each.path} has {size:,} bytes of {each.size:,}"
    return None


def format_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest; the same files in any order give the same bytes."""
    files = [
        {"path": each.path, "size": each.size, "sha256": each.sha256}
        for each in sorted(manifest.files, key=lambda each: each.path)
    ]
    document = {
        "format": FORMAT,
        "model": manifest.model,
        "version": manifest.version,
        "files": files,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def parse_manifest(data: bytes) -> Manifest:
    """Decode a manifest.

    Raises:
        ValueError: it is none; the text says why.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        raise ValueError(f"has the format {found!r}; this release reads format {FORMAT}")
    listed = document.get("files")
    if not isinstance(listed, list) or not 0 < len(listed) <= MOST_FILES:
        raise ValueError("lists no files" if not listed else "has no valid list of files")
    entries = tuple(map(_entry, listed))
    _check_paths([each.path for each in entries])
    names = [document.get(key, "") for key in ("model", "version")]
    if not all(isinstance(each, str) for each in names):
        raise ValueError("has a model or a version that is no text")
    return Manifest(model=names[0], version=names[1], files=entries)


def _entry(listed: Any) -> Entry:
    if not isinstance(listed, dict):
        raise ValueError("has no valid list of files")
    path, size, digest = (listed.get(key) for key in ("path", "size", "sha256"))
    if not isinstance(path, str):
        raise ValueError("lists a file without a path")
    reason = why_unsafe(path)
    if reason is not None:
        raise ValueError(f"lists {path!r}, which {reason}")
    if type(size) is not int or size < 0:
        raise ValueError(f"has no valid size of {path!r}")
    if not isinstance(digest, str) or not _SHA256(digest):
        raise ValueError(f"has no valid sha256 of {path!r}")
    return Entry(path=path, size=size, sha256=digest)


def _check_paths(paths: Sequence[str]) -> None:
    known = set(paths)
    if len(known) != len(paths):
        raise ValueError("lists a file twice")
    for path in paths:
        if any(path[:at] in known for at, each in enumerate(path) if each == "/"):
            raise ValueError(f"lists {path!r} below another file")
        if path in (MANIFEST, SIGNATURE):
            raise ValueError(f"lists {path!r}")
