from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ModelError
from penstock.runtimes.prototxt import Variable, format_model_conf, parse_model_conf

HOUSING = """\
feed_var {
  name: "x"
  alias_name: "features"
  is_lod_tensor: false
  feed_type: 1
  shape: 13
}
fetch_var {
  name: "fc_0.tmp_1"
  alias_name: "price"
  is_lod_tensor: false
  fetch_type: 1
  shape: 1
}
"""


def test_a_published_configuration_is_parsed() -> None:
    conf = parse_model_conf(HOUSING)
    assert conf.feeds == (Variable(name="x", alias="features", type=1, shape=(13,)),)
    assert conf.fetches == (Variable(name="fc_0.tmp_1", alias="price", type=1, shape=(1,)),)


def test_a_parsed_configuration_is_written_as_published() -> None:
    text, stream = format_model_conf(parse_model_conf(HOUSING))
    assert text == HOUSING
    feed = b"\x0a\x01x\x12\x08features\x18\x00\x20\x01\x28\x0d"
    fetch = b"\x0a\x0afc_0.tmp_1\x12\x05price\x18\x00\x20\x01\x28\x01"
    assert stream == b"\x0a%c%b\x12%c%b" % (len(feed), feed, len(fetch), fetch)


def test_defaults_are_those_of_the_message() -> None:
    (one,) = parse_model_conf('feed_var { name: "x" }').feeds
    assert one == Variable(name="x", alias="x", is_lod=False, type=0, shape=())


@pytest.mark.parametrize(
    "text",
    [
        "feed_var { name: 'w' is_lod_tensor: true shape: -1 shape: 3 }",
        "feed_var: { name: 'w', is_lod_tensor: true, shape: [-1, 3] };",
        "feed_var <name:'w'is_lod_tensor:t shape:-1;shape:3>",
        'feed_var{name:""\n"w"is_lod_tensor:1#x\nshape:[-1]shape:0x3}',
        r"feed_var { name: '\x77' is_lod_tensor: True shape: -01 shape: 03 }",
        "feed_var { name: 'w' alias_name: '' is_lod_tensor: true shape: [] shape: [-1, 3] }",
    ],
)
def test_all_variants_of_the_text_format_are_parsed(text: str) -> None:
    (one,) = parse_model_conf(text).feeds
    assert one == Variable(name="w", alias="w", is_lod=True, type=0, shape=(-1, 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("feed_var {\n nmae: 'x' }", ':2: .* has no field named "nmae"'),
        ("\nfeed_vars { }", ':2: .* has no field named "feed_vars"'),
        ("feed_var { fetch_type: 1 }", ':1: .* has no field named "fetch_type"'),
        ("feed_var {\n name: 'x'\n", ':2: Expected "}"'),
        ("feed_var { name: 'x' name: 'y' }", 'should not have multiple "name" fields'),
        (r"feed_var { name: '\377' }", "'utf-8' codec can't decode"),
        ("feed_var { name: 'x' shape: 4294967296 }", "Value out of range"),
        (f"feed_var {{ name: 'x' shape: {'9' * 10_000} }}", ":1: "),
        ("feed_var { name: 'x' } \x00", ":1: "),
        ("feed_var { alias_name: 'x' }", ": a variable without a name"),
    ],
)
def test_an_error_has_the_file_and_the_line_or_variable(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        parse_model_conf(text, "serving_server_conf.prototxt")
    assert str(caught.value).startswith("serving_server_conf.prototxt")
    assert len(str(caught.value)) < 400


@given(st.text(alphabet="feed_varname:'\"{}<>[],;#\\ \n0123-x", max_size=80))
def test_any_text_is_parsed_or_raises_model_error(text: str) -> None:
    with suppress(ModelError):
        parse_model_conf(text)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_any_name_written_with_octal_escapes_is_read_back(name: str) -> None:
    written = "".join(f"\\{byte:03o}" for byte in name.encode())
    assert parse_model_conf(f'feed_var {{ name: "{written}" }}').feeds[0].name == name
