"""The parameters of a model's configuration that have an effect, and what of it has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.repository.pbtxt import Config

OWN: Final = "penstock."
"""What the names of parameters begin with that are keys of an op."""

ROLLOUT: Final = "penstock.rollout."
"""What the names of parameters begin with that say how new versions of the model get the requests:
they are of the model, and of none of its versions."""

SWAP: Final = f"{OWN}swap"
"""The parameter for the key ``swap`` of one model."""

SIGNATURE: Final = f"{OWN}signature"
"""The parameter that allows a version to have another signature than the one before it."""

ANY: Final = "any"
"""The value of ``SIGNATURE``, and of ``signature`` in a version's description, that allows it."""

OF_VERSIONS: Final = frozenset((SWAP, SIGNATURE))
"""Parameters of versions, which are no keys of an op."""

THREAD_KEYS: Final = frozenset(
    {
        "intra_op_thread_count",
        "INTRA_OP_THREAD_COUNT",
        "INFERENCE_NUM_THREADS",
        "CPU_THREADS_NUM",
    }
)
"""Parameters of Triton's backends for the CPU threads of one run."""


def without_rollout(config: Config) -> Config:
    """The configuration without the parameters of rollouts, so that a change of them changes no
    version.
    """
    if not any(name.startswith(ROLLOUT) for name in config.parameters):
        return config

    def left(parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {k: each for k, each in parameters.items() if not k.startswith(ROLLOUT)}

    plain = {**config.plain, "parameters": left(config.plain["parameters"])}
    if not plain["parameters"]:
        del plain["parameters"]
    return replace(config, parameters=left(config.parameters), plain=plain)


def warnings_of(config: Config, source: str) -> Iterator[str]:
    """What of a configuration has no effect, for the log.

    Args:
        config: the configuration.
        source: the name of its file.
    """
    yield from config.warnings
    for name in config.parameters:
        if name not in THREAD_KEYS and not name.startswith(OWN):
            yield f"{source}: parameters: {name} has no effect"
    if config.batching is not None and any(x.max_size for x in config.batching.queues.values()):
        yield (
            f"{source}: dynamic_batching: max_queue_size of single priorities has no effect: that"
            " of default_queue_policy is for all"
        )
