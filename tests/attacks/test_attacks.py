"""Attacks on a real service: the attacker is rejected, good clients are served, nothing leaks.

Times have only generous limits here, because they depend on the machine as much as on the service;
``python -m tests.attacks.run`` compares them. ``ATTACKS_WHOLE=1`` runs every attack.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.attacks.attacks import ATTACKS
from tests.attacks.site import Attack, Outcome, Target, target

pytestmark = pytest.mark.faults

SECONDS = 0.3
MOST_SECONDS = 20.0
WORST = 15_000.0
"""Milliseconds; the limit of a good call during an attack."""

CHOSEN = [one for one in ATTACKS if one.sampled or os.environ.get("ATTACKS_WHOLE")]


class Targets:
    """The service of the last attack, kept while the next one has the same configuration."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._attack: Attack | None = None
        self._target: Target | None = None

    def of(self, attack: Attack) -> Target:
        """A running service with the attack's configuration."""
        last = self._attack
        if last is None or (last.config, last.command) != (attack.config, attack.command):
            self.close()
            self._target = self._stack.enter_context(target(attack.config, attack.command))
            self._attack = attack
        assert self._target is not None
        return self._target

    def close(self) -> None:
        """Stop the running service."""
        self._attack = None
        self._stack.close()


@pytest.fixture(scope="module")
def targets() -> Iterator[Targets]:
    running_targets = Targets()
    yield running_targets
    running_targets.close()


def rejected(attack: Attack, outcome: Outcome) -> bool:
    """Whether the attacker got one of its expected answers."""
    return not attack.expected or bool(set(attack.expected) & set(outcome.received))


@pytest.mark.parametrize("attack", CHOSEN, ids=[one.name for one in CHOSEN])
def test_the_attack_is_rejected_and_good_clients_are_served(
    attack: Attack, targets: Targets
) -> None:
    running_target = targets.of(attack)
    seconds = SECONDS
    outcome = running_target.measure_attack(attack, seconds)
    # At its low priority, on a busy machine, an attacker may not yet have been answered.
    while not rejected(attack, outcome) and seconds < MOST_SECONDS:
        seconds *= 3
        outcome = running_target.measure_attack(attack, seconds)
    assert rejected(attack, outcome), outcome
    assert outcome.grown < attack.growth, outcome
    assert attack.refuses_others or not outcome.failures, outcome
    assert outcome.worst < WORST, outcome
    assert outcome.left == {}, "threads and descriptors are back, and a good call was answered"
    assert "Traceback" not in running_target.server.log(), running_target.server.log()[-3000:]
