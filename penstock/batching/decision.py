"""Decides how the requests of an op are batched, and says why.

The user's word, the model's signature and the probe decide, in this order; what none of them tells
is not batched. A probe that found another answer in a batch overrules all but ``verify_batches:
off``. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from penstock.batching.padding import Padding
from penstock.batching.probe import Found
from penstock.batching.rows import Hints, Rows

Verify: TypeAlias = Literal["auto", "strict", "off"]
"""The option ``verify_batches``: what a probe that does not agree does. ``auto``: the op is not
batched, or not padded; ``strict``: the start fails; ``off``: there is no probe."""

By: TypeAlias = Literal["rows", "first axes", "requests"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How the requests of an op are batched.

    Attributes:
        by: ``rows``: joined along known row axes; ``first axes``: joined along the first axis of
            every array, for ops with a ``process`` of their own; ``requests``: ``process`` gets a
            list of requests; None: each request runs alone.
        why: the reason, as text.
        rows: the row axes; None unless batched by rows.
        padding: how requests are padded; None if they are not.
        warning: what the operator should know, as text, or None.
    """

    by: By | None
    why: str
    rows: Rows | None = None
    padding: Padding | None = None
    warning: str | None = None

    def __str__(self) -> str:
        return f"{'not batched' if self.by is None else f'batched by {self.by}'}: {self.why}"

    def plain(self) -> dict[str, Any]:
        """As plain values, for another process."""
        rows, padding = self.rows, self.padding
        return {
            "by": self.by,
            "why": self.why,
            "rows": rows and [dict(rows.inputs), dict(rows.outputs), sorted(rows.shared)],
            "axes": padding and [_listed(padding.inputs or {}), _listed(padding.outputs)],
        }

    @classmethod
    def of_plain(cls, values: Mapping[str, Any], padding: Padding | None) -> Batching:
        """From plain values.

        Args:
            values: of ``plain``.
            padding: the op's, which gets the axes among the values.
        """
        rows, axes = values["rows"], values["axes"]
        if axes is None or padding is None:
            padding = None
        else:
            padding = replace(padding, inputs=_tuples(axes[0]), outputs=_tuples(axes[1]))
        return cls(
            by=values["by"],
            why=values["why"],
            rows=rows
            and Rows(inputs=rows[0], outputs=rows[1], shared=frozenset(map(str, rows[2]))),
            padding=padding,
        )


def decide(
    hints: Hints, found: Found | None, verify: Verify, padding: Padding | None = None
) -> Batching:
    """Decide for an op that runs a model.

    Args:
        hints: what the user and the signature say.
        found: what the probe found; None if there was none.
        verify: see Verify.
        padding: how requests would be padded.

    Raises:
        ValueError: ``verify`` is ``strict``, and the probe does not agree; with its reason.
    """
    if verify == "off" or found is None:
        rows = hints.certain or hints.likely
        if rows is None:
            return _unknown(hints.why)
        why = hints.why if hints.certain else "verify_batches is off"
        warning = None
        if padding is not None and (kept := padding.kept()):
            warning = (
                f"the model does not declare which input the sizes of output {kept[0]!r} follow:"
                " for padded requests it has the padded size, unless pad.inputs and pad.outputs say"
                " what to cut off"
            )
        return Batching(by="rows", why=why, rows=rows, padding=padding, warning=warning)
    if found.rows is not None:
        if padding is not None and not found.pads:
            if verify == "strict":
                raise ValueError(f"requests cannot be padded: {found.unpadded}")
            return Batching(
                by="rows",
                why="the probe got the same answers in batches",
                rows=found.rows,
                warning=f"its requests are not padded: {found.unpadded}",
            )
        return Batching(
            by="rows",
            why="the probe got the same answers in batches",
            rows=found.rows,
            padding=padding,
        )
    if found.refuted is not None:
        if verify == "strict":
            raise ValueError(f"batches change its answers: {found.refuted}")
        why = f"the probe got other answers in a batch: {found.refuted}"
        return Batching(by=None, why=why, warning=f"its requests run one at a time: {why}")
    why = f"the probe could not run, since {found.unable}" if found.unable else hints.why
    if verify == "strict":
        raise ValueError(f"its batches cannot be verified: {why}")
    if hints.certain is None:
        return _unknown(f"{why}, and {hints.why}" if found.unable else why)
    warning = None
    if padding is not None:
        warning = f"its requests are not padded: {why}"
    return Batching(by="rows", why=f"{hints.why}; {why}", rows=hints.certain, warning=warning)


def _unknown(why: str) -> Batching:
    warning = (
        f"its requests run one at a time: {why}; if batches leave its answers alone, name the row"
        " axes with the option rows, such as rows: first, or give examples"
    )
    return Batching(by=None, why=why, warning=warning)


def _listed(axes: Mapping[str, Sequence[str | None]]) -> dict[str, list[str | None]]:
    return {name: list(each) for name, each in axes.items()}


def _tuples(axes: Mapping[str, Sequence[str | None]]) -> dict[str, tuple[str | None, ...]]:
    return {name: tuple(each) for name, each in axes.items()}
