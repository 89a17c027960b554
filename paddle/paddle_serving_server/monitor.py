"""``python -m paddle_serving_server.monitor``: gets new models for a server that is running.

It looks at a done file in a remote place. When that changes, also at the first look, it fetches the
model, puts its files in the places of those in the server's folder, and touches the time file there
last: the server then takes the model anew (hot loading).

A failure is logged, and tried again at the next look. It changes nothing in the server's folder:
the files change once all are there, each by a rename. Files there that the monitor has not put
there stay; those that it has, and that the new model does not have, are removed.
"""

import argparse
import errno
import fcntl
import filecmp
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from paddle_serving_server.archives import BadArchive, checked, is_archive, remove, unpack
from paddle_serving_server.model_sources import Failed, General, Hadoop, Source, Stored
from penstock.repository.layout import TIME_FILES
from penstock_paddle import refuse_name

_log: Final = logging.getLogger("paddle_serving_server.monitor")

_INSTEAD: Final = "run python -m paddle_serving_server.monitor"
_MISSING: Final = dict.fromkeys(
    ("AFSMonitor", "FTPMonitor", "GeneralMonitor", "HadoopMonitor", "HDFSMonitor", "Monitor"),
    _INSTEAD,
)

_MOST_BYTES: Final = 32 << 30
_STATE: Final = "placed.json"
_NO_LIBHDFS: Final = (
    "; without --hadoop_bin HDFS is read by pyarrow, which needs Hadoop's libhdfs (and Java)"
)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)


class Folder:
    """The folder that a server reads.

    Args:
        path: of the folder; made with the first model.
        work: a folder on the same disk, for what is being made ready.
        time_file: the name of the file in it that is touched at the end.
    """

    def __init__(self, path: Path, work: Path, time_file: str) -> None:
        self._path = path
        self._work = work
        self._time_file = time_file

    def take(self, model: Path, most_bytes: int) -> None:
        """Put the files of a model, a folder or a file, in their places.

        Raises:
            Failed: it has something that is no file, no files, or too many bytes.
            OSError: a file cannot be written.
        """
        files = _files_of(model, most_bytes)
        for name in {*TIME_FILES, self._time_file}:
            files.pop(name, None)  # a copy of it would say that all is there
        if not files:
            raise Failed(f"{model.name} has no files")
        ready = self._work / "ready"
        remove(ready)
        for name, file in files.items():
            if not _is_equal(file, self._path / name):
                (ready / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, ready / name)
        with _undisturbed():
            before = self._placed()
            self._remember(before | files.keys())  # if this process is killed in between
            self._path.mkdir(parents=True, exist_ok=True)
            for name in files:
                if (ready / name).exists():
                    (self._path / name).parent.mkdir(parents=True, exist_ok=True)
                    _move(ready / name, self._path / name)
            for name in before - files.keys():
                with suppress(FileNotFoundError):
                    (self._path / name).unlink()
            self._remember({*files})
            (self._path / self._time_file).touch()

    def _placed(self) -> set[str]:
        """The files that were put there before."""
        with suppress(FileNotFoundError, ValueError):
            found = json.loads((self._work / _STATE).read_text(encoding="utf-8"))
            return {*map(str, map(checked, found))}
        return set()

    def _remember(self, names: set[str]) -> None:
        new = self._work / f"{_STATE}.new"
        new.write_text(json.dumps(sorted(names)), encoding="utf-8")
        new.replace(self._work / _STATE)


