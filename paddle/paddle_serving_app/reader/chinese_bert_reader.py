"""Sentences to what BERT takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddle_serving_app.reader.bert_base_reader import BertBaseReader
from paddle_serving_app.reader.tokenization import FullTokenizer


class ChineseBertReader(BertBaseReader):
    """Sentences to the four inputs of BERT.

    Args:
        args: ``vocab_file``, the path of the model's vocabulary; ``max_seq_len``, the length of the
            inputs, 20 unless given.

    Raises:
        OSError: the vocabulary cannot be read.
        ValueError: no ``vocab_file`` (the original downloads one), a length below 2, or the
            vocabulary lacks ``[PAD]``, ``[CLS]``, ``[SEP]`` or ``[MASK]``.
    """

    def __init__(self, args: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        options = args or {}
        if "vocab_file" not in options:
            raise ValueError(
                "ChineseBertReader downloads no vocabulary:"
                " give the path of the model's, {'vocab_file': 'vocab.txt'}"
            )
        self.tokenizer = FullTokenizer(vocab_file=options["vocab_file"])
        self.max_seq_len = int(options.get("max_seq_len", 20))
        if self.max_seq_len < 2:
            raise ValueError(f"ChineseBertReader takes max_seq_len from 2, got {self.max_seq_len}")
        self.vocab = self.tokenizer.vocab
        self.pad_id, self.cls_id, self.sep_id, self.mask_id = self.tokenizer.convert_tokens_to_ids(
            ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
        )
        self.feed_keys = ["input_ids", "position_ids", "segment_ids", "input_mask"]

    def process(self, line: str | bytes) -> dict[str, list[int]]:
        """The inputs of one sentence.

        ``[CLS]`` and at most ``max_seq_len`` - 2 pieces, without ``[SEP]``, as the original has it;
        positions from 0, segments of 0, a mask of 1. Up to ``max_seq_len`` follow the number of
        ``[PAD]`` in the first three and 0 in the mask.

        Args:
            line: text, or bytes of UTF-8.

        Returns:
            ``input_ids``, ``position_ids``, ``segment_ids`` and ``input_mask``, or what
            ``set_feed_keys`` made of these names.

        Raises:
            TypeError: neither text nor bytes.
            ValueError: a piece is unknown, and the vocabulary has no ``[UNK]``.
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
