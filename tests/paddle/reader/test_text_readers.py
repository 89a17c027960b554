"""Text to numbers: BERT's word pieces, reviews, tagged Chinese, words of sentiment."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_serving_app.reader import ChineseBertReader, IMDBDataset, LACReader, SentaReader
from paddle_serving_app.reader.batching import pad_batch_data
from paddle_serving_app.reader.tokenization import FullTokenizer, load_vocab, pieces, words

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, "un", "##aff", "##able", "i", "am", "天", "地", "!", "e"]


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "vocab.txt", VOCABULARY)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  I am\tUNAFFABLE! \n", ["i", "am", "unaffable", "!"]),
        ("天地玄黄", ["天", "地", "玄", "黄"]),
        ("\U00020000a漢", ["\U00020000", "a", "漢"]),
        ("カタカナ 한국", ["カタカナ", "한국"]),  # decomposed below
        ("naïve—Ångström", ["naive", "—", "angstrom"]),
        ("a^b$c`d_e", ["a", "^", "b", "$", "c", "`", "d", "_", "e"]),
        ("1€2", ["1€2"]),  # a symbol outside of ASCII
        ("a\x00b\ufffdc\u200dd", ["abcd"]),
        ("a\u3000b\u00a0c\u2028d", ["a", "b", "c", "d"]),
    ],
)
def test_text_is_split_at_spaces_punctuation_and_chinese_characters(
    text: str, expected: list[str]
) -> None:
    # The tokenizer decomposes letters with accents, and hangul into their letters.
    assert words(text) == [unicodedata.normalize("NFD", word) for word in expected]


def test_case_and_accents_are_kept_without_lower() -> None:
    assert words("Été.", lower=False) == ["Été", "."]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("unaffable", ["un", "##aff", "##able"]),  # the example of BERT's tokenizer
        ("un", ["un"]),
        ("unable", ["un", "##able"]),
        ("unhappy", ["[UNK]"]),
        ("able", ["[UNK]"]),
    ],
)
def test_words_are_split_into_the_longest_pieces(word: str, expected: list[str]) -> None:
    assert pieces(word, dict.fromkeys(VOCABULARY, 0)) == expected


def test_words_of_more_than_a_hundred_letters_are_unknown() -> None:
    vocabulary = {"e": 0, "##e": 1}
    assert pieces("e" * 100, vocabulary) == ["e"] + ["##e"] * 99
    assert pieces("e" * 101, vocabulary) == ["[UNK]"]


@given(st.text(alphabet="abc", min_size=1, max_size=12), st.sets(st.text("abc", min_size=1)))
def test_joined_pieces_are_the_word(word: str, known: set[str]) -> None:
    vocabulary = dict.fromkeys([*known, *(f"##{piece}" for piece in known)], 0)
    found = pieces(word, vocabulary)
    if found != ["[UNK]"]:
        assert "".join(piece.removeprefix("##") for piece in found) == word
        assert all(piece in vocabulary for piece in found)


def test_a_sentence_is_converted_to_berts_inputs(vocabulary: Path) -> None:
    reader = ChineseBertReader({"vocab_file": str(vocabulary), "max_seq_len": 8})
    expected = {
        "input_ids": [2, 8, 9, 5, 6, 7, 0, 0],
        "position_ids": [0, 1, 2, 3, 4, 5, 0, 0],
        "segment_ids": [0] * 8,
        "input_mask": [1, 1, 1, 1, 1, 1, 0, 0],
    }
    assert reader.process("I am unaffable") == expected
    assert reader.process(b"I am unaffable") == expected
    # Six pieces at most; no [SEP], and the last place is never used.
    long = reader.process("天地!" * 9)
    assert long["input_ids"] == [2, 10, 11, 12, 10, 11, 12, 0]
    assert reader.process("e" * 3 + " e")["input_ids"][:3] == [2, 1, 13]
    assert reader.process(b"e\xff\xc3")["input_ids"][:2] == [2, 13]
    reader.set_feed_keys(["a", "b", "c", "d"])
    assert list(reader.process("")) == reader.get_feed_keys() == ["a", "b", "c", "d"]
    assert len(ChineseBertReader({"vocab_file": vocabulary}).process("")["input_ids"]) == 20


def test_all_inputs_but_the_mask_are_padded_with_the_number_of_pad(tmp_path: Path) -> None:
    numbered = [f"{token}\t{number + 5}" for number, token in enumerate(SPECIAL)]
    path = write_lines(tmp_path / "vocab.txt", [*numbered, "e\t77", "i\t1\t2", "am\t3"])
    # A line with two tabs ends the vocabulary.
    assert load_vocab(path) == {**{t: n + 5 for n, t in enumerate(SPECIAL)}, "e": 77}
    reader = ChineseBertReader({"vocab_file": path, "max_seq_len": 4})
    assert reader.process("e") == {
        "input_ids": [7, 77, 5, 5],
        "position_ids": [0, 1, 5, 5],
        "segment_ids": [0, 0, 5, 5],
        "input_mask": [1, 1, 0, 0],
    }


def test_sequences_are_padded() -> None:
    padded, mask = pad_batch_data([[7], [], [8, 9]], 5, max_seq_len=3, return_input_mask=True)
    assert (padded.dtype, padded.shape) == (np.int64, (3, 3, 1))
    assert padded[..., 0].tolist() == [[7, 5, 5], [5, 5, 5], [8, 9, 5]]
    assert mask[..., 0].tolist() == [[1, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert np.array_equal(pad_batch_data([[7]]), [[[7]] + [[0]] * 127])
    with pytest.raises(ValueError, match=r"pad_batch_data\(1\) got a sequence of 2"):
        pad_batch_data([[1, 2]], max_seq_len=1)


def test_tokens_are_converted_to_numbers_and_back(vocabulary: Path) -> None:
    tokenizer = FullTokenizer(vocabulary)
    numbers = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("i am 天"))
    assert tokenizer.convert_ids_to_tokens(numbers) == ["i", "am", "天"]
    with pytest.raises(ValueError, match="no token 'x'"):
        tokenizer.convert_tokens_to_ids(["x"])
    with pytest.raises(ValueError, match="no number 99"):
        tokenizer.convert_ids_to_tokens([99])


def test_the_usual_vocabulary_is_in_the_working_directory(
    vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(vocabulary.parent)
    expected = ChineseBertReader({"vocab_file": vocabulary, "max_seq_len": 8}).process("e")
    assert ChineseBertReader({"max_seq_len": 8}).process("e") == expected


def test_a_missing_or_invalid_vocabulary_is_an_error(
    vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"ChineseBertReader downloads no vocabulary.*vocab_file"):
        ChineseBertReader()
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        ChineseBertReader({"vocab_file": "none.txt"})
    with pytest.raises(ValueError, match=r"no token '\[PAD\]'"):
        ChineseBertReader({"vocab_file": write_lines(tmp_path / "v", ["a"])})
    with pytest.raises(ValueError, match="max_seq_len from 2, got 1"):
        ChineseBertReader({"vocab_file": vocabulary, "max_seq_len": 1})
    with pytest.raises(TypeError, match="takes text or bytes, got int"):
        ChineseBertReader({"vocab_file": vocabulary}).process(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("review", "expected"),
    [
        ("A good film", [0, 1, 2]),
        ("Good, good... (film)!", [1, 3, 1, 4, 4, 4, 9, 2, 9, 9]),
        ("film<br />a  good\tA", [2, 0, 1, 9, 0]),  # a tab counts as a word, a space does not
        ("", []),
    ],
)
def test_a_review_is_converted_to_numbers(tmp_path: Path, review: str, expected: list[int]) -> None:
    reader = IMDBDataset()
    reader.load_resource(write_lines(tmp_path / "v", ["a", "good", "film", ",", ".", *"vwxy"]))
    assert reader.get_words_only(review) == expected
    assert reader.get_words_and_label(f"{review} | 1") == (expected, [1])
    assert reader.get_words_and_label(f"{review} || 0\n")[1] == [0]


def test_reviews_need_a_vocabulary_and_labels(tmp_path: Path) -> None:
    reader = IMDBDataset()
    with pytest.raises(ValueError, match="call load_resource first"):
        reader.get_words_only("a")
    with pytest.raises(FileNotFoundError, match="none"):
        reader.load_resource(tmp_path / "none")
    with pytest.raises(ValueError, match="has no word"):
        reader.load_resource(write_lines(tmp_path / "v", []))
    reader.load_resource(write_lines(tmp_path / "v", ["a"]))
    with pytest.raises(ValueError, match=r"takes 'review \| label', got 'a 1'"):
        reader.get_words_and_label("a 1")


def test_words_are_converted_to_numbers_by_the_senta_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SentaReader(write_lines(tmp_path / "v.txt", ["好\t3", "坏\t9", "7"]))
    assert reader.word_dict == {"好": 3, "坏": 9, "": 7, "<unk>": 3}
    assert reader.process(["好", "坏", "", "?"]) == [3, 9, 7, 4]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"SentaReader downloads no .*senta_vocab.txt"):
        SentaReader()
    write_lines(tmp_path / "senta_vocab.txt", ["a\t0"])
    assert SentaReader().process(["a"]) == [0]
    with pytest.raises(ValueError, match=r"SentaReader: .*v2 has a line without number: 'a\\n'"):
        SentaReader(write_lines(tmp_path / "v2", ["a"]))


@pytest.fixture
def lac_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "lac_dict"
    folder.mkdir()
    write_lines(folder / "word.dic", ["0\tOOV", "1\t天", "2\t地", "neither", "5\tA"])
    write_lines(folder / "tag.dic", ["0\tn-B", "1\tn-I", "2\tv-B", "3\tO"])
    write_lines(folder / "q2b.dic", ["Ａ\tA"])
    return folder


def test_the_lac_reader_converts_characters_and_joins_words_by_tags(
    lac_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = LACReader(lac_folder)
    assert (reader.vocab_size, reader.num_labels) == (6, 4)
    assert reader.process(" 天Ａ地?\n") == [1, 5, 2, 0]
    assert reader.label_to_ids(["v-B", "other"]) == [2, 3]
    assert reader.parse_result("天地玄黄", [[0], [1], [2], [1]]) == ["天地", "玄黄"]
    # Tags of O begin a word after another tag, and go on with it after each other. The original
    # fails at the first that is not among the first two characters.
    assert reader.parse_result("天地玄黄", [[0], [3], [3], [0]]) == ["天", "地玄", "黄"]
    assert reader.parse_result("地", [[1]]) == ["地"]
    assert reader.parse_result("", []) == []
    monkeypatch.chdir(tmp_path)
    assert LACReader().process("天") == [1]


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("word.dic", "7\t天", "word.dic has '天' twice"),
        ("tag.dic", "0\tx", "tag.dic has '0' twice"),
        ("word.dic", "x\ty", "word.dic: invalid literal"),
    ],
)
def test_invalid_dictionaries_are_refused(
    lac_folder: Path, file: str, line: str, message: str
) -> None:
    with open(lac_folder / file, "a", encoding="utf-8") as lines:
        lines.write(f"{line}\n")
    with pytest.raises(ValueError, match=rf"LACReader: .*{message}"):
        LACReader(lac_folder)


def test_invalid_tags_are_refused(lac_folder: Path, tmp_path: Path) -> None:
    reader = LACReader(str(lac_folder))
    with pytest.raises(ValueError, match=r"tag\.dic has no number '9'"):
        reader.parse_result("天", [[9]])
    with pytest.raises(ValueError, match="got 2 tags for 1 characters"):
        reader.parse_result("天", [[0], [0]])
    with pytest.raises(FileNotFoundError, match=r"LACReader downloads no dictionaries.*none"):
        LACReader(tmp_path / "none")
    write_lines(lac_folder / "word.dic", ["1\t天"])
    with pytest.raises(ValueError, match="neither '地' nor 'OOV'"):
        LACReader(lac_folder).process("地")
