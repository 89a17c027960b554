"""What the repositories of a service have, and how a version of it becomes a description.

Every method blocks, and may be called in several threads. What is read from a repository is
fetched into the cache first: nothing that is served depends on the repository any more.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

from penstock.config.schema import RolloutConfig, ServiceConfig
from penstock.errors import ModelError, StoreError
from penstock.repository import layout, pbtxt, policy
from penstock.repository.description import description_of, versions_of
from penstock.repository.layout import FoundModel
from penstock.repository.manifest import File, fingerprint, why_unsafe
from penstock.repository.options import Repositories
from penstock.repository.parameters import warnings_of, without_rollout
from penstock.repository.pbtxt import Config, Step
from penstock.repository.policy import VersionPolicy
from penstock.repository.served import Description
from penstock.service.rollout_plan import own_entry
from penstock.store.cache import Cache, Fetched
from penstock.store.signing import PublicKeys
from penstock.store.source import Source

Progress = Callable[[int, int], None]
"""Told the bytes of a version that were transferred, and all of them."""

_SHARED: Final = "shared"
"""The version under which the cache has the files that all versions of a model share."""

_LAST: Final = "last"
"""The folder in the cache with what served when its repository answered."""

_MOST_SHARED: Final = 1 << 30  # bytes of one such file
_FILE: Final = "file:"


class Files(Protocol):
    """Where the files of a model are: ``Source``, or what an operator sent with a load."""

    url: str

    def read(self, file: File, limit: int = 2**20) -> bytes:
        """Read a small file."""

    def fetch(
        self,
        model: str,
        version: str,
        files: Sequence[File],
        cache: Cache,
        *,
        folder: str,
        progress: Progress | None = None,
    ) -> Fetched:
        """Copy a version into the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model as a repository has it now.

    Attributes:
        name: its name.
        source: has its files; None if ``problem`` says why there is no model.
        model: its versions and files.
        config: its configuration, without ``rollout``; None without one.
        rollout: how its new versions get the requests, as its configuration says; None if it does
            not.
        files: what is known of its files, by path.
        refused: why some are not used, by path: their versions cannot be served.
        problem: why it cannot be served; empty if it may be.
        warnings: what was ignored, in words.
    """

    name: str
    source: Files | None = None
    model: FoundModel | None = None
    config: Config | None = None
    rollout: RolloutConfig | None = None
    files: Mapping[str, File] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def versions(self) -> list[str]:
        """Its versions, from the oldest to the newest."""
        return [] if self.model is None else versions_of(self.model, self.config)

    @property
    def steps(self) -> list[str]:
        """The names of the models that an ensemble runs."""
        return [] if self.config is None else [each.model for each in self.config.steps]

    @property
    def policy(self) -> VersionPolicy:
        """Which versions are to be served."""
        return (self.config and self.config.policy) or policy.LATEST

    def wanted(self, *, also: Iterable[str] = (), without: Iterable[str] = ()) -> list[str]:
        """The versions to serve, from the oldest to the newest.

        Args:
            also: versions that have gone, and count as there.
            without: versions that cannot be served.
        """
        return policy.wanted(self.policy, {*self.versions, *also} - {*without})

    def mark(self, version: str, steps: Sequence[Description]) -> str:
        """A text that changes if anything of a version does, known before it is fetched.

        Args:
            version: its text.
            steps: the descriptions of the steps of an ensemble.
        """
        assert self.model is not None
        found = self.model.versions.get(version)
        paths = [*self.model.shared, *(() if found is None else found.files)]
        refused = [[each, self.refused[each]] for each in paths if each in self.refused]
        files = fingerprint(self.files[each] for each in paths if each in self.files)
        config = None if self.config is None else dict(self.config.plain)
        return _digest([self.name, version, files, refused, config, [*steps]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What the repositories have.

    Attributes:
        entries: by name.
        outages: why a repository does not answer, by its URL. What is known of it stays.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    outages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """A version whose files are in the cache, until ``release``.

    Attributes:
        description: plain data, of which every process makes it.
        digest: of files and configuration.
    """

    description: Description
    digest: str
    _fetched: tuple[Fetched, ...] = ()

    def release(self) -> None:
        """Let the cache remove the files."""
        for each in self._fetched:
            each.release()


class Shelf(Protocol):
    """What the repositories have; see ``Catalog``. Every method blocks."""

    @property
    def places(self) -> Sequence[str]:
        """The URLs of the repositories."""

    def scan(self) -> Scan:
        """List all repositories."""

    @property
    def unknown(self) -> str:
        """What is said of a model that it does not have."""

    def overriding(self, name: str, parameters: Mapping[str, Any], there: Entry | None) -> Entry:
        """A model as an operator sent it."""

    def hold(
        self,
        entry: Entry,
        version: str,
        of_step: Callable[[Step], Description],
        progress: Progress | None = None,
    ) -> Held:
        """Fetch a version, and describe it."""

    def remember(self, name: str, url: str, versions: Sequence[Description]) -> None:
        """Keep what serves, for a start at which its repository does not answer."""

    def remembered(self, url: str) -> dict[str, list[Held]]:
        """What served of a repository when it answered last."""


class Catalog:
    """See the module.

    Args:
        sources: the repositories.
        cache: for their files.
        trust: tells the keys that must have signed versions from others; empty: none need be
            signed.
    """

    def __init__(self, sources: Sequence[Source], cache: Cache, trust: str = "") -> None:
        self._trust = trust
        self._sources = sources
        self._cache = cache
        self._lock = threading.Lock()
        self._last: dict[str, dict[str, Entry]] = {}  # by the source's URL
        self._configs: dict[tuple[str, str], tuple[str, Config | str]] = {}

    @property
    def unknown(self) -> str:
        """See ``Shelf``."""
        return "no repository has it"

    @property
    def places(self) -> list[str]:
        """The URLs of the repositories."""
        return [each.url for each in self._sources]

    def scan(self) -> Scan:
        """List all repositories."""
        entries: dict[str, Entry] = {}
        outages: dict[str, str] = {}
        for source in self._sources:
            try:
                found = self._entries(source)
            except (StoreError, ValueError) as error:
                outages[source.url] = str(error)
                found = self._last.get(source.url, {})
            self._last[source.url] = found
            for name, entry in found.items():
                other = entries.get(name)
                if other is not None:
                    both = " and ".join(each.url for each in (other.source, source) if each)
                    entry = Entry(name=name, problem=f"it is in two repositories: {both}")
                entries[name] = entry
        for name in _circular({name: entry.steps for name, entry in entries.items()}):
            entries[name] = Entry(name=name, problem="its steps run itself")
        return Scan(entries=dict(sorted(entries.items())), outages=outages)

    def _entries(self, source: Source) -> dict[str, Entry]:
        listing = source.listing()
        files = {each.path: each for each in listing.files}
        # What is refused is there, so that it stands in the way of its version, and of no other.
        refused = {path: why for path, why in listing.refused.items() if _is_plain(path)}
        read = layout.read([*files, *refused])
        found = {name: Entry(name=name, problem=why) for name, why in read.problems.items()}
        for name, model in read.models.items():
            config, problem = None, ""
            if model.config in refused:
                problem = f"{model.config} {refused[model.config]}"
            elif model.config is not None:
                given = self._config(source, files[model.config])
                config, problem = (None, given) if isinstance(given, str) else (given, "")
            warnings = [f"{source.url}/{name}: {note}" for note in model.notes]
            rollout = None
            if config is not None:
                file_name = f"{source.url}/{model.config}"
                warnings += warnings_of(config, file_name)
                try:
                    rollout = own_entry(name, config.parameters, file_name)
                except ModelError as error:
                    problem = str(error)
                config = without_rollout(config)
            found[name] = Entry(
                name=name,
                source=source,
                model=model,
                config=config,
                rollout=rollout,
                files=files,
                refused=refused,
                problem=problem,
                warnings=tuple(warnings),
            )
        for path, reason in listing.refused.items():
            name = path.partition("/")[0]
            if name not in found:
                found[name] = Entry(name=name, problem=f"{path} {reason}")
        return found

    def _config(self, source: Source, file: File) -> Config | str:
        """A model's configuration, or what is wrong with it; read again only if it has changed."""
        key = source.url, file.path
        with self._lock:
            known = self._configs.get(key)
        if known is not None and file.strong and known[0] == file.revision:
            return known[1]
        try:
            data = source.read(file)
            found: Config | str = pbtxt.parse(data.decode(), f"{source.url}/{file.path}")
        except ModelError as error:
            found = str(error)
        except UnicodeDecodeError:
            found = f"{source.url}/{file.path} is no UTF-8"
        with self._lock:
            self._configs[key] = file.revision, found
        return found

    def overriding(self, name: str, parameters: Mapping[str, Any], there: Entry | None) -> Entry:
        """A model as an operator sent it.

        Args:
            name: its name.
            parameters: ``config``, a text of JSON; and files, bytes by ``file:VERSION/NAME``: then
                the model has no others.
            there: as the repository has it.

        Raises:
            ModelError: they describe no model.
        """
        text = parameters.get("config")
        sent = {
            f"{name}/{key.removeprefix(_FILE)}": value
            for key, value in parameters.items()
            if key.startswith(_FILE)
        }
        if sent and self._trust:
            raise ModelError("files are sent, and versions must be signed (model_public_key)")
        if text is None:
            raise ModelError("files are given without a config")
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise ModelError(f"the config is no JSON: {error}") from error
        if not isinstance(plain, dict):
            raise ModelError("the config is no JSON object")
        config = pbtxt.of_plain(plain)
        rollout = own_entry(name, config.parameters, "config")
        config = without_rollout(config)
        if not sent:
            if there is None or there.model is None:
                raise ModelError("no repository has it")
            return Entry(
                name=name,
                source=there.source,
                model=there.model,
                config=config,
                rollout=rollout,
                files=there.files,
            )
        for path in sent:
            reason = why_unsafe(path)
            if reason is not None:
                raise ModelError(f"the file {path!r} {reason}")
        try:
            read = layout.read(sent)
        except ValueError as error:
            raise ModelError(str(error)) from error
        if name not in read.models:
            raise ModelError(read.problems.get(name, "the files are no model"))
        files = {
            path: File(path=path, size=len(data), revision=sha256(data).hexdigest(), strong=True)
            for path, data in sent.items()
        }
        source = _Sent(sent)
        return Entry(
            name=name,
            source=source,
            model=read.models[name],
            config=config,
            rollout=rollout,
            files=files,
        )

    def hold(
        self,
        entry: Entry,
        version: str,
        of_step: Callable[[Step], Description],
        progress: Progress | None = None,
    ) -> Held:
        """Fetch a version, and describe it.

        Args:
            entry: the model.
            version: one of its versions.
            of_step: see ``description_of``.
            progress: told how far the transfer is.

        Raises:
            StoreError: it cannot be fetched; see ``Source.fetch``.
            ModelError: it is no version of a model.
        """
        model, source = entry.model, entry.source
        assert model is not None
        assert source is not None
        found = model.versions.get(version)
        for path in (*model.shared, *(() if found is None else found.files)):
            if path in entry.refused:
                raise ModelError(f"{path} {entry.refused[path]}")
        described = description_of(
            model, version, "", entry.config, lambda step: dict(of_step(step))
        )
        fetched: list[Fetched] = []
        try:
            if found is not None:
                single = found.path in found.files
                folder = str(PurePosixPath(found.path).parent) if single else found.path
                folder = "" if folder == "." else folder
                # All that is below the folder: what is not told of would count as a change of it.
                below = f"{folder}/"
                paths = [each for each in entry.files if each.startswith(below)]
                files = [entry.files[each] for each in (paths if folder else found.files)]
                got = source.fetch(
                    entry.name, version, files, self._cache, folder=folder, progress=progress
                )
                fetched.append(got)
                name = PurePosixPath(found.path).name
                described["path"] = str(got.path / name if single else got.path)
            described["folder"] = ""
            if model.shared and entry.config is not None and entry.config.warmups:
                fetched.append(self._shared(entry))
                described["folder"] = str(fetched[-1].path)
        except BaseException:
            for each in fetched:
                each.release()
            raise
        return Held(description=described, digest=digest_of(described), _fetched=tuple(fetched))

    def remember(self, name: str, url: str, versions: Sequence[Description]) -> None:
        """Keep what serves, for a start at which its repository does not answer.

        Args:
            name: of the model.
            url: of its repository.
            versions: those that serve, the default one last; none: nothing is kept.
        """
        file = self._record(url, name)
        if not versions:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(exist_ok=True)
        made = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        record = {"url": url, "trust": self._trust, "name": name, "versions": [*versions]}
        made.write_text(json.dumps(record, default=dict))
        made.replace(file)

    def remembered(self, url: str) -> dict[str, list[Held]]:
        """What served of a repository when it answered last, as far as the cache has it."""
        found: dict[str, list[Held]] = {}
        for file in sorted((self._cache.folder / _LAST).glob("*.json")):
            try:
                record = json.loads(file.read_bytes())
                if (record["url"], record["trust"]) == (url, self._trust):
                    held = [*map(self._hold_again, record["versions"])]
                    found[record["name"]] = [each for each in held if each is not None]
            except (OSError, ValueError, KeyError, TypeError):  # written by another release
                continue
        return found

    def _hold_again(self, description: Description) -> Held | None:
        fetched: list[Fetched] = []
        try:
            for path in _paths_of(description):
                fetched.append(self._cache.hold(path))
        except StoreError:
            for each in fetched:
                each.release()
            return None
        digest = digest_of(description)
        return Held(description=description, digest=digest, _fetched=tuple(fetched))

    def _record(self, url: str, name: str) -> Path:
        key = sha256(f"{url}\0{name}".encode()).hexdigest()
        return self._cache.folder / _LAST / f"{key}.json"

    def _shared(self, entry: Entry) -> Fetched:
        """The files that all versions of a model share, such as data for its warm-up."""
        model, source = entry.model, entry.source
        assert model is not None
        assert source is not None
        with self._cache.staging(entry.name, _SHARED) as staging:
            content = []
            for path in model.shared:
                file = entry.files[path]
                below = path.removeprefix(f"{model.folder}/")
                staging.reserve(file.size or 0)
                staging.place(below).write_bytes(source.read(file, _MOST_SHARED))
                content.append((below, staging.keep(below)))
            return staging.commit(_digest(content))