class FolderMonitor:
    """Looks at a source, and updates a folder.

    Args:
        source: has models.
        folder: of a server.
        work: a folder for files.
        model: the name of the model in the source.
        done_file: the name of the done file there.
        unpacked: the folder in the archive that the model is; None if it is none.
        most_bytes: most bytes of a model.
    """

    def __init__(
        self,
        source: Source,
        folder: Folder,
        work: Path,
        model: str,
        done_file: str,
        unpacked: str | None,
        most_bytes: int,
    ) -> None:
        self._source = source
        self._folder = folder
        self._work = work
        self._model = model
        self._done_file = done_file
        self._unpacked = unpacked
        self._most_bytes = most_bytes
        self._seen: str | None = None
        self._told = ""

    def look(self) -> None:
        """Look once. Failures are logged."""
        try:
            stamp = self._source.stamp(self._done_file)
            if stamp is None:
                self._tell(logging.INFO, f"remote({self._model}) has no donefile.")
            elif stamp == self._seen:
                _log.debug("donefile(%s) has not changed.", self._done_file)
            else:
                _log.info("donefile(%s) changed.", self._done_file)
                self._update(stamp)
                self._told = ""
        except (Failed, BadArchive, OSError) as error:
            self._tell(logging.ERROR, f"update failed, and is tried again: {error}")
        except Exception:  # noqa: BLE001 - our bug, or a library's: later looks may succeed
            _log.exception("update failed, and is tried again")

    def _update(self, stamp: str) -> None:
        with self._source.fetched(self._model, self._work, self._most_bytes) as found:
            if self._source.stamp(self._done_file) != stamp:
                raise Failed(f"{self._done_file} has changed while {self._model} was fetched")
            _log.info("pull remote model(%s).", self._model)
            model = self._unpack(found)
            self._folder.take(model, self._most_bytes)
        self._seen = stamp
        _log.info("update local model, and its timestamp.")
        for each in ("unpacked", "ready"):
            remove(self._work / each)

    def _unpack(self, found: Path) -> Path:
        if self._unpacked is None:
            if found.is_file() and is_archive(found):
                raise Failed(f"{found.name} is an archive: give --unpacked_filename, its folder")
            return found
        if not found.is_file() or not is_archive(found):
            raise Failed(f"{found.name} is no archive of tar or zip, as --unpacked_filename says")
        unpacked = self._work / "unpacked"
        remove(unpacked)
        unpack(found, unpacked, self._most_bytes)
        _log.info("unpack remote file(%s).", found.name)
        model = unpacked / checked(self._unpacked)
        if not model.exists():
            there = ", ".join(sorted(each.name for each in unpacked.iterdir())) or "nothing"
            raise Failed(f"{found.name} has no {self._unpacked!r}, but {there}")
        return model

    def _tell(self, level: int, text: str) -> None:
        """Log a text, and again only if it changes."""
        _log.log(logging.DEBUG if text == self._told else level, "%s", text)
        self._told = text


def _files_of(model: Path, most_bytes: int) -> dict[str, Path]:
    """The files of a model, by path.

    Raises:
        Failed: it has something that is no file, or too many bytes.
    """
    if model.is_file():
        found = {model.name: model}
    else:
        found = {str(each.relative_to(model)): each for each in sorted(model.rglob("*"))}
    files, size = {}, 0
    for name, path in found.items():
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Failed(f"{name!r} is neither a file nor a folder")
        if path.is_file():
            files[name] = path
            size += path.stat().st_size
    if size > most_bytes:
        raise Failed(f"{model.name} has {size:,} bytes, of at most {most_bytes:,} (--max_bytes)")
    return files


def _is_equal(file: Path, there: Path) -> bool:
    try:
        return not there.is_symlink() and filecmp.cmp(file, there, shallow=False)
    except OSError:
        return False


