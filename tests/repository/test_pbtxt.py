"""``config.pbtxt``: what is read, refused and ignored, with its line."""

from __future__ import annotations

import pytest

from penstock.errors import ModelError
from penstock.repository.pbtxt import (
    Batching,
    Config,
    InstanceGroup,
    QueuePolicy,
    Step,
    Tensor,
    Warmup,
    WarmupInput,
    of_plain,
    parse,
)
from penstock.repository.policy import ALL, LATEST, VersionPolicy

WHOLE = """
# A comment { with: braces
name: "resnet"
platform: "onnxruntime_onnx"
max_batch_size: 16
default_model_filename: "resnet.onnx"
version_policy: { specific { versions: [ 3, 1 ] } }
input [
  {
    name: "x",
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 2, -1 ],
    reshape { shape: [ 6, -1 ] }
    is_shape_tensor: false
  }
]
output: [ { name: "y" data_type: TYPE_STRING dims: 1 } ]
instance_group [ { count: 2 kind: KIND_CPU }, { kind: KIND_GPU gpus: [ 0, 1 ] } ]
dynamic_batching {
  preferred_batch_size: [ 8, 4 ]
  max_queue_delay_microseconds: 100
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy {
    timeout_action: DELAY default_timeout_microseconds: 5000 max_queue_size: 7
  }
  priority_queue_policy { key: 1 value: { max_queue_size: 3 } }
}
parameters { key: "intra_op_thread_count" value: { string_value: "2" } }
parameters: { key: "brace" value { string_value: '{' } }
model_warmup <
  name: "two rows" batch_size: 2
  inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ 3, 2, 1 ] random_data: true } }
>
"""

READ = Config(
    name="resnet",
    backend="onnxruntime",
    max_batch_size=16,
    filename="resnet.onnx",
    policy=VersionPolicy(specific=("1", "3")),
    inputs=(Tensor(name="x", datatype="FP32", dims=(3, 2, -1), reshape=(6, -1)),),
    outputs=(Tensor(name="y", datatype="BYTES", dims=(1,)),),
    groups=(InstanceGroup(count=2, kind="cpu"), InstanceGroup(kind="gpu", gpus=(0, 1))),
    batching=Batching(
        preferred=(4, 8),
        delay=0.0001,
        levels=2,
        level=2,
        queue=QueuePolicy(timeout=0.005, action="delay", max_size=7),
        queues={1: QueuePolicy(max_size=3)},
    ),
    parameters={"intra_op_thread_count": "2", "brace": "{"},
    warmups=(
        Warmup(
            name="two rows",
            batch_size=2,
            count=1,
            inputs={"x": WarmupInput(datatype="FP32", dims=(3, 2, 1), data="random")},
        ),
    ),
)


def test_every_honoured_field_is_read() -> None:
    found = parse(WHOLE)
    assert found == READ
    assert found.warnings == ()


def test_plain_values_are_the_same_configuration() -> None:
    plain = parse(WHOLE).plain
    assert plain["input"][0]["dims"] == [3, 2, -1]
    assert of_plain(plain) == READ


def test_plain_values_may_be_in_camel_case() -> None:
    found = of_plain({"maxBatchSize": 4, "versionPolicy": {"latest": {"numVersions": 2}}})
    assert (found.max_batch_size, found.policy) == (4, VersionPolicy(latest=2))


def test_an_empty_file_leaves_everything_to_the_model() -> None:
    assert parse("") == Config()


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("version_policy { all { } }", ALL),
        ("version_policy: { all: {} }", ALL),
        ("version_policy { latest { num_versions: 2 } }", VersionPolicy(latest=2)),
        ("version_policy { latest { } }", LATEST),
        ("version_policy { }", LATEST),
        ("", None),
    ],
)
def test_version_policies(text: str, policy: VersionPolicy | None) -> None:
    assert parse(text).policy == policy


STEPS = """
max_batch_size: 8
platform: "ensemble"
input [ { name: "PIXELS" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 3 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "head"
      input_map { key: "embedding" value: "features" }
      output_map { key: "scores" value: "SCORES" }
    },
    {
      model_name: "encoder"
      model_version: %s
      input_map { key: "pixels" value: "PIXELS" }
      output_map { key: "features" value: "features" }
    }
  ]
}
"""


