import sys
from pathlib import Path
from threading import Thread

import numpy as np
import onnx
import pytest

from penstock.errors import InferenceFailed, InputMismatch, ModelError
from penstock.runtimes import onnx as port
from penstock.runtimes.onnx import (
    OnnxRuntime,
    OnnxSession,
    model_file,
    option_problems,
    providers_for,
)
from penstock.runtimes.runtime import ModelOptions, open_session
from tests.kit.onnx_models import save

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def opened(path: Path, **options) -> OnnxSession:
    session = open_session(ModelOptions(path=str(path), **options))
    assert isinstance(session, OnnxSession)
    return session


def test_a_model_opens_by_its_file_and_by_its_folder(regression) -> None:
    file = regression()
    x = np.arange(26, dtype=np.float32).reshape(2, 13)
    for path in (file, file.parent):
        (price,) = opened(path).run({"x": x}, ["price"])
        np.testing.assert_allclose(price, x.sum(axis=1, keepdims=True) + 0.5)


def test_model_onnx_is_preferred_in_a_folder_of_several(regression) -> None:
    regression(file="a.onnx")
    file = regression(file="model.onnx")
    assert model_file(file.parent) == file


def test_the_only_onnx_file_of_a_folder_is_opened(regression) -> None:
    file = regression(file="other.onnx")
    assert model_file(file.parent) == file


def test_a_folder_with_two_onnx_files_is_refused(regression) -> None:
    regression(file="a.onnx")
    folder = regression(file="b.onnx").parent
    with pytest.raises(
        ModelError, match=r"model\.onnx or exactly one \*\.onnx file, found a\.onnx, b\.onnx"
    ):
        opened(folder)


def test_a_folder_named_like_an_onnx_file_is_not_a_model(tmp_path) -> None:
    (tmp_path / "sub.onnx").mkdir()
    with pytest.raises(ModelError, match="found none"):
        opened(tmp_path)


def test_the_signature_has_dtypes_and_unknown_dimensions(two_inputs) -> None:
    session = opened(two_inputs)
    assert [(s.name, s.dtype, s.shape) for s in session.inputs] == [
        ("a", np.float32, (None, 2)),
        ("ids", np.int64, (None, 2)),
    ]
    assert [s.name for s in session.outputs] == ["sum", "twice"]


def test_the_shape_of_an_input_of_unknown_rank_is_none(tmp_path) -> None:
    file = save(tmp_path / "m.onnx", "(float[] a) => (float[] b) { b = Identity(a) }")
    session = opened(file)
    assert session.inputs[0].shape is None
    assert session.run({"a": np.float32([[1]])}, ["b"])[0].shape == (1, 1)


def test_string_tensors_are_passed_and_returned(texts) -> None:
    given = np.array(["a", "", "ü"], dtype=object)
    (same,) = opened(texts).run({"text": given}, ["same"])
    assert same.tolist() == given.tolist()
    assert opened(texts).inputs[0].dtype == object


def test_weights_beside_the_model_file_are_found(tmp_path) -> None:
    weights = np.arange(4096, dtype=np.float32)
    text = "(float[4096] x) => (float[4096] y) { y = Add(x, w) }"
    model = onnx.load(str(save(tmp_path / "model.onnx", text, w=weights)))
    onnx.save(
        model, str(tmp_path / "model.onnx"), save_as_external_data=True, location="weights.bin"
    )
    assert (tmp_path / "weights.bin").stat().st_size >= weights.nbytes
    (y,) = opened(tmp_path).run({"x": weights}, ["y"])
    np.testing.assert_array_equal(y, 2 * weights)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x08" + bytes(range(200))])
def test_a_corrupted_file_raises_a_model_error_with_its_name(tmp_path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"cannot open .*model\.onnx"):
        opened(tmp_path)


def test_without_onnx_runtime_the_extra_is_named(
    regression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match=r"penstock-serving\[onnx\]"):
        opened(regression())


def test_a_wrong_rank_refused_by_the_library_raises_input_mismatch(regression) -> None:
    with pytest.raises(InputMismatch, match="rank"):
        opened(regression()).run({"x": np.ones(13, np.float32)}, ["price"])


def test_a_missing_input_refused_by_the_library_raises_input_mismatch(regression) -> None:
    with pytest.raises(InputMismatch, match="x"):
        opened(regression()).run({}, ["price"])


