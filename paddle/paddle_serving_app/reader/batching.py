"""Pads sequences of ids to one length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pad_batch_data(
    insts: Sequence[Sequence[int]],
    pad_idx: int = 0,
    max_seq_len: int = 128,
    return_input_mask: bool = False,
) -> NDArray[np.int64] | list[NDArray[np.int64]]:
    """Pad sequences to one length.

    Args:
        insts: the sequences.
        pad_idx: the padding value.
        max_seq_len: the length after padding.
        return_input_mask: also return a mask.

    Returns:
        ``[sequences, max_seq_len, 1]``; with a mask, a list of this array and the mask of the same
        shape: 1 for values of the sequence, 0 for padding.

    Raises:
        ValueError: a sequence is longer than ``max_seq_len``.
    """
    lengths = [len(sequence) for sequence in insts]
    if max(lengths, default=0) > max_seq_len:
        raise ValueError(f"pad_batch_data({max_seq_len}) got a sequence of {max(lengths)}")
    padded = np.full((len(insts), max_seq_len, 1), pad_idx, dtype=np.int64)
    mask = np.zeros_like(padded)
    for row, (sequence, length) in enumerate(zip(insts, lengths, strict=True)):
        padded[row, :length, 0] = sequence
        mask[row, :length] = 1
    return [padded, mask] if return_input_mask else padded
