"""The parameters of a model's configuration that have an effect, and what of it has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.repository.pbtxt import Config

OWN: Final = "penstock."
"""What the names of parameters begin with that are keys of an op."""

THREAD_KEYS: Final = frozenset(
    {
        "intra_op_thread_count",
        "INTRA_OP_THREAD_COUNT",
        "INFERENCE_NUM_THREADS",
        "CPU_THREADS_NUM",
    }
)
"""Parameters of Triton's backends for the CPU threads of one run."""


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