def test_an_error_in_the_model_raises_inference_failed(tmp_path, capfd) -> None:
    text = "(float[n] x, int64[1] to) => (float[m] y) { y = Reshape(x, to) }"
    file = save(tmp_path / "m.onnx", text)
    session = opened(file)
    feeds = {"x": np.ones(4, np.float32), "to": np.array([3])}
    with pytest.raises(InferenceFailed, match="Reshape"):
        session.run(feeds, ["y"])
    assert capfd.readouterr() == ("", "")  # the library logs nothing: the error has the message


def test_one_session_serves_many_threads(regression) -> None:
    session = opened(regression())
    assert session.thread_safe
    assert session.clone() is session
    wrong = []

    def work(seed: int) -> None:
        x = np.full((3, 13), seed, np.float32)
        for _ in range(50):
            (price,) = session.run({"x": x}, ["price"])
            if not np.allclose(price, 13 * seed + 0.5):
                wrong.append(seed)

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_output_that_is_not_a_tensor_is_omitted_with_a_note(tmp_path) -> None:
    file = save(
        tmp_path / "m.onnx",
        "(float[n] x) => (seq(float[]) seq, float[n] y)"
        " { seq = SequenceConstruct(x) y = Identity(x) }",
    )
    session = opened(file)
    assert [spec.name for spec in session.outputs] == ["y"]
    assert any("'seq'" in note and "no tensor" in note for note in session.notes)


def test_a_model_with_an_input_that_is_not_a_tensor_is_refused(tmp_path) -> None:
    text = "(seq(float[]) seq) => (int64 n) { n = SequenceLength(seq) }"
    file = save(tmp_path / "m.onnx", text)
    with pytest.raises(ModelError, match=r"'seq' is seq\(tensor\(float\)\)"):
        opened(file)


def test_a_model_with_an_element_type_without_numpy_dtype_is_refused(tmp_path) -> None:
    text = "(float8e5m2[n] x) => (float8e5m2[n] y) { y = Identity(x) }"
    file = save(tmp_path / "m.onnx", text)
    with pytest.raises(ModelError, match="float8e5m2"):
        opened(file)


@pytest.mark.parametrize(("taken", "given"), [(1, 16), (16, 1), (16, 16)])
def test_inputs_and_outputs_of_bfloat16_are_float32(tmp_path, taken: int, given: int) -> None:
    kinds = {1: "float", 16: "bfloat16"}
    file = save(
        tmp_path / "m.onnx",
        f"({kinds[taken]}[n, 2] x, int32[1] n) => ({kinds[given]}[n, 2] y, int64[1] m)"
        f" {{ wide = Cast<to = 1>(x) y = Cast<to = {given}>(wide) m = Cast<to = 7>(n) }}",
    )
    session = opened(file)
    assert [each.bf16 for each in session.inputs] == [taken == 16, False]
    assert [each.bf16 for each in session.outputs] == [given == 16, False]
    feeds = {"x": np.array([[1.5, 3.14159274]], np.float32), "n": np.array([7], np.int32)}
    y, m = session.run(feeds, ["y", "m"])
    assert (y.dtype, m.tolist()) == (np.float32, [7])
    np.testing.assert_array_equal(y, [[1.5, 3.140625]])
    empty = session.run({**feeds, "x": np.zeros((0, 2), np.float32)}, ["y"])
    assert empty[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"use_mkldnn": True}, "use_mkldnn"),
        ({"mkldnn_cache_capacity": 10}, "mkldnn_cache_capacity"),
        ({"mkldnn_op_list": ("conv2d",)}, "mkldnn_op_list"),
        ({"mkldnn_bf16_op_list": ("conv2d",)}, "mkldnn_bf16_op_list"),
        ({"min_subgraph_size": 5}, "min_subgraph_size"),
    ],
)
def test_a_key_without_effect_is_noted(regression, options, key: str) -> None:
    notes = opened(regression(), **options).notes
    assert notes == (f"local_service_conf.{key} has no effect with ONNX Runtime",)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"precision": "fp16"}, r"precision: fp16 is not available"),
        ({"precision": "int8"}, r"precision: int8"),
        ({"precision": "bf16"}, r"precision: bf16"),
        ({"precision": "fp23"}, r"precision: fp23"),
        ({"use_calib": True}, r"use_calib"),
        ({"device_type": 1}, r"devices: device_type 1 needs the id of a card"),
        ({"device_type": 2, "devices": ("0",)}, r"device_type: 2 \(GPU with TensorRT\)"),
        ({"device_type": 3}, r"device_type: 3 \(ARM CPU\)"),
        ({"device_type": 5}, r"device_type: 5 \(Ascend 310\)"),
        ({"device_type": 9}, r"device_type: 9 is unknown"),
        ({"devices": ("0",)}, r"devices: card 0 was requested.*has no CUDAExecutionProvider"),
        ({"device_type": 1, "devices": ("gpu",)}, r"devices: 'gpu' is not the id of a card"),
        ({"thread_num": 0}, r"thread_num: 0 is below 1"),
    ],
)
def test_an_unsupported_option_raises_a_model_error_with_its_key(
    regression, monkeypatch: pytest.MonkeyPatch, options, text: str
) -> None:
    library = port._library()
    monkeypatch.setattr(library, "get_available_providers", lambda: [CPU])
    with pytest.raises(ModelError, match=r"local_service_conf\." + text):
        opened(regression(), **options)


