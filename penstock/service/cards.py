"""Shows a worker process nothing but its own card.

So that code which takes "the first card", as that of users often does, takes the right one, and no
memory is reserved on the others.
"""

from __future__ import annotations

from collections.abc import Container, MutableMapping
from typing import Final

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
"""Read by the driver when a process first uses it. The card that it leaves is number 0 then."""

ONLY: Final = "0"

_LOOKING: Final = ("cupy", "jax", "numba.cuda", "paddle", "tensorflow", "torch")
"""Libraries that may look at the cards while they are imported, or soon after; the rest of their
process goes by what they saw. ONNX Runtime looks when its first session is opened."""


def show_only(card: str, environment: MutableMapping[str, str], imported: Container[str]) -> bool:
    """Let this process see one card, as number 0.

    Args:
        card: its id, which counts among those that the process sees now.
        environment: of the process.
        imported: names of the modules that it has imported.

    Returns:
        Whether that was done. It is not where a library may have looked at the cards before, and
        not where there is no such card; that is the runtime's to tell.
    """
    if any(name in imported for name in _LOOKING):
        return False
    visible = environment.get(VARIABLE)
    if visible is not None:
        known = [each.strip() for each in visible.split(",") if each.strip()]
        if int(card) >= len(known):
            return False
        card = known[int(card)]
    environment[VARIABLE] = card
    return True
