"""A change of labels, weights or the default version of a model, as operators send it.

Pure: plain data in, the next state of the name out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import PackageError
from penstock.repository.served import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUpdate:
    """A change of labels, weights or the default version.

    Attributes:
        labels: versions by label; None removes a label.
        weights: shares by version; None leaves them as they are.
        promote: the version that is to run all requests that name none.
        rollback: whether to go back instead.
    """

    labels: Mapping[str, str | None]
    weights: Mapping[str, int] | None
    promote: str | None
    rollback: bool

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> ModelUpdate:
        """The wish in a body.

        Raises:
            PackageError: it is none.
        """
        known = ("labels", "weights", "promote", "rollback")
        for key in plain:
            if key not in known:
                raise PackageError(f"an update has no member {key[:64]!r}: {', '.join(known)}")
        labels, weights = plain.get("labels", {}), plain.get("weights")
        promote, rollback = plain.get("promote"), plain.get("rollback", False)
        if not isinstance(labels, dict) or not all(
            each is None or isinstance(each, str) for each in labels.values()
        ):
            raise PackageError("labels must be an object of texts or null")
        if weights is not None and (
            not isinstance(weights, dict) or not all(type(x) is int for x in weights.values())
        ):
            raise PackageError("weights must be an object of whole numbers")
        if not isinstance(promote, str | None) or not isinstance(rollback, bool):
            raise PackageError("promote must be a text, and rollback true or false")
        if not plain or (rollback and len(plain) > 1):
            raise PackageError(f"an update has one of the members {', '.join(known)}")
        return cls(labels=labels, weights=weights, promote=promote, rollback=rollback)

    def __str__(self) -> str:
        parts = []
        if self.rollback:
            parts.append("went back to the version before")
        if self.promote is not None:
            parts.append(f"version {self.promote} runs the requests that name none")
        for label, version in self.labels.items():
            what = "is removed" if version is None else f"is on version {version}"
            parts.append(f"label {label} {what}")
        if self.weights is not None:
            shares = ", ".join(f"{version}={share}" for version, share in self.weights.items())
            parts.append(f"weights {shares or 'are removed'}")
        return "; ".join(parts)

    def applied(self, now: Served | None) -> Served:
        """The state that is wished; see ``Served``."""
        assert now is not None
        for label, version in self.labels.items():
            if version is None:
                now = now.without_label(label)
            else:
                now = now.with_label(label, now.resolve(version) or version)
        rolling, promoted = (
            now.rolling,
            self.promote and (now.resolve(self.promote) or self.promote),
        )
        if rolling is not None and rolling.version == promoted:
            now = now.rolled(rolling.promoted())
        if self.promote is not None:
            now = now.with_weights({})
            now = now.with_default(now.resolve(self.promote) or self.promote)
        if self.weights is not None:
            shares = {now.resolve(text) or text: n for text, n in self.weights.items()}
            now = now.with_weights(shares)
        return now
