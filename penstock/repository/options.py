"""The repositories of a service, as configured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal, TypeAlias

from penstock.repository import policy

Mode: TypeAlias = Literal["none", "poll", "explicit"]
"""How the models of a repository come: all at the start, and no others later; whenever the
repository has another version; or when an operator says so."""


MODELS: Final = "models"
"""The key of a graph's description with the versions of its ops' models."""


ONLY: Final = "only"
"""The key of such a description with the one op that is to be opened, in a worker process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repositories:
    """See the module.

    Attributes:
        places: folders, and URLs of stores.
        mode: how models come.
        poll_seconds: between two looks at the repositories, in mode ``poll``.
        load: names of models to load at the start, in mode ``explicit``; ``*`` for all.
        at_once: most models that are loaded at the same time.
        cache: the folder of the cache; None for the usual one.
        cache_limit: most bytes of the cache; None for no limit.
        public_key: a file with a key that must have signed each version; None: none need be signed.
    """

    places: tuple[str, ...]
    mode: Mode = "none"
    poll_seconds: float = 15.0
    load: tuple[str, ...] = ()
    at_once: int = 4
    cache: str | None = None
    cache_limit: int | None = None
    public_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpModel:
    """One op's model, of which there are versions.

    Attributes:
        name: the op's label, unique in the service.
        graph: the name of its graph.
        op: its name in the graph.
        place: the folder, or URL, with a folder for each version.
        versions: ``latest``, or the number of the one that runs.
    """

    name: str
    graph: str | None
    op: str
    place: str
    versions: str

    @property
    def folder(self) -> str:
        """The last part of the place."""
        return PurePosixPath(self.place.rstrip("/")).name or self.op

    @property
    def policy(self) -> policy.VersionPolicy:
        """Which versions are wanted."""
        return policy.parse(self.versions)
