"""Stores that fsspec reads: S3, Google's and Azure's, Hugging Face's, and whatever else it knows.

fsspec and the package of a scheme are imported when a store is first asked. Credentials and options
are those of fsspec's users: the environment, files of the provider, variables ``FSSPEC_*`` and
fsspec's configuration files. No listing is cached.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from errno import EDQUOT, ENOSPC
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol
from urllib.parse import urlsplit, urlunsplit

from penstock.errors import ContentRefused, StoreError, StoreUnavailable, VersionUnfinished
from penstock.repository.manifest import MOST_FILES, File, is_unfinished, why_unsafe
from penstock.store.listing import Listing, Progress, is_hidden

_EXTRA: Final = "'penstock-serving[repository]'"

_PACKAGES: Final[Mapping[str, str]] = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "az": "adlfs",
    "abfs": "adlfs",
    "hdfs": "pyarrow",
    "sftp": "paramiko",
    "oss": "ossfs",
    "http": _EXTRA,
    "https": _EXTRA,
}
"""What pip installs for a scheme, beside fsspec."""

_S3: Final[Mapping[str, Any]] = {
    # An outage is told in seconds: botocore would try five times, and s3fs each of these five.
    "config_kwargs": {"retries": {"total_max_attempts": 1}},
    # Ten parts of 50 MB at once would be in the memory of the process that serves.
    "max_concurrency": 1,
}
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {"s3": _S3, "s3a": _S3}
"""Options that hold where the operator has set none."""

_TAGS: Final = ("ETag", "etag", "md5Hash", "blob_id", "checksum", "content_md5")
_TIMES: Final = (
    "LastModified",
    "last_modified",
    "Last-Modified",
    "updated",
    "mtime",
    "modified",
    "modify",
)
_SERVER_OF_S3: Final = re.compile(
    r"(?P<scheme>s3a?)://(?:(?P<http>https?)://)?(?P<host>[^/@:]+(?P<port>:[0-9]+)?)/(?P<rest>.+)"
)
_QUIET_SECONDS: Final = 60.0
"""Seconds without a byte after which an HTTP server is away."""

_LONGEST_TEXT: Final = 300  # characters of another library's error


class FileSystem(Protocol):
    """What is used of fsspec's file systems."""

    def invalidate_cache(self) -> None:
        """Forget all listings."""

    def find(self, path: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        """List all files below a path, with what is known of each."""

    def info(self, path: str) -> dict[str, Any]:
        """What is known of a file or a folder, with its ``type``."""

    def get_file(self, rpath: str, lpath: str, *, callback: Any) -> None:
        """Transfer a file."""


class RemoteStore:
    """A place in a store, by its URL; see the module.

    Args:
        url: such as ``s3://bucket/folder``.
        options: for fsspec's file system; they win over its configuration.

    Raises:
        StoreError: a package is missing; the text says how to install it. Or the scheme is unknown.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._scheme = url.partition("://")[0]
        self._url = url
        self._shown = shown(url)
        self._options = dict(options or {})
        self._lock = threading.Lock()
        self._place: tuple[FileSystem, str] | None = None
        _check_packages(url)

    def _opened(self) -> tuple[FileSystem, str]:
        """The file system, and this place in it. It is made when it is first asked: it may start a
        thread, and a process that only checks its configuration must still be able to fork.
        """
        with self._lock:
            if self._place is None:
                self._place = _file_system(self._url, self._scheme, self._options)
            return self._place

    @property
    def _fs(self) -> FileSystem:
        return self._opened()[0]

    @property
    def _root(self) -> str:
        return self._opened()[1]

    @property
    def url(self) -> str:
        return self._shown

    def scan(self, folder: str = "") -> Listing:
        root = f"{self._root}/{folder}" if folder else self._root
        with self._translated(folder):
            self._fs.invalidate_cache()
            found = self._fs.find(root, detail=True)
        if len(found) > MOST_FILES:
            raise StoreUnavailable(f"{self.url}: it has more than {MOST_FILES:,} files")
        files: list[File] = []
        refused: dict[str, str] = {}
        unfinished: list[str] = []
        for name, info in found.items():
            if not name.startswith(self._root + "/"):
                if name.rstrip("/") != self._root.rstrip("/"):
                    refused[ascii(name)[1:-1]] = "is not below the repository"
                continue
            path = name[len(self._root) + 1 :]
            if not path or _is_marker(path, info, found):
                continue
            reason = why_unsafe(path)
            if reason is not None:
                refused[ascii(path)[1:-1]] = reason
            elif info.get("type", "file") != "file":
                refused[path] = "is neither a file nor a folder"
            elif is_unfinished(path.rpartition("/")[2]):
                unfinished.append(path)
            elif not any(map(is_hidden, path.split("/"))):
                files.append(_file(path, info))
        return Listing(
            files=tuple(sorted(files, key=lambda each: each.path)),
            refused=refused,
            unfinished=tuple(sorted(unfinished)),
        )

    def file(self, path: str) -> File | None:
        with self._translated(path):
            self._fs.invalidate_cache()
            try:
                about = self._fs.info(f"{self._root}/{path}")
            except FileNotFoundError:
                return None
        return _file(path, about) if about["type"] == "file" else None

    def read(self, file: File, limit: int) -> bytes:
        if file.size is None:
            file = replace(file, size=limit)
        elif file.size > limit:
            raise ContentRefused(f"{self.url}/{file.path} has more than {limit:,} bytes")
        with TemporaryDirectory(prefix="penstock-") as folder:
            to = Path(folder, "file")
            self.copy(file, to, _untold)
            return to.read_bytes()

    def copy(self, file: File, to: Path, progress: Progress) -> None:
        at = f"{self.url}/{file.path}"
        ended: list[Exception] = []
        try:
            with self._translated(file.path):
                told = _callback(file, at, progress, ended)
                self._fs.get_file(f"{self._root}/{file.path}", str(to), callback=told)
        except StoreError:
            if ended:  # whatever the library made of it
                raise ended[0] from None
            raise
        size = to.stat().st_size if to.exists() else 0
        if file.size is not None and size != file.size:
            raise VersionUnfinished(f"{at}: got {size:,} bytes of {file.size:,}")

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """Turn what any library raises into our errors."""
        at = f"{self.url}/{path}" if path else self.url
        try:
            yield
        except StoreError:
            raise
        except FileNotFoundError as error:
            if path:
                raise VersionUnfinished(f"{at} has gone") from error
            raise StoreUnavailable(f"{at}: {_text(error)}") from error
        except OSError as error:
            if error.errno in (ENOSPC, EDQUOT):
                raise
            raise StoreUnavailable(f"{at}: {_text(error)}") from error
        except Exception as error:
            raise StoreUnavailable(f"{at}: {_text(error)}") from error


def shown(url: str) -> str:
    """A URL without the password, query and fragment that it may have."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))


def server_of_s3(url: str) -> tuple[str, dict[str, str]]:
    """The URL and the options of a place in a store that speaks S3, whose server is in the URL.

    That is how Triton's users write it: ``s3://https://host:9000/bucket/folder``, or without
    ``https://`` for plain HTTP. The name of a bucket has no colon.

    Returns:
        The URL without the server, and the options for fsspec; of another URL, itself and none.
    """
    found = _SERVER_OF_S3.fullmatch(url)
    if found is None or not (found["http"] or found["port"]):
        return url, {}
    server = {"endpoint_url": f"{found['http'] or 'http'}://{found['host']}"}
    return f"{found['scheme']}://{found['rest']}", server


def _check_packages(url: str) -> None:
    """Check that what the store needs is installed. The package of the store itself is imported
    when it is asked: it may start threads, as gcsfs does, and a process with threads cannot fork.

    Raises:
        StoreError: a package is missing, or the scheme is unknown.
    """
    schemes = url.partition("://")[0].split("::")  # several, such as simplecache::s3
    try:
        from fsspec import get_filesystem_class
        from fsspec.registry import known_implementations
    except ImportError as error:
        also = [_PACKAGES[each] for each in schemes if each in _PACKAGES]
        how = " ".join(dict.fromkeys((_EXTRA, *also)))
        raise StoreError(f"{shown(url)} needs other packages: pip install {how}") from error
    for scheme in schemes:
        known = known_implementations.get(scheme, {"class": "fsspec"})
        package = known["class"].partition(".")[0]
        try:
            if package == "fsspec":
                get_filesystem_class(scheme)
            elif find_spec(package) is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        except ImportError as error:
            raise _needs_package(url, scheme, ImportError(known.get("err", str(error)))) from error
        except ValueError as error:
            raise StoreError(f"{shown(url)}: {_text(error)}") from error


def _needs_package(url: str, scheme: str, error: ImportError) -> StoreError:
    package = _PACKAGES.get(scheme)
    how = _text(error) if package is None else f"pip install {package}"
    return StoreError(f"{shown(url)} needs another package: {how}")


def _file_system(url: str, scheme: str, options: Mapping[str, Any]) -> tuple[FileSystem, str]:
    from fsspec.config import conf
    from fsspec.core import url_to_fs

    url, server = server_of_s3(url)
    given = {**server, **options}
    if scheme in ("http", "https"):
        given = {"client_kwargs": _http_client(), "simple_links": False, **given}
    for key, value in _DEFAULTS.get(scheme, {}).items():
        if key not in conf.get(scheme, {}):
            given.setdefault(key, value)
    try:
        made, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **given)
    except ImportError as error:  # some of fsspec's own import theirs late
        raise _needs_package(url, scheme, error) from error
    except ValueError as error:
        raise StoreError(f"{shown(url)}: {_text(error)}") from error
    except Exception as error:
        raise StoreUnavailable(f"{shown(url)}: {_text(error)}") from error
    if scheme in ("http", "https"):
        from penstock.store.web import WebFileSystem

        return WebFileSystem(made), url.rstrip("/")
    return made, root.rstrip("/")