def _paths_of(description: Description) -> Iterator[Path]:
    """The places of the files of a version, and of the steps of an ensemble."""
    for key in ("path", "folder"):
        if description[key]:
            yield Path(description[key])
    for step in description.get("steps", ()):
        yield from _paths_of(step)


def repositories_of(config: ServiceConfig) -> Repositories:
    """The repositories that a configuration names."""
    limit = config.model_cache_limit_mib
    return Repositories(
        places=config.model_repository,
        mode=config.model_control_mode,
        poll_seconds=config.repository_poll_secs,
        load=config.load_model,
        at_once=config.model_load_thread_count,
        cache=config.model_cache,
        cache_limit=None if limit is None else limit << 20,
        public_key=config.model_public_key,
    )


def catalog_of(options: Repositories, *, within: str = "") -> Catalog:
    """The catalog of a service.

    Args:
        options: has the places.
        within: the name of a model of which each place is the folder; empty: they are
            repositories.

    Raises:
        StoreError: a repository, its cache or the key cannot be used.
    """
    key = options.public_key
    keys = None if key is None else PublicKeys.read(Path(key))
    trust = "" if key is None else sha256(Path(key).read_bytes()).hexdigest()
    sources = [Source(place, keys=keys, within=within) for place in options.places]
    folder = Path(options.cache) if options.cache is not None else usual_cache()
    return Catalog(sources, Cache(folder, options.cache_limit), trust)


