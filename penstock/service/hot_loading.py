"""Hot loading: a model is taken anew from its folder when a file in it is touched.

Whoever changes a model in place touches its time file, ``fluid_time_file`` or
``fluid_time_stamp``, last, as the monitor of Paddle Serving does. The service then copies the
folder aside, and the copy becomes a version of each graph with the model: it is opened, warmed up
and swapped in while the one before serves (``versions.py``). If any of this fails, that one goes
on.

A service opens only copies, the first models included. So a folder may change at any time: a worker
or an engine that starts later opens what the others have. A folder whose files change between two
looks, or while it is copied, is looked at again until it is at rest.

The copies are in a folder of the service, below ``TMPDIR`` or ``/var/tmp``, which is removed at its
end; that of a service that was killed is removed when another one starts.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from penstock.errors import StartupError, StoreError
from penstock.instrument import Instrument, ServiceInfo
from penstock.observe.swaps import Swaps
from penstock.repository.layout import TIME_FILES
from penstock.service.role import COPIES, spawned_role
from penstock.service.versions import ALLOWED

_log = logging.getLogger(__name__)

_LOOK: Final = 1.0  # seconds between looks at the time files
_RETRY: Final = 10.0  # seconds after a folder could not be copied
_BUSY: Final = 2.0  # seconds after another version was being made ready
_RESTLESS: Final = 60.0  # seconds of changes after which that is logged
_END: Final = 2.0  # seconds for the thread to end
_CHUNK: Final = 4 << 20

_PREFIX: Final = "penstock-models-"
_TOO_YOUNG: Final = 60.0
"""Seconds in which a folder of copies may not be locked yet by the service that has made it."""

_NOT_TAKEN: Final = (
    "model %s: what is in %s is not served, but what was before: %s; it is tried again when %s is"
    " touched"
)

Stamp: TypeAlias = dict[str, str]
"""The times of the time files that a folder has, by name."""

Listing: TypeAlias = Mapping[str, tuple[int, int, int]]
"""Size, time and inode of each file, by path; without time files."""


class Changes:
    """Decides when a folder is taken. Pure.

    Args:
        seen: the times with which it was taken last.
    """

    def __init__(self, seen: Stamp) -> None:
        self._seen = dict(seen)
        self._last: Listing | None = None

    def are_due(self, stamp: Stamp) -> bool:
        """Whether a time file was touched, or is new, since the folder was taken."""
        return any(self._seen.get(name) != when for name, when in stamp.items())

    def are_complete(self, listing: Listing) -> bool:
        """Whether no file has changed since the last call."""
        same = listing == self._last
        self._last = listing
        return same

    def taken(self, stamp: Stamp) -> None:
        """The folder was taken with these times, or is not tried again with them."""
        self._seen |= stamp
        self._last = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The copies with which a service starts. Plain data.

    Attributes:
        room: the folder for copies.
        paths: the copy of each model, by its path as it was given.
        seen: the times of each model's time files, from before it was copied, by the same.
        folders: the absolute path of each model's folder, by the same.
    """

    room: str
    paths: dict[str, str] = field(default_factory=dict)
    seen: dict[str, Stamp] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)

    def in_own_words(self, text: str) -> str:
        """A text with the models' paths as they were given."""
        for path, copy in self.paths.items():
            text = text.replace(copy, path)
        return text