@pytest.mark.parametrize(("number", "version"), [("-1", None), ("0", None), ("3", "3")])
def test_the_steps_of_an_ensemble_are_in_the_order_in_which_they_run(
    number: str, version: str | None
) -> None:
    found = parse(STEPS % number)
    assert found.is_ensemble
    assert found.steps == (
        Step(
            model="encoder",
            version=version,
            inputs={"pixels": "PIXELS"},
            outputs={"features": "features"},
        ),
        Step(
            model="head",
            version=None,
            inputs={"embedding": "features"},
            outputs={"scores": "SCORES"},
        ),
    )


IN = 'input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }\n'
OUT = 'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }\n'


def ensemble(*steps: tuple[str, str]) -> str:
    made = [
        f'step {{ model_name: "m{index}" input_map {{ key: "a" value: "{takes}" }}'
        f' output_map {{ key: "b" value: "{gives}" }} }}\n'
        for index, (takes, gives) in enumerate(steps)
    ]
    return IN + OUT + "ensemble_scheduling {\n" + "".join(made) + "}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\nmax_batch: 3", "c:2: max_batch: is not a known field; did you mean max_batch_size?"),
        ("sequence_batching {\n direct { } }", "c:1: sequence_batching: sequences are not"),
        ("model_repository_agents { agents [ { name: 'a' } ] }", "c:1: model_repository_agents:"),
        ('model_operations { op_library_filename: "x" }', "c:1: model_operations: libraries of"),
        ("batch_input { kind: BATCH_ELEMENT_COUNT }", "c:1: batch_input: inputs that the batcher"),
        ("\nmodel_transaction_policy { decoupled: true }", "c:2: model_transaction_policy.decoupl"),
        ("input {\n allow_ragged_batch: true }", "c:2: input.allow_ragged_batch: ragged batches"),
        ("input {\n is_shape_tensor: true }", "c:2: input.is_shape_tensor: shape tensors are of"),
        ('max_batch_size: "4"', "c:1: "),
        ("max_batch_size: ${triton_max_batch_size}", "c:1: "),
        ("\nmax_batch_size 4", "c:2: "),
        ('name: "m', "c:1: "),
        ("max_batch_size: -1", "c:1: max_batch_size: must be 0 or more: -1"),
        ("input {\n data_type: TYPE_FP33 }", "c:2: "),
        (
            'input { name: "x"\n dims: [ 1 ] }',
            "c:1: input 'x': needs a data_type, such as TYPE_FP32",
        ),
        ("input { data_type: TYPE_FP32 dims: 1 }", "c:1: input '': needs a name"),
        (IN + IN, "c:1: two inputs are called 'x'"),
        (
            'input { name: "x" data_type: TYPE_FP32\n dims: [ 0 ] }',
            "c:2: input 'x': a dimension is",
        ),
        (
            'max_batch_size: 1\ninput { name: "x" data_type: TYPE_FP32 }',
            "c:2: input 'x': needs dims; [ 1 ] with `reshape { shape: [] }` is a number",
        ),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2 ] } }',
            "c:1: input 'x': reshape: [2] has not as many elements as [4]",
        ),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2, -1 ]'
            " reshape { shape: [ -1, -1, 2 ] } }",
            "c:1: input 'x': reshape: which dimensions of [-1, 2, -1] are those of [-1, -1, 2]",
        ),
        ("version_policy { specific { } }", "c:1: version_policy.specific: needs numbers"),
        ("instance_group { count: -1 }", "c:1: instance_group: count must be 1 or more: -1"),
        ("instance_group { kind: KIND_CPU gpus: 0 }", "c:1: instance_group: KIND_CPU has no gpus"),
        (
            "max_batch_size: 4\ndynamic_batching {\n preferred_batch_size: [ 4, 8 ] }",
            "c:3: dynamic_batching.preferred_batch_size: must be between 1 and max_batch_size,",
        ),
        (
            "dynamic_batching { priority_levels: 2\n }",
            "c:1: dynamic_batching.default_priority_level: must be between 1 and priority_levels",
        ),
        ('default_model_filename: "../x.onnx"', "c:1: default_model_filename: must be a path in"),
        ('default_model_filename: "/x.onnx"', "c:1: default_model_filename: must be a path in"),
        (
            'model_warmup { inputs { key: "x" value {'
            ' data_type: TYPE_FP32 input_data_file: "../x" } } }',
            "c:1: model_warmup '': input 'x': its file must be in the folder warmup: '../x'",
        ),
        ('platform: "ensemble"', "c:1: platform: an ensemble needs ensemble_scheduling"),
        (ensemble(), "c:3: ensemble_scheduling: needs a step"),
        (ensemble(("x", "z")), "c:2: ensemble_scheduling: nothing makes the output 'y'"),
        (ensemble(("z", "y")), "c:4: ensemble_scheduling: nothing makes 'z', which step 1 (m0)"),
        (ensemble(("x", "y"), ("x", "y")), "c:4: ensemble_scheduling: step 2 (m1) makes 'y', as"),
        (
            ensemble(("z", "y"), ("y", "z")),
            "c:4: ensemble_scheduling: these steps wait for each other: m0, m1",
        ),
    ],
)
def test_what_is_not_supported_or_wrong_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(ModelError) as raised:
        parse(text, "c")
    assert any(line.startswith(problem) for line in str(raised.value).splitlines())


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ModelError) as raised:
        parse("title: 'm'\nsequence_batching { }\nmax_batch_size: -1", "c")
    assert [each.split(":")[1] for each in str(raised.value).splitlines()] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "\noptimization { graph { level: 1 } cuda: { graphs: true } }",
            "c:2: optimization has no",
        ),
        ('cc_model_filenames { key: "6.1" value: "a" }', "c:1: cc_model_filenames has no effect"),
        ("response_cache { enable: true }", "c:1: response_cache has no effect: every request"),
        ('metric_tags { key: "a" value: "b" }', "c:1: metric_tags has no effect"),
        (
            'output {\n name: "y" data_type: TYPE_FP32 dims: 1 label_filename: "l" }',
            "c:2: output.l",
        ),
        (
            "instance_group { rate_limiter { resources [ { name: 'R' } ] } }",
            "c:1: instance_group.r",
        ),
        ("dynamic_batching { }", "c:1: dynamic_batching batches nothing: max_batch_size is 0"),
    ],
)
def test_what_changes_no_answer_is_ignored_with_a_warning(text: str, warning: str) -> None:
    (found,) = parse(text, "c").warnings
    assert found.startswith(warning)