def _http_client() -> dict[str, Any]:
    """By itself aiohttp gives up after five minutes, however fast the bytes come."""
    from aiohttp import ClientTimeout

    quiet = _QUIET_SECONDS
    return {"timeout": ClientTimeout(total=None, sock_connect=10.0, sock_read=quiet)}


def _is_marker(path: str, info: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether an entry stands for a folder: stores without folders have empty objects for them."""
    if info.get("type") == "directory" or path.endswith(("/", "_$folder$")):
        return True
    if info.get("size"):
        return False
    below = str(info.get("name", "")) + "/"
    return any(name.startswith(below) for name in found)


def _file(path: str, info: Mapping[str, Any]) -> File:
    size = info.get("size")
    tag = next((str(info[key]) for key in _TAGS if info.get(key)), "")
    time = next((info[key] for key in _TIMES if info.get(key)), "")
    lfs = info.get("lfs")
    digest = getattr(lfs, "sha256", None) or (lfs.get("sha256") if isinstance(lfs, dict) else None)
    return File(
        path=path,
        size=size if type(size) is int else None,
        revision=tag or str(time),
        strong=bool(tag) and not tag.startswith("W/"),
        written=_seconds(time),
        sha256=digest if isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) else None,
    )


def _seconds(time: object) -> float | None:
    """A store's time in seconds since 1970; None if it has another form."""
    if isinstance(time, int | float):
        return float(time)
    try:
        if isinstance(time, str):
            rfc = time.endswith("GMT")  # as HTTP writes it
            time = parsedate_to_datetime(time) if rfc else datetime.fromisoformat(time)
        return time.timestamp() if isinstance(time, datetime) else None
    except ValueError:
        return None


def _untold(_transferred: int) -> None:
    """No progress."""


def _callback(file: File, at: str, progress: Progress, ended: list[Exception]) -> Any:
    """The callback for one transfer: tells the progress, and stops what has no end.

    Args:
        file: as listed.
        at: its place, for messages.
        progress: told the bytes.
        ended: gets what ended the transfer.
    """
    from fsspec.callbacks import Callback

    class _Bytes(Callback):  # type: ignore[misc]
        def set_size(self, size: int | None) -> None:
            self.check(size or 0)

        def relative_update(self, inc: int = 1) -> None:
            self.value += inc
            self.check(self.value)
            try:
                progress(inc)
            except Exception as error:
                ended.append(error)
                raise

        def check(self, size: int) -> None:
            if file.size is not None and size > file.size:
                ended.append(VersionUnfinished(f"{at} has more than {file.size:,} bytes"))
                raise ended[-1]

        def absolute_update(self, value: int) -> None:
            self.relative_update(value - self.value)

    return _Bytes()


def _text(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."
