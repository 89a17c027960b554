"""The configuration of Paddle Serving's C++ SDK, ``predictors.prototxt``."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import Service, VariantConf
from penstock.client.predictors import Split, parse_predictors, parse_replicas
from penstock.errors import ModelError

ORIGINAL = (Path(__file__).parents[1] / "kit/predictors.prototxt").read_text()


def test_the_originals_file_is_read_with_all_that_it_says() -> None:
    found = parse_predictors(ORIGINAL)
    assert found.warnings == ()
    (predictor,) = found.predictors
    assert predictor.name == "general_model"
    assert predictor.service_name.endswith(".GeneralModelService")
    assert [(v.tag, v.cluster, v.weight) for v in predictor.variants] == [
        ("var1", ["127.0.0.1:9292"], 75),
        ("var2", ["127.0.0.1:9293"], 25),
    ]
    assert {v.conf for v in predictor.variants} == {
        VariantConf(protocol="baidu_std", rpc_timeout_ms=20_000)
    }


def edited(old: str, new: str) -> str:
    assert old in ORIGINAL
    return ORIGINAL.replace(old, new, 1)


def test_a_variant_has_the_default_conf_but_for_what_it_says_itself() -> None:
    text = edited('tag: "var2"', 'tag: "var2" connection_conf { rpc_timeout_ms: 500 }')
    text = text.replace("hedge_request_timeout_ms: -1", "hedge_request_timeout_ms: 30")
    one, two = parse_predictors(text).predictors[0].variants
    assert (one.conf.rpc_timeout_ms, two.conf.rpc_timeout_ms) == (20_000, 500)
    assert one.conf.hedge_request_timeout_ms == two.conf.hedge_request_timeout_ms == 30


def test_a_split_and_the_tags_of_servers_are_read() -> None:
    split = 'split_conf { split_tag_name: "site" tag_candidates: "a,b" } naming_conf {'
    text = edited("naming_conf {\n      cluster", f"{split}\n      cluster").replace(
        "list://127.0.0.1:9292", "list://127.0.0.1:9292 site:a, 127.0.0.1:9294 site:b"
    )
    one, two = parse_predictors(text).predictors[0].variants
    assert one.split == Split(split_tag_name="site", tag_candidates=("a", "b"))
    assert two.split is None
    assert [each.tags for each in parse_replicas(one.cluster)] == [{"site": "a"}, {"site": "b"}]


def test_fields_without_effect_are_named_with_their_lines_if_they_were_changed() -> None:
    text = edited('connection_type: "pooled"', 'connection_type: "short"')
    line = text.splitlines().index('    connection_type: "short"') + 1
    (warning,) = parse_predictors(text, "p").warnings
    assert warning == (
        f"p:{line}: connection_type has no effect: the calls to a server share one connection"
    )


WRONG = [
    ("rpc_timeout_ms: 20000", "rpc_time: 1", r'p:\d+: .*"rpc_time"'),
    ("rpc_timeout_ms: 20000", 'rpc_timeout_ms: "x"', r"p:\d+: "),
    ("}", "", "p"),
    ('"75|25"', '"75"', "1 weights for 2 variants"),
    ('"75|25"', '"a|25"', "numbers with | between them"),
    ('"75|25"', '"0|0"', "no weight above 0"),
    ('"la"', '"fastest"', "load_balance_strategy is one of"),
    ('"baidu_std"', '"thrift"', "protocol is one of"),
    ("compress_type: 0", "compress_type: 9", "compress_type is 0 to 4"),
    ("list://127.0.0.1:9292", "bns://node", "cluster is list://"),
    ("list://127.0.0.1:9292", "list://", "needs a cluster"),
    ("list://127.0.0.1:9292", "list://nowhere", "must be host:port"),
    ("list://127.0.0.1:9292", "list://127.0.0.1:1 a", "tags of a server"),
    ('"var2"', '"var1"', "two variants have the tag 'var1'"),
    ('"WeightedRandomRender"', '"Other"', "endpoint_router is WeightedRandomRender"),
    ("predictors {", "default_variant_conf {", "has no predictors"),
    ("connect_timeout_ms: 2000", "connect_timeout_ms: 0", "connect_timeout_ms must be above 0"),
    (
        "compress_type: 0",
        "compress_type: 4",
        "p:23: predictor 'general_model': variant 'var1': .*lz4",
    ),
    ("rpc_timeout_ms: 20000", "rpc_timeout_ms: ${TIMEOUT}", r"p:\d+: "),
    ("rpc_timeout_ms: 20000", "rpc_timeout_ms: 20s", r"p:\d+: "),
    ("rpc_timeout_ms: 20000", "rpc_timeout_ms: 99999999999", r"p:\d+: .*out of range"),
    ("list://127.0.0.1:9292", "list://127.0.0.1:929292", "must be host:port"),
]


@pytest.mark.parametrize(("old", "new", "error"), WRONG, ids=range(len(WRONG)))
def test_what_is_not_supported_is_refused_by_name(
    old: str, new: str, error: str, tmp_path: Path
) -> None:
    file = tmp_path / "p"
    text = edited(old, new)
    if old == "predictors {":  # the default, instead of the predictors
        text = ORIGINAL[: ORIGINAL.index("predictors {")]
    file.write_text(text)
    with pytest.raises(ModelError, match=error):
        Service.read(file)


LINES = [
    ('"la"', '"wrr"', '"wrr"', "load_balance_strategy is one of"),
    ('"baidu_std"', '"thrift"', '"thrift"', "protocol is one of"),
    ("connect_retry_count: 2", "connect_retry_count: -1", "-1", "must not be negative"),
    ("list://127.0.0.1:9293", "bns://node", "bns://", "variant 'var2': cluster is list"),
    ("list://127.0.0.1:9293", "list://nowhere", "list://nowhere", "must be host:port"),
    ('cluster: "list://127.0.0.1:9293"', "", '"var2"', "needs a cluster"),
    ('"75|25"', '"75"', '"75"', "1 weights for 2 variants"),
    ('"75|25"', '"0|0"', '"0|0"', "no weight above 0"),
    ('"WeightedRandomRender"', '"Other"', '"Other"', "endpoint_router is"),
    ('"var2"', '"var1" # again', "# again", "two variants have the tag"),
    (
        'tag: "var2"',
        'tag: "var2" rpc_parameter < protocol: "x" >',
        '"x"',
        "variant 'var2': protocol",
    ),
]


@pytest.mark.parametrize(("old", "new", "there", "error"), LINES, ids=range(len(LINES)))
@pytest.mark.parametrize("shape", ["blocks", "a list"])
def test_a_value_that_is_refused_is_named_with_its_line(
    old: str, new: str, there: str, error: str, shape: str
) -> None:
    text = edited(old, new)
    if shape == "a list":
        text = text.replace("variants {", "variants: [ {", 1).replace("  variants {", "  , {")
        text = text.rstrip()[:-1] + "] }"
    number = next(at for at, line in enumerate(text.splitlines(), start=1) if there in line)
    number -= there == '"var2"'  # what is missing has its variant's line
    with pytest.raises(ModelError, match=rf"^p:{number}: predictor 'general_model': .*{error}"):
        parse_predictors(text, "p")


def test_a_token_is_for_every_endpoint_of_the_file_and_baidu_std_has_no_place_for_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "predictors.prototxt"
    file.write_text(ORIGINAL)
    where = f"{file}:23: predictor 'general_model': variant 'var1': a token is for gRPC"
    with pytest.raises(ModelError, match=where):
        Service.read(tmp_path, token="secret-of-mine")
    file.write_text(edited('"baidu_std"', '"h2:grpc"'))
    with Service.read(file, token="secret-of-mine") as service:
        assert [*service] == ["general_model"]
    with pytest.raises(ValueError, match="ASCII without spaces") as failed:
        Service.read(file, token="secret of mine")
    assert "secret" not in str(failed.value)
    with pytest.raises(ValueError, match="hedge_budget"):
        Service.read(file, hedge_budget=2)


PIECES = st.sampled_from(
    [*re.findall(r'"[^"]*"|[\w.-]+|[{}:]', ORIGINAL), "", "\n", "#", "'", "${X}", "99999999999",
     "list://", "a:1 b:c", "1e9", "\xff"]
)  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 200), PIECES), min_size=1, max_size=6))
def test_a_file_with_nonsense_is_read_or_refused_as_such(edits: list[tuple[int, str]]) -> None:
    words = re.findall(r'"[^"]*"|[\w.-]+|[{}:]', ORIGINAL)
    for at, word in edits:
        words[at % len(words)] = word
    with suppress(ModelError):
        parse_predictors(" ".join(words))


def test_two_predictors_of_one_name_are_refused() -> None:
    twice = ORIGINAL + ORIGINAL[ORIGINAL.index("predictors {") :]
    line = twice.count("\n", 0, twice.rindex("\n  name: ")) + 2
    with pytest.raises(ModelError, match=rf":{line}: .*another one of this name"):
        parse_predictors(twice)