@pytest.mark.parametrize(
    ("options", "providers"),
    [
        ({}, [(CPU, {})]),
        ({"precision": "FP32"}, [(CPU, {})]),
        ({"device_type": 0, "devices": ("0",)}, [(CPU, {})]),
        ({"devices": ("1", "2")}, [(CUDA, {"device_id": 1}), (CPU, {})]),
        ({"device_type": 1, "devices": ("0",)}, [(CUDA, {"device_id": 0}), (CPU, {})]),
    ],
)
def test_devices_select_the_execution_provider(options, providers) -> None:
    requested = ModelOptions(path="m", **options)
    assert option_problems(requested, [CUDA, CPU]) == []
    assert providers_for(requested) == providers


def test_a_gpu_that_cannot_be_used_is_an_error_without_fallback_to_the_cpu(
    regression, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = port._library()
    if CUDA in library.get_available_providers():
        pytest.skip("this ONNX Runtime has a card")
    monkeypatch.setattr(library, "get_available_providers", lambda: [CUDA, CPU])
    with pytest.raises(ModelError):
        with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
            opened(regression(), devices=("0",))


def test_options_are_passed_to_the_library(regression, monkeypatch: pytest.MonkeyPatch) -> None:
    library = port._library()
    seen = []
    real = library.InferenceSession
    monkeypatch.setattr(
        library, "InferenceSession", lambda *a, **k: (seen.append(a[1]), real(*a, **k))[1]
    )
    opened(regression(), thread_num=3, mem_optim=False)
    (options,) = seen
    assert options.intra_op_num_threads == 3
    assert options.inter_op_num_threads == 1
    assert not options.enable_mem_pattern
    assert not options.enable_mem_reuse
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.graph_optimization_level == library.GraphOptimizationLevel.ORT_ENABLE_ALL


@pytest.mark.parametrize(
    ("given", "level"),
    [(None, "ORT_ENABLE_ALL"), (True, "ORT_ENABLE_ALL"), (False, "ORT_DISABLE_ALL")],
)
def test_the_graph_is_optimised_unless_ir_optim_is_false(
    regression, monkeypatch: pytest.MonkeyPatch, given: bool | None, level: str
) -> None:
    library = port._library()
    seen = []
    real = library.InferenceSession
    monkeypatch.setattr(
        library, "InferenceSession", lambda *a, **k: (seen.append(a[1]), real(*a, **k))[1]
    )
    opened(regression(), ir_optim=given)
    assert seen[0].graph_optimization_level == getattr(library.GraphOptimizationLevel, level)


def test_problems_lists_all_unsupported_options_without_opening_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port._library(), "get_available_providers", lambda: [CPU])
    requested = ModelOptions(
        path="nowhere.onnx", precision="fp16", use_calib=True, devices=("0",), thread_num=0
    )
    found = OnnxRuntime().problems(Path("nowhere.onnx"), requested)
    assert [problem.key for problem in found] == ["thread_num", "precision", "use_calib", "devices"]


def test_problems_include_a_missing_library_and_an_ambiguous_folder(
    regression, monkeypatch: pytest.MonkeyPatch
) -> None:
    regression(file="a.onnx")
    folder = regression(file="b.onnx").parent
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    requested = ModelOptions(path=str(folder), precision="fp16")
    library, files, precision = OnnxRuntime().problems(folder, requested)
    assert "penstock-serving[onnx]" in str(library)
    assert str(files).startswith("local_service_conf.model_config: model folder ")
    assert precision.key == "precision"


def test_only_onnx_files_can_be_opened(tmp_path) -> None:
    (tmp_path / "x.pdmodel").touch()
    assert not OnnxRuntime().can_open(tmp_path)
    assert not OnnxRuntime().can_open(tmp_path / "x.pdmodel")
    assert OnnxRuntime().can_open(tmp_path / "x.onnx")
