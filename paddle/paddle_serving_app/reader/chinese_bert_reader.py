"""Converts sentences to the inputs of BERT."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from paddle_serving_app.reader.bert_base_reader import BertBaseReader
from paddle_serving_app.reader.tokenization import FullTokenizer

_USUAL: Final = "vocab.txt"


class ChineseBertReader(BertBaseReader):
    """Converts sentences to the four inputs of BERT.

    Args:
        args: ``vocab_file``, the path of the model's vocabulary, by default ``vocab.txt`` in the
            working directory; ``max_seq_len``, the length of the inputs, by default 20.

    Raises:
        OSError: the vocabulary cannot be read.
        ValueError: there is no vocabulary (the original downloads one), a length below 2, or the
            vocabulary lacks ``[PAD]``, ``[CLS]``, ``[SEP]`` or ``[MASK]``.
    """

    def __init__(self, args: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        options = args or {}
        vocabulary = options.get("vocab_file", _USUAL)
        if "vocab_file" not in options and not Path(_USUAL).exists():
            raise ValueError(
                f"ChineseBertReader downloads no vocabulary: put the model's as {_USUAL} into the"
                f" working directory, or give its path, {{'vocab_file': 'path/{_USUAL}'}}"
            )
        self.tokenizer = FullTokenizer(vocab_file=vocabulary)
        self.max_seq_len = int(options.get("max_seq_len", 20))
        if self.max_seq_len < 2:
            raise ValueError(f"ChineseBertReader takes max_seq_len from 2, got {self.max_seq_len}")
        self.vocab = self.tokenizer.vocab
        self.pad_id, self.cls_id, self.sep_id, self.mask_id = self.tokenizer.convert_tokens_to_ids(
            ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
        )
        self.feed_keys = ["input_ids", "position_ids", "segment_ids", "input_mask"]

    def process(self, line: str | bytes) -> dict[str, list[int]]:
        """Return the inputs of one sentence, padded to ``max_seq_len``.

        The ids are those of ``[CLS]`` and of at most ``max_seq_len`` - 2 word pieces, without
        ``[SEP]``, as in the original. Positions count from 0, segments are 0, the mask is 1. The
        padding is the id of ``[PAD]`` in the first three inputs and 0 in the mask.

        Args:
            line: text, or UTF-8 bytes.

        Returns:
            ``input_ids``, ``position_ids``, ``segment_ids`` and ``input_mask``, under the names
            that ``set_feed_keys`` set.

        Raises:
            TypeError: ``line`` is neither text nor bytes.
            ValueError: a word piece is unknown, and the vocabulary has no ``[UNK]``.
        """
        tokens = self.tokenizer.tokenize(line)[: self.max_seq_len - 2]
        ids = self.tokenizer.convert_tokens_to_ids(["[CLS]", *tokens])
        missing = self.max_seq_len - len(ids)
        padding = [self.pad_id] * missing
        inputs = (
            ids + padding,
            list(range(len(ids))) + padding,
            [0] * len(ids) + padding,
            [1] * len(ids) + [0] * missing,
        )
        return dict(zip(self.feed_keys, inputs, strict=True))