def _move(file: Path, to: Path) -> None:
    """Rename a file, also to another disk, without a moment at which ``to`` is incomplete."""
    try:
        file.replace(to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = to.with_name(f".{to.name}.monitor")
        shutil.copyfile(file, beside)
        beside.replace(to)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A context in which signals to stop wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def flags() -> argparse.ArgumentParser:
    """The flags, with those of the original's first releases."""
    parser = argparse.ArgumentParser(
        prog="python -m paddle_serving_server.monitor",
        description="Get new models from a remote place, for a server that is running.",
    )
    add = parser.add_argument
    kinds = ("general", "ftp", "hdfs", "afs", "local", "fsspec")
    add("--type", choices=kinds, default="general", help="What the remote place is.")
    add("--remote_path", required=True, help="The folder there; of fsspec a URL.")
    add("--remote_model_name", required=True, help="The model's folder or archive there.")
    add("--remote_donefile_name", required=True, help="The file whose change starts an update.")
    add("--local_path", required=True, help="A local folder.")
    add("--local_model_name", required=True, help="The folder in it that the server reads.")
    add("--local_timestamp_file", default=TIME_FILES[0], help="The file there that is touched.")
    add("--local_tmp_path", default="_serving_monitor_tmp", help="A folder for work.")
    add("--unpacked_filename", help="The model is an archive; the folder in it.")
    add("--interval", type=_seconds, default=10, help="Seconds between looks.")
    add("--debug", action="store_true", help="Log more.")
    add("--max_bytes", type=int, default=_MOST_BYTES, help="Most bytes of a model, unpacked.")
    add("--general_host", help="general: the host, or its URL.")
    add("--ftp_host", help="ftp: the host.")
    add("--ftp_port", type=int, default=21, help="ftp: the port.")
    add("--ftp_username", default="", help="ftp: the user; without one anonymous.")
    add("--ftp_password", default="", help="ftp: the password.")
    add("--hadoop_bin", "--hdfs_bin", "--hadoop_bin_path", help="hdfs, afs: the program hadoop.")
    add("--fs_name", "--hadoop_host", default="", help="hdfs, afs: the file system's name.")
    add("--fs_ugi", "--hadoop_ugi", default="", help="hdfs, afs: user and password, with a comma.")
    return parser


def _seconds(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return int(text)


def source_of(given: argparse.Namespace, work: Path) -> Source:
    """The source that the flags describe.

    Raises:
        Failed: a flag is missing.
    """

    def needed(flag: str) -> str:
        value: str | None = getattr(given, flag)
        if not value:
            raise Failed(f"--type {given.type} needs --{flag}")
        return value

    path = given.remote_path
    match given.type:
        case "general":
            packed = given.unpacked_filename is not None
            return General(needed("general_host"), path, work, packed=packed)
        case "ftp":
            address = f"ftp://{needed('ftp_host')}:{given.ftp_port}/{path.strip('/')}"
            login = {"username": given.ftp_username, "password": given.ftp_password}
            return Stored(address, login, keeps=False)
        case "afs":
            return Hadoop(needed("hadoop_bin"), path, given.fs_name, given.fs_ugi, has_stat=False)
        case "hdfs" if given.hadoop_bin:
            return Hadoop(given.hadoop_bin, path, given.fs_name, given.fs_ugi, has_stat=True)
        case "hdfs":
            name = given.fs_name or "hdfs://default"
            user = {"user": given.fs_ugi.partition(",")[0]} if given.fs_ugi else {}
            return Stored(f"{name.rstrip('/')}/{path.strip('/')}", user, hint=_NO_LIBHDFS)
        case _:
            return Stored(path)


def main(arguments: Sequence[str]) -> int:
    """Run the command line until SIGTERM or SIGINT. Returns the exit status."""
    given = flags().parse_args(arguments)
    logging.basicConfig(
        format="%(asctime)s %(levelname)-8s [%(filename)s:%(lineno)d] %(message)s",
        datefmt="%Y-%m-%d %H:%M",
    )
    _log.setLevel(logging.DEBUG if given.debug else logging.INFO)
    stop = _Stop()
    sys.unraisablehook = stop.tell_unraisable
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    local = Path(given.local_path)
    work = local / given.local_tmp_path
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(work, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        source = source_of(given, work)
    except BlockingIOError:
        _log.error("another monitor works in %s: give each its own --local_tmp_path", work)
        return 1
    except (OSError, Failed) as error:
        _log.error("%s", error)
        return 1
    folder = Folder(local / given.local_model_name, work, given.local_timestamp_file)
    monitor = FolderMonitor(
        source,
        folder,
        work,
        given.remote_model_name,
        given.remote_donefile_name,
        given.unpacked_filename,
        given.max_bytes,
    )
    while True:
        monitor.look()
        if stop.asked:
            return 0
        _log.debug("sleep %ss.", given.interval)
        time.sleep(given.interval)


class _Stop:
    """Ends the process at a signal. What it raises may be lost, such as within a destructor of a
    library: then the next step ends it.
    """

    asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        raise SystemExit(0)

    def tell_unraisable(self, found: "sys.UnraisableHookArgs") -> None:
        """``sys.unraisablehook``: that it was lost is no fault, so it is not logged."""
        if not (self.asked and isinstance(found.exc_value, SystemExit)):
            sys.__unraisablehook__(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
