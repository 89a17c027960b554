"""Everything about one model's name: its versions, and which of them a request gets.

A value: each change makes another one, and refuses what would leave a caller without an answer,
such as the removal of a version to which a label points.

A request that names a version or a label runs in that version. One that names none is drawn by the
weights, if there are any; otherwise it gets the default version. A label is never the text of a
version, so that a request's text means one of them only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.errors import RolloutRuns, VersionsError

if TYPE_CHECKING:
    from penstock.repository.rollout import Plan, Rollout

Description: TypeAlias = Mapping[str, Any]
"""A version as plain data, as of JSON: ``name`` and ``version``, and what the service needs to make
it."""

Update: TypeAlias = Callable[["Served | None"], "Served"]
"""A change of a name: from its present state, None if nobody knows the name, to the wanted one. It
may be called again with another state, if others change the name meanwhile. May raise
VersionsError."""

_MOST_CHARACTERS: Final = 64
_MOST_WEIGHT: Final = 1_000_000

_AT_START: Final = "at_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The state of one name. A name without versions is known, and its requests are refused.

    Attributes:
        name: of the model, as in requests; None for one that takes every name.
        versions: their descriptions, oldest first.
        default: the version of requests that name none; None only if there is no version.
        labels: further texts by which requests name a version.
        weights: the shares of the requests that name no version; empty: all get the default.
        rollout: of a new version, running or over; None if there was none. While it runs, the
            default and the weights are its own, and nothing else changes them.
        sticky: a header field, or ``log_id``, by whose value the version of a request is drawn if
            there are weights; None: by that which the service has for this name, or by chance.
        barred: digests of contents that are not tried again, with the reasons.
        unloaded: whether an operator has unloaded it: it is not loaded until told to.
        sent: whether an operator has sent it, in place of what its repository has, which is not
            loaded until told to. Nothing that is served depends on these three: the engine that
            loads models next must know them.
    """

    name: str | None
    versions: Mapping[str, Description] = field(default_factory=dict)
    default: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    rollout: Rollout | None = None
    barred: Mapping[str, str] = field(default_factory=dict)
    sticky: str | None = None
    unloaded: bool = False
    sent: bool = False

    def __post_init__(self) -> None:
        """Check that the parts fit together.

        Raises:
            VersionsError: they do not.
        """
        for version, description in self.versions.items():
            if description.get("name") != self.name or description.get("version") != version:
                raise VersionsError(f"version {version!r} of {self.called} is described as another")
            check_text("a version", version)
        if self.default is None:
            if self.versions:
                raise VersionsError(f"{self.called} has versions and no default")
        else:
            self._known(self.default)
        for label, version in self.labels.items():
            check_text("a label", label)
            if label.isdecimal() or label in self.versions:
                raise VersionsError(
                    f"{label!r} is a version, or could be one: it cannot be a label"
                )
            self._known(version)
        for version, weight in self.weights.items():
            self._known(version)
            if type(weight) is not int or not 0 <= weight <= _MOST_WEIGHT:
                raise VersionsError(
                    f"the weight of version {version} is {weight!r}: no whole number"
                )
        if self.weights and not any(self.weights.values()):
            raise VersionsError(f"all weights of {self.called} are 0")
        rollout = self.rolling
        if rollout is not None:
            there = rollout.weights.keys() <= self.versions.keys()
            if not there or (self.default, self.weights) != (rollout.stable, rollout.weights):
                raise self._busy(rollout)

    def _busy(self, rollout: Rollout) -> RolloutRuns:
        text = f"version {rollout.version} of {self.called} is being rolled out"
        return RolloutRuns(f"{text}: promote it, or take it back, first")

    @property
    def rolling(self) -> Rollout | None:
        """The rollout that runs; None without one."""
        rollout = self.rollout
        return rollout if rollout is not None and rollout.running else None

    @property
    def called(self) -> str:
        """Its name in messages."""
        return self.name or "a service without a name"

    def _known(self, version: str) -> None:
        if version not in self.versions:
            raise VersionsError(f"{self.called} has no version {version!r}")

    def resolve(self, text: str) -> str | None:
        """The version that a version's text, or a label, names; None if there is none."""
        return text if text in self.versions else self.labels.get(text)

    def share(self, version: str) -> float:
        """The share of the requests that name no version, from 0 to 1, which a version gets."""
        if not self.weights:
            return float(version == self.default)
        return self.weights.get(version, 0) / sum(self.weights.values())

    def with_version(
        self, description: Description, *, default: bool = False, again: bool = False
    ) -> Served:
        """With a further version.

        Args:
            description: of the version. One that is there with the same description stays.
            default: whether it becomes the default; the first version does in any case.
            again: whether it takes the place of one with the same text and another description, as
                of a model whose files have changed.

        Raises:
            VersionsError: there is another one with this text.
        """
        version = check_text("a version", description.get("version"))
        there = self.versions.get(version)
        if there is not None and not again and dict(there) != dict(description):
            raise VersionsError(f"version {version} of {self.called} is there already")
        differs = there is not None and dict(there) != dict(description)
        if differs and self.rolling is not None and version in self.rolling.weights:
            raise self._busy(self.rolling)
        versions = {**self.versions, version: dict(description)}
        first = version if default or self.default is None else self.default
        return replace(self, versions=versions, default=first, unloaded=False)

    def without_version(self, version: str) -> Served:
        """Without a version; its share of the requests goes to the others.

        Raises:
            VersionsError: there is none, or requests for its label or for the default would be left
                without one.
        """
        self._known(version)
        for label, labelled in self.labels.items():
            if labelled == version:
                text = f"label {label!r} is on version {version} of {self.called}"
                raise VersionsError(f"{text}: move it, or remove it, first")
        versions = {each: about for each, about in self.versions.items() if each != version}
        if version == self.default and versions:
            text = f"version {version} is the default of {self.called}"
            raise VersionsError(f"{text}: make another one the default first")
        weights = {each: weight for each, weight in self.weights.items() if each != version}
        return replace(
            self,
            versions=versions,
            default=self.default if versions else None,
            weights=weights if any(weights.values()) else {},
        )

    def without_versions(self) -> Served:
        """Without any version, label or weight: the model is unloaded."""
        return Served(name=self.name, barred=self.barred)

    def only(self, description: Description) -> Served:
        """With this version as the default, and no others.

        Raises:
            VersionsError: another version has a label; or see ``with_version``.
        """
        found = replace(self.with_version(description, default=True), weights={})
        for each in self.versions:
            if each != description["version"]:
                found = found.without_version(each)
        return found

    def with_default(self, version: str) -> Served:
        """With another default version.

        Raises:
            VersionsError: there is no such version.
        """
        return replace(self, default=version)

    def with_label(self, label: str, version: str) -> Served:
        """With a label on a version, which it leaves if it was on another one.

        Raises:
            VersionsError: there is no such version, or the label is or could be a version's text.
        """
        return replace(self, labels={**self.labels, label: version})

    def without_label(self, label: str) -> Served:
        """Without a label.

        Raises:
            VersionsError: there is none.
        """
        if label not in self.labels:
            raise VersionsError(f"{self.called} has no label {label!r}")
        return replace(self, labels={k: v for k, v in self.labels.items() if k != label})

    def with_weights(self, weights: Mapping[str, int]) -> Served:
        """With these shares of the requests that name no version; empty: all get the default.

        Raises:
            VersionsError: there is no such version, or a share is no whole number, or all are 0.
        """
        return replace(self, weights={**weights})

    def with_rollout(
        self, description: Description, plan: Plan, number: int, *, keep: Collection[str] = ()
    ) -> Served:
        """With a further version, which is rolled out from the default one. If another one is being
        rolled out, it takes the place of that.

        Args:
            description: of the new version; it may be there, with this or another description.
            plan: the steps, at least one.
            number: different from those of earlier rollouts of the name.
            keep: versions that stay, also if they lose.

        Raises:
            VersionsError: it is the default.
        """
        version = description["version"]
        if self.default is None or version == self.default:
            raise VersionsError(f"version {version} of {self.called} is the default already")
        found, before = self, self.rolling
        if before is not None:
            found = replace(self, weights={}, rollout=None)
            loser = before.version
            if loser not in (version, *keep) and loser not in self.labels.values():
                found = found.without_version(loser)
        from penstock.repository.rollout import Rollout

        found = found.with_version(description, again=True)
        stable, kept = self.default, tuple(keep)
        return found.rolled(
            Rollout(number=number, stable=stable, version=version, plan=plan, keep=kept)
        )

    def rolled(self, rollout: Rollout) -> Served:
        """With another state of the rollout. At its end the version that lost is removed, unless it
        has a label, or it was the stable one and is to be kept.

        Raises:
            VersionsError: a version of it is not there.
        """
        if rollout.running:
            return replace(self, default=rollout.stable, weights=rollout.weights, rollout=rollout)
        promoted = rollout.is_won
        winner = rollout.version if promoted else rollout.stable
        loser = rollout.stable if promoted else rollout.version
        found = replace(self, default=winner, weights={}, rollout=rollout)
        kept = (*found.labels.values(), *(rollout.keep if promoted else ()))
        if loser in found.versions and loser not in kept:
            found = found.without_version(loser)
        return found

    def plain(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "name": self.name,
            "versions": {version: dict(about) for version, about in self.versions.items()},
            "default": self.default,
            "labels": {**self.labels},
            "barred": {**self.barred},
            "weights": {**self.weights},
            "rollout": None if self.rollout is None else self.rollout.plain(),
            "sticky": self.sticky,
            "unloaded": self.unloaded,
            "sent": self.sent,
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Served:
        """The state that ``plain`` has described.

        Raises:
            VersionsError: its parts do not fit together.
        """
        if plain.get("rollout") is None:
            return cls(**plain)
        from penstock.repository.rollout import Rollout

        return cls(**{**plain, "rollout": Rollout.of_plain(plain["rollout"])})


def check_text(what: str, text: Any) -> str:
    """The text of a version or a label, checked.

    Raises:
        VersionsError: it is not printable, or has more than 64 characters.
    """
    if isinstance(text, str) and text.isprintable() and 0 < len(text) <= _MOST_CHARACTERS:
        return text
    raise VersionsError(
        f"{what} is a printable text of 1 to {_MOST_CHARACTERS} characters: {text!r}"
    )


def at_start(name: str | None, version: str) -> Description:
    """The description of a version that the service's own code has, which nothing needs to make."""
    return {"name": name, "version": version, _AT_START: True}


def is_at_start(description: Description) -> bool:
    """Whether a version is of the service's own code."""
    return description.get(_AT_START) is True