@pytest.mark.parametrize(
    ("plain", "problem"),
    [
        ({"max_batch": 1}, "config: max_batch: is not a known field; did you mean max_batch_size?"),
        ({"sequenceBatching": {}}, "config: sequence_batching: sequences are not supported"),
        ({"max_batch_size": "x"}, "config: "),
        ({"input": [{"name": "x", "data_type": 99}]}, "config: input 'x': needs a data_type"),
        ({"input": 3}, "config: "),
        ({"parameters": {"a": "x"}}, 'config: parameters.a: must be an object, such as {"string_'),
        ({"parameters": "x"}, 'config: parameters: must be an object, such as {"NAME": {"string_'),
        ({"instance_group": ["x"]}, "config: instance_group: must be an object"),
        ({"versionPolicy": {"latest": "2"}}, "config: versionPolicy.latest: must be an object"),
    ],
)
def test_plain_values_are_checked_as_well(plain: dict[str, object], problem: str) -> None:
    with pytest.raises(ModelError) as raised:
        of_plain(plain)
    assert any(line.startswith(problem) for line in str(raised.value).splitlines())


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('input { name: "x" data_type: FP32 dims: 1 }', "; types are TYPE_FP32, TYPE_INT64"),
        ("\nmax_batch_size: ${batch}", "; a template's ${...} must be filled in first"),
    ],
)
def test_mistakes_that_many_make_get_a_hint(text: str, hint: str) -> None:
    with pytest.raises(ModelError) as raised:
        parse(text, "c")
    assert hint in str(raised.value)


def test_keys_of_maps_are_no_fields() -> None:
    plain = {"parameters": {"anything": {"string_value": "1"}}}
    assert of_plain(plain).parameters == {"anything": "1"}


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ModelError):
        parse("input { reshape " * 5000)
