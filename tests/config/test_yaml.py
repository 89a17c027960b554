import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.yaml import MAX_BYTES, MAX_DEPTH, MAX_VALUES, Document, read_file, read_text
from penstock.errors import ConfigError


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_text(text, "config.yml")
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("True", True),
        ("false", False),
        ("yes", "yes"),
        ("on", "on"),
        ("0", 0),
        ("-12", -12),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("1.5", 1.5),
        ("-.5", -0.5),
        ("1e3", 1000.0),
        (".inf", float("inf")),
        ("-.Inf", float("-inf")),
        ("'0'", "0"),
        ('"0"', "0"),
        ("0,1", "0,1"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("!!str 0", "0"),
        ("!!int 5", 5),
        ("9" * 301, "9" * 301),
        ("[a, 1, [b]]", ["a", 1, ["b"]]),
        ("{a: {b: }}", {"a": {"b": None}}),
        ("|\n  two\n  lines", "two\nlines\n"),
    ],
)
def test_a_value_is_parsed_by_the_core_schema(text: str, value: Any) -> None:
    read = read_text(f"key: {text}\n").data["key"]
    assert read == value
    assert type(read) is type(value)


def test_every_key_and_list_item_has_its_line() -> None:
    document = read_text("a:\n  b: 1\n  c:\n    - x\n    - y\n\n# note\nd: {e: 2}\n")
    assert document.data == {"a": {"b": 1, "c": ["x", "y"]}, "d": {"e": 2}}
    assert document.lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
        ("d",): 8,
        ("d", "e"): 8,
    }


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n", "{}", "\ufeff"])
def test_an_empty_text_is_an_empty_mapping(text: str) -> None:
    assert read_text(text).data == {}


def test_a_key_given_twice_is_a_problem_with_both_lines() -> None:
    problems = read_text("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\na: 4\n").problems
    assert [(each.path, each.line, each.text) for each in problems] == [
        (("b", "c"), 5, "is given twice, first on line 3"),
        (("a",), 6, "is given twice, first on line 1"),
    ]


@pytest.mark.parametrize("key", ["1", "true", "~", "1.5", ""])
def test_a_key_that_is_not_text_is_a_problem(key: str) -> None:
    problems = read_text(f"op:\n  {key}: {{}}\n").problems
    assert [(each.line, "is not text: put it in quotes" in each.text) for each in problems] == [
        (2, True)
    ]
    assert read_text(f"op:\n  '{key}': {{}}\n").problems == ()


def test_an_alias_repeats_the_value_of_its_anchor() -> None:
    document = read_text("a: &x {k: [1]}\nb: *x\nc: &y text\nd: *y\n")
    assert document.data == {"a": {"k": [1]}, "b": {"k": [1]}, "c": "text", "d": "text"}


def test_written_keys_override_merged_ones() -> None:
    text = "base: &b {k: 1, l: 2}\nmore: &m {l: 3, n: 4}\nop:\n  l: 9\n  <<: [*b, *m]\n"
    document = read_text(text)
    assert document.data["op"] == {"l": 9, "k": 1, "n": 4}
    assert document.lines[("op", "k")] == 5
    assert read_text('"<<": 1').data == {"<<": 1}
    assert "<< must be given mappings" in refusal("a: 1\n<<: 5\n")


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a: [1\nb: 2\n", "config.yml:2:", "not valid YAML"),
        ("a: b: c\n", "config.yml:1:", "not valid YAML"),
        ("- 1\n- 2\n", "config.yml:1:", "top of the file must be a mapping"),
        ("text", "config.yml:1:", "top of the file must be a mapping"),
        ("a: 1\n---\nb: 2\n", "config.yml:2:", "expected a single document"),
        ("a: *x\n", "config.yml:1:", "undefined alias 'x'"),
        ("a: &x [*x]\n", "config.yml:1:", "nested deeper"),
        ("? [a]\n: 1\n", "config.yml:1:", "a key must be plain text"),
        ("a: 1\nb: !!python/object/apply:os.system [ls]\n", "config.yml:2:", "tag"),
        ("b: !include x.yml\n", "config.yml:1:", "tag !include is not known"),
        ("b: !!int x\n", "config.yml:1:", "tag"),
        ("b: !!binary aGk=\n", "config.yml:1:", "tag"),
        ("b: !!set {a, b}\n", "config.yml:1:", "tag"),
        ('a: "\\UFFFFFFFF"\n', "config.yml:", "not valid YAML"),
        ("a: \x00\n", "config.yml:", "not valid YAML"),
        ("[" * 5000, "config.yml:", "nested deeper"),
        ("a: " + "[" * 5000, "config.yml:", "nested deeper"),
    ],
)
def test_an_invalid_text_is_refused_with_its_line(text: str, where: str, what: str) -> None:
    problem = refusal(text)
    assert problem.startswith(where)
    assert what in problem


def test_the_deepest_allowed_nesting_is_read() -> None:
    inner = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert read_text(f"a: {inner}").data["a"] != []
    assert "nested deeper" in refusal(f"a: [{'[' * MAX_DEPTH}{']' * MAX_DEPTH}]")


def test_aliases_cannot_expand_a_small_text_without_limit() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    before = time.process_time()
    assert f"more than {MAX_VALUES} values" in refusal("\n".join(lines))
    assert time.process_time() - before < 5


def test_a_text_over_the_size_limit_is_refused() -> None:
    assert "is larger than" in refusal("#" * (MAX_BYTES + 1))


def test_a_file_is_utf_8_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_bytes("\ufeffname: größe\n".encode())
    assert read_text(read_file(path)).data == {"name": "größe"}


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"a: 1\nb: \xff\n", ":2: is not UTF-8"), (b"#" * (MAX_BYTES + 1), "is larger than")],
)
def test_a_file_that_is_not_utf_8_or_too_large_is_refused(
    tmp_path: Path, content: bytes, what: str
) -> None:
    path = tmp_path / "config.yml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=what):
        read_file(path)


@pytest.mark.parametrize("name", ["absent.yml", ".", "a\0b"])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(tmp_path / name)


YAML_PIECES = st.sampled_from(
    [
        *("a", "b", ": ", "\n", "  ", "- ", "[", "]", "{", "}", ",", "&x ", "*x", "<<", "!!", "!"),
        *("%YAML 1.1", "%YAML 9.9", "%TAG ! x", "---", "...", "'", '"', "|", ">", "? ", "#", "\t"),
        *("\\x", "\\U1", "0", "~", "\ufeff", "\x85"),
    ]
)


def read_or_refused(text: str) -> Document | ConfigError:
    try:
        return read_text(text)
    except ConfigError as error:
        return error


@given(st.text(max_size=60) | st.lists(YAML_PIECES, max_size=20).map("".join))
def test_any_text_is_a_document_or_a_config_error(text: str) -> None:
    result = read_or_refused(text)
    if isinstance(result, ConfigError):
        assert len(result.problems) == 1
        assert "\n" not in result.problems[0]
    else:
        assert isinstance(result.data, dict)
