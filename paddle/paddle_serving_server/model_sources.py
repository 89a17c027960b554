"""Where the monitor gets models from: a done file, whose change says that there is a new model.

``general`` and the types of Hadoop run the programs that the original ran, without a shell. The
others read stores as model repositories do, with what ``penstock.store`` promises: no listing is
cached, digests in a manifest are compared, and only new contents are transferred.
"""

import hashlib
import logging
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

from paddle_serving_server.archives import remove
from penstock.errors import StoreError
from penstock.store.cache import Cache
from penstock.store.source import Source as Repository

_NO_FILE: Final = "No such file or directory"  # as Hadoop's programs say
_MODEL: Final = "model"  # its name in the cache, which has no other
_NOT_SERVED: Final = 8  # wget's exit status after a status such as 404


_log: Final = logging.getLogger("paddle_serving_server.monitor")


class Failed(Exception):
    """A source cannot be read now. The text says why."""


class Source(Protocol):
    """A place with models."""

    def stamp(self, done_file: str) -> str | None:
        """What changes when the done file is written again; None if there is none.

        Raises:
            Failed: the source does not answer.
        """

    def fetched(self, model: str, work: Path, most_bytes: int) -> AbstractContextManager[Path]:
        """A context with the path of the model, a file or a folder, until it is left.

        Args:
            model: its name.
            work: a folder for the source, which stays.
            most_bytes: most bytes of the model, as far as they are known before.

        Raises:
            Failed: it cannot be fetched.
        """


class General:
    """What ``wget`` reads: HTTP and FTP, with its own settings, such as ``.wgetrc`` and ``.netrc``.

    Args:
        host: a URL; of HTTP, if it has no scheme.
        path: the folder there.
        work: a folder for the done file.
        packed: whether models are archives, not folders.
    """

    def __init__(self, host: str, path: str, work: Path, *, packed: bool) -> None:
        url = host if "://" in host else f"http://{host}"
        self._url = "/".join(filter(None, (url.rstrip("/"), quote(path.strip("/")))))
        self._work = work
        self._packed = packed

    def stamp(self, done_file: str) -> str | None:
        began = time.time()
        local = self._work / Path(done_file).name
        if self._wget("-N", "-P", self._work, "--", self._at(done_file)) == _NOT_SERVED:
            return None
        content = hashlib.sha256(local.read_bytes()).hexdigest()
        changed = local.stat().st_mtime
        # It has the server's time, or if the server tells none, that of its download.
        return content if changed >= began else f"{changed} {content}"

    @contextmanager
    def fetched(self, model: str, work: Path, most_bytes: int) -> Iterator[Path]:
        to, url = work / Path(model).name, self._at(model)
        remove(to)
        if self._packed:
            status = self._wget("-O", to, "--", url)
        else:
            depth = len(urlsplit(url).path.strip("/").split("/"))
            folder = ("-r", "-l", "inf", "-np", "-nH", f"--cut-dirs={depth}")
            others = ("-e", "robots=off", "-R", "index.html*")
            status = self._wget(*folder, *others, "-P", to, "--", f"{url}/")
        if status != 0 or not to.exists():
            raise Failed(f"{url} cannot be fetched: the server does not have all of it")
        yield to

    def _at(self, name: str) -> str:
        return f"{self._url}/{quote(name.strip('/'))}"

    def _wget(self, *arguments: str | Path) -> int:
        """Run wget; returns 0, or 8 if the server has answered with an error."""
        done = _run("wget", "-nv", "--tries=3", "--timeout=60", *arguments)
        if done.returncode not in (0, _NOT_SERVED):
            raise Failed(f"wget: {_last_line(done)}")
        return done.returncode


class Hadoop:
    """HDFS or AFS by a Hadoop client.

    Args:
        program: the path of ``hadoop``.
        path: the folder there.
        name: of the file system; empty: as the client is configured.
        ugi: user and password; empty: as the client is configured.
        has_stat: whether the client has ``-stat``; a listing tells the time only to the minute.
    """

    def __init__(self, program: str, path: str, name: str, ugi: str, *, has_stat: bool) -> None:
        options = {"fs.default.name": name, "hadoop.job.ugi": ugi}
        given = (("-D", f"{key}={value}") for key, value in options.items() if value)
        self._command = [program, "fs", *(each for pair in given for each in pair)]
        self._path = path.rstrip("/")
        self._look = ("-stat", "%Y") if has_stat else ("-ls",)

    def stamp(self, done_file: str) -> str | None:
        done = _run(*self._command, *self._look, f"{self._path}/{done_file}")
        if done.returncode == 0:
            return done.stdout.strip().splitlines()[-1]
        if _NO_FILE in done.stderr:
            return None
        raise Failed(f"{self._command[0]}: {_last_line(done)}")

    @contextmanager
    def fetched(self, model: str, work: Path, most_bytes: int) -> Iterator[Path]:
        to = work / Path(model).name
        remove(to)
        done = _run(*self._command, "-get", f"{self._path}/{model}", str(to))
        if done.returncode != 0:
            raise Failed(f"{self._command[0]}: {_last_line(done)}")
        yield to


class Stored:
    """A folder of this machine, or a place that fsspec reads.

    Args:
        place: a path or a URL.
        options: for fsspec's file system.
        keeps: whether a connection is kept; FTP servers end idle ones.
        hint: what an error of the store may need further.
    """

    def __init__(
        self,
        place: str,
        options: Mapping[str, Any] | None = None,
        *,
        keeps: bool = True,
        hint: str = "",
    ) -> None:
        self._place = place
        self._options = options
        self._keeps = keeps
        self._hint = hint
        self._repository: Repository | None = None

    def stamp(self, done_file: str) -> str | None:
        if not self._keeps:
            self._repository = None
        with self._failing():
            found = self._opened().file_at(done_file)
        return None if found is None else f"{found.revision} {found.size}"

    @contextmanager
    def fetched(self, model: str, work: Path, most_bytes: int) -> Iterator[Path]:
        with self._failing():
            repository = self._opened()
            files = repository.files_at(model)
            size = sum(each.size or 0 for each in files)
            if size > most_bytes:
                raise Failed(f"{model} has {size:,} bytes, of at most {most_bytes:,} (--max_bytes)")
            # With room for the one before, so that what both have is not transferred again.
            limit = None if any(each.size is None for each in files) else 2 * size
            cache = Cache(work / "cache", limit)
            found = repository.fetch(_MODEL, "1", files, cache, folder=model)
        _log.debug("transferred %s of %s bytes.", f"{found.transferred:,}", f"{size:,}")
        try:
            is_file = [each.path for each in files] == [model]
            yield found.path / Path(model).name if is_file else found.path
        finally:
            found.release()

    def _opened(self) -> Repository:
        if self._repository is None:
            # The done file says that all is there.
            self._repository = Repository(self._place, options=self._options, settle=0.0)
        return self._repository

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self._repository = None
            raise Failed(f"{error}{self._hint}") from error


def _run(*command: str | Path) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(  # noqa: S603 - programs and arguments of the operator
            [*map(str, command)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise Failed(f"{command[0]} cannot be run: {error.strerror}") from error


def _last_line(done: "subprocess.CompletedProcess[str]") -> str:
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1]
