"""Penstock with ops in a row that hand 5 MiB on, from the first, which has them, to the last."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.servers.options import server_options
from penstock import Op, WebService, empty
from penstock.executors.processes.frame import Ref
from penstock.executors.processes.slab_pool import SlabPool

LARGE_BYTES = 5 << 20
ARRAY = np.ones(LARGE_BYTES // 4, np.float32)  # zeros have no memory until they are written to


class PassOp(Op):
    """Gives an array on; the first has one, the last one tells its size."""

    is_first = is_last = in_place = False

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> dict[str, Any]:
        array = self.array() if self.is_first else feed_batch[0]["array"]
        return {"bytes": str(array.nbytes)} if self.is_last else {"array": array}

    def array(self) -> NDArray[np.float32]:
        """What an op has that has just made it: what it takes to fill it is the op's own."""
        return empty(ARRAY.shape, ARRAY.dtype) if self.in_place else ARRAY


class ArrayService(WebService):
    """request -> pass -> pass -> ... -> response."""

    def get_pipeline_response(self, read_op: Op) -> Op:
        last = read_op
        for number in range(options.ops):
            last = op = PassOp(name=f"pass{number}", input_ops=[last])
            op.is_first = number == 0
            op.is_last = number == options.ops - 1
            op.in_place = options.in_place
        return last


def note_copies(file: Path) -> None:
    """Let whoever copies such an array into shared memory, in whichever process, write it down."""
    noted = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    place = SlabPool.place

    def place_and_note(pool: SlabPool, array: NDArray[Any]) -> Ref | None:
        if array.nbytes == LARGE_BYTES:
            os.write(noted, b".")
        return place(pool, array)

    SlabPool.place = place_and_note  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    options = server_options()
    if options.copies is not None:
        note_copies(options.copies)
    service = ArrayService(name="echo")
    entries: dict[str, dict[str, Any]] = {f"pass{number}": {} for number in range(options.ops)}
    service.prepare_pipeline_config(yml_dict=options.config(entries))
    service.run_service()