def usual_cache() -> Path:
    """The folder of the cache, where none is configured."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock" / "models"


class _Sent:
    """The files that an operator sent; see ``Files``."""

    url = "the load's parameters"

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def read(self, file: File, limit: int = 2**20) -> bytes:
        return self._files[file.path]

    def fetch(
        self,
        model: str,
        version: str,
        files: Sequence[File],
        cache: Cache,
        *,
        folder: str,
        progress: Progress | None = None,
    ) -> Fetched:
        with cache.staging(model, version) as staging:
            staging.reserve(sum(len(self._files[each.path]) for each in files))
            content = []
            for each in files:
                below = each.path.removeprefix(f"{folder}/") if folder else each.path
                staging.place(below).write_bytes(self._files[each.path])
                content.append((below, staging.keep(below)))
            return staging.commit(_digest(content))


def _is_plain(path: str) -> bool:
    """Whether a path that was refused could be one of a model's."""
    return why_unsafe(path) is None and "\\" not in path


def _circular(steps: Mapping[str, Sequence[str]]) -> set[str]:
    """The ensembles of which a step, or a step of a step, is the ensemble itself."""

    def reaches(name: str, goal: str, seen: set[str]) -> bool:
        for step in steps.get(name, ()):
            if step == goal:
                return True
            if step not in seen:
                seen.add(step)
                if reaches(step, goal, seen):
                    return True
        return False

    return {name for name in steps if steps[name] and reaches(name, name, set())}


def digest_of(description: Description) -> str:
    """The digest of the files and the configuration of a version, which says its ``signature``."""
    return _digest({k: each for k, each in description.items() if k != "signature"})


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True, default=dict).encode()).hexdigest()