@contextmanager
def copies_of(models: Iterable[str]) -> Iterator[Copies]:
    """Copy the folders of models, for a service in this process. The copies are there until the
    context is left. Models that are files are left out; so is one that cannot be copied, with a
    warning.

    Args:
        models: the paths.
    """
    given = os.environ.get(COPIES)
    if given is not None and spawned_role() is not None:
        yield Copies(**json.loads(given))
        return
    # /tmp is often memory.
    parent = Path(os.environ.get("TMPDIR") or "/var/tmp")  # noqa: S108 - mkdtemp makes a private one
    remove_abandoned(parent)
    room = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    lock = os.open(room, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        copies = Copies(room=str(room))
        for model in dict.fromkeys(models):
            folder = Path(model).absolute()
            if not folder.is_dir():
                continue
            seen = stamp_of(folder)
            to = room / "1" / str(len(copies.paths)) / folder.name
            try:
                copy_files(folder, listing_of(folder), to)
            except OSError as error:
                shutil.rmtree(to, ignore_errors=True)
                _log.warning("%s is not loaded anew while it is served: %s", model, error)
                continue
            copies.paths[model] = str(to)
            copies.seen[model] = seen
            copies.folders[model] = str(folder)
        os.environ[COPIES] = json.dumps(asdict(copies))
        yield copies
    finally:
        os.environ.pop(COPIES, None)
        shutil.rmtree(room, ignore_errors=True)
        os.close(lock)


def remove_abandoned(parent: Path) -> None:
    """Remove the copies of this user's services that were killed."""
    with suppress(OSError):
        for room in [*parent.glob(_PREFIX + "*")]:
            with suppress(OSError):
                found = room.lstat()
                young = time.time() - found.st_mtime < _TOO_YOUNG
                if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or young:
                    continue
                descriptor = os.open(room, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(room, ignore_errors=True)
                finally:
                    os.close(descriptor)


def stamp_of(folder: Path) -> Stamp:
    """The times of the time files in a folder."""
    found = {}
    for name in TIME_FILES:
        with suppress(FileNotFoundError, NotADirectoryError):
            found[name] = str((folder / name).stat().st_mtime_ns)
    return found


def listing_of(folder: Path) -> Listing:
    """The files in a folder and below; links are followed.

    Raises:
        OSError: it cannot be read, or has something that is no file.
    """
    found = {}
    for path, _, names in os.walk(folder, followlinks=True, onerror=_raise):
        for name in names:
            each = os.path.join(path, name)
            about = os.stat(each)
            if not stat.S_ISREG(about.st_mode):
                raise OSError(f"{each} is no file")
            relative = os.path.relpath(each, folder)
            if relative not in TIME_FILES:
                found[relative] = (about.st_size, about.st_mtime_ns, about.st_ino)
    return found


def _raise(error: OSError) -> None:
    raise error


def copy_files(folder: Path, files: Listing, to: Path, stop: threading.Event | None = None) -> None:
    """Copy files of a folder.

    Args:
        folder: has them.
        files: which.
        to: the new folder.
        stop: ends the copying early.

    Raises:
        OSError: one cannot be copied, or there is no room for all.
    """
    to.mkdir(parents=True)
    needed = sum(size for size, *_ in files.values())
    free = shutil.disk_usage(to).free
    if needed > free:
        raise OSError(
            f"a copy needs {needed:,} bytes, and {to.parents[2]} has {free:,}: set TMPDIR to"
            " another folder"
        )
    for name in files:
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("rb") as source, target.open("wb") as copy:
            while piece := source.read(_CHUNK):
                if stop is not None and stop.is_set():
                    raise OSError("the service ends")
                copy.write(piece)


class _Model:
    """One model's folder, as the thread knows it.

    Attributes:
        path: as it was given.
        folder: where it is.
        graphs: the names of the graphs with it.
        changes: decides when it is taken.
        due_since: when a change was first seen that was not taken yet.
        not_before: when it is looked at again after a failure; monotonic seconds.
        told: the failure that was logged last.
        began: when its copy was begun; monotonic seconds.
    """

    def __init__(self, path: str, folder: str, graphs: Sequence[str], seen: Stamp) -> None:
        self.path = path
        self.folder = Path(folder)
        self.graphs = graphs
        self.changes = Changes(seen)
        self.due_since: float | None = None
        self.not_before = 0.0
        self.told = ""
        self.began = 0.0

    def tell(self, text: str) -> None:
        """Log why it was not taken, once."""
        if text != self.told:
            _log.error("model %s: %s; the one before is served", self.path, text)
        self.told = text


class HotLoading(Instrument):
    """Takes changed models in the first engine of a service; see the module.

    Args:
        copies: with which the service starts.
        models: for each graph the paths of its models, in the service's own text.
    """

    def __init__(self, copies: Copies, models: Mapping[str, Sequence[str]]) -> None:
        self._copies = copies
        self._models = models
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._swapping: Future[None] | None = None
        self._last = 0
        self._made: set[Path] = {Path(copy).parent for copy in copies.paths.values()}
        self._engine: Any = None
        self._loop: asyncio.AbstractEventLoop

    def engine_started(self, service: ServiceInfo, now: float) -> None:
        if not service.is_first:
            return
        self._engine, self._loop = service.engine, asyncio.get_running_loop()
        watched = [self._model(path) for path in self._copies.paths]
        self._thread = threading.Thread(
            target=self._run, args=(watched,), name="hot loading", daemon=True
        )
        self._thread.start()

    async def engine_ended(self) -> None:
        self._closing.set()
        if self._swapping is not None:
            self._swapping.cancel()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _END)

    def _model(self, path: str) -> _Model:
        graphs = [name for name, models in self._models.items() if path in models]
        seen = dict(self._copies.seen[path])
        for name in graphs:  # this engine may be a successor of one that has taken it anew
            seen |= self._current(name).get("seen", {}).get(path, {})
        return _Model(path, self._copies.folders[path], graphs, seen)

    def _current(self, name: str) -> Mapping[str, Any]:
        """The description of the version that is served; empty for the first."""
        state = self._engine.versions.served(name)
        return {} if state is None else state.versions.get(state.default, {})

    def _run(self, watched: Sequence[_Model]) -> None:
        while not self._closing.wait(_LOOK):
            for each in watched:
                try:
                    self._look(each)
                except CancelledError:  # the engine ends
                    return
                except Exception:  # noqa: BLE001 - our bug: the service goes on
                    _log.exception("model %s is not taken anew any more", each.path)
                    watched = [other for other in watched if other is not each]
            self._remove_unused()

    def _look(self, model: _Model) -> None:
        """Take the model if it has changed, and is complete."""
        now = time.monotonic()
        if now < model.not_before:
            return
        try:
            stamp = stamp_of(model.folder)
            if not model.changes.are_due(stamp):
                model.due_since = None
                return
            copy = self._copied(model)
        except OSError as error:
            model.not_before = now + _RETRY
            text = f"its folder cannot be copied: {error}"
            model.tell(text)
            self._loop.call_soon_threadsafe(self._not_copied, model.graphs, text)
            return
        if copy is not None:
            model.due_since = None
            self._serve(model, copy, stamp)
            return
        model.due_since = model.due_since or now
        if now - model.due_since > _RESTLESS:
            model.tell(f"files in {model.folder} have been changing for over {_RESTLESS:g} s")

    def _copied(self, model: _Model) -> Path | None:
        """A copy of the folder; None if it is still changing.

        Raises:
            OSError: it cannot be copied.
        """
        listing = listing_of(model.folder)
        if not model.changes.are_complete(listing):
            return None
        model.began = time.monotonic()
        version = max(int(time.time()), self._last + 1)
        self._last = version
        room = Path(self._copies.room, str(version), "0")
        self._made.add(room)
        to = room / model.folder.name
        try:
            copy_files(model.folder, listing, to, self._closing)
        except FileNotFoundError:
            return None
        return to if model.changes.are_complete(listing_of(model.folder)) else None

    def _serve(self, model: _Model, copy: Path, stamp: Stamp) -> None:
        """Swap the copy in, in each graph with the model."""
        version = copy.parents[1].name
        for name in model.graphs:
            if self._closing.is_set():
                return
            before = self._current(name)
            paths = {**before.get("paths", {}), model.path: str(copy)}
            seen = {**before.get("seen", {}), model.path: stamp}
            description = {"name": name, "version": version, "paths": paths, "seen": seen}
            swapping = self._swap(model, copy, description)
            self._swapping = asyncio.run_coroutine_threadsafe(swapping, self._loop)
            try:
                self._swapping.result()
            except StartupError as error:
                text = str(error)
                if "try again later" in text:
                    model.not_before = time.monotonic() + _BUSY
                    return
                _log.error(_NOT_TAKEN, name, model.folder, text, " or ".join(TIME_FILES))
                break
            finally:
                self._swapping = None
            model.told = ""
            _log.info("model %s: taken anew from %s, as version %s", name, model.folder, version)
        model.changes.taken(stamp)

    async def _swap(self, model: _Model, copy: Path, description: Mapping[str, Any]) -> None:
        """Let all engines serve a copy, and record it.

        Raises:
            StartupError: they do not, with the reason in the user's terms.
        """
        versions = self._engine.versions
        swaps: Swaps = versions.swaps
        swap = swaps.begin(description["name"], description["version"], model.began)
        swap.passed("fetched")
        try:
            await versions.swap(description)
        except StartupError as error:
            text = str(error).replace(str(copy), str(model.folder))
            text = text.replace(ALLOWED, "; it is served after a restart")
            swaps.fail(swap, text)
            swap.why = text  # not that of the engine, which knows the copy only
            raise StartupError(text) from error

    def _not_copied(self, graphs: Sequence[str], why: str) -> None:
        swaps: Swaps = self._engine.versions.swaps
        for name in graphs:
            swaps.fail(swaps.begin(name, None), why)
            swaps.count(name, StoreError.code)

    def _remove_unused(self) -> None:
        """Remove the copies that no graph of this engine has any more."""
        used = {Path(copy).parent for name in self._models for copy in self._paths_of(name)}
        alive = {version for _, version in (graph.key for graph in self._engine.all_graphs)}
        for room in [*self._made]:
            if room not in used and room.parent.name not in alive:
                shutil.rmtree(room, ignore_errors=True)
                self._made.discard(room)

    def _paths_of(self, name: str) -> list[str]:
        """The copies of the version that is served."""
        paths = {**self._copies.paths, **self._current(name).get("paths", {})}
        return [paths[model] for model in self._models[name] if model in paths]
