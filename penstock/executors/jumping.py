"""Whether an op's good outcomes jump: ``check_jumping`` is asked once for a whole batch."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ops.channel_data import ChannelData
from penstock.ops.failures import HOOK_FAULTS, hook_raised_for
from penstock.ops.op import Op
from penstock.request import Outcome, Sample


def ask_to_jump(op: Op, samples: Sequence[Sample], outcomes: list[Outcome]) -> None:
    """Set ``jump`` of what is good; ``check_jumping`` sees that, and speaks for all of it.

    Args:
        op: the worker's copy.
        samples: the batch's.
        outcomes: one for each; where the hook raises, the good ones become its error.
    """
    good = [at for at, outcome in enumerate(outcomes) if outcome.error is None]
    if not good:
        return
    asked = [samples[at] for at in good]
    data = {
        sample.data_id: ChannelData(outcomes[at], sample.data_id, sample.log_id)
        for at, sample in zip(good, asked, strict=True)
    }
    try:
        jump = bool(op.check_jumping(data))
    except HOOK_FAULTS as error:
        errors = hook_raised_for(op, "check_jumping", asked, error)
        for at, each in zip(good, errors, strict=True):
            outcomes[at] = Outcome(None, each)
        return
    for at in good:
        outcomes[at].jump = jump
