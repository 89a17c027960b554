"""Paddle Inference: its files, its options, its effects on the process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from base64 import b64encode
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.errors import InputMismatch, ModelError
from penstock.runtimes import paddle
from penstock.runtimes.model import Model
from penstock.runtimes.paddle import PaddleRuntime, config_for, option_problems
from penstock.runtimes.paddle_files import (
    PaddleFiles,
    check_params,
    check_program,
    is_paddle,
    paddle_files,
    read_key,
)
from penstock.runtimes.runtime import ModelOptions, load_runtime, model_problems, open_session
from tests.models.networks import feed_of
from tests.runtimes.forms import needs

with_paddle = needs("paddle")
PIR = '{"base_code":{"magic":"pir","trainable":true,"version":4}}'


# Files


@pytest.mark.parametrize(
    ("files", "program", "params", "separate"),
    [
        (["__model__", "__params__", "x.pdmodel"], "__model__", "__params__", False),
        (["__model__", "fc_0.w_0"], "__model__", None, True),
        (["model.pdmodel", "params.pdiparams"], "model.pdmodel", "params.pdiparams", False),
        (["a.pdmodel", "a.pdiparams", "b.pdiparams"], "a.pdmodel", "a.pdiparams", False),
        (["a.pdmodel", "a.json", "a.pdiparams"], "a.pdmodel", "a.pdiparams", False),
        (["a.json", "a.pdiparams", "config.json!"], "a.json", "a.pdiparams", False),
        (["a.json"], "a.json", None, False),
    ],
)
def test_program_and_parameters_of_a_folder_are_found(
    tmp_path: Path, files: list[str], program: str, params: str | None, separate: bool
) -> None:
    for name in files:
        text = '{"other": "file"}' if name.endswith("!") else PIR
        (tmp_path / name.removesuffix("!")).write_text(text)
    expected = PaddleFiles(
        program=tmp_path / program, params=params and tmp_path / params, separate=separate
    )
    assert is_paddle(tmp_path)
    assert paddle_files(tmp_path) == expected
    assert is_paddle(tmp_path / program)
    assert paddle_files(tmp_path / program) == expected


@pytest.mark.parametrize(
    ("files", "path", "pattern"),
    [
        (["a.pdmodel", "b.pdmodel"], ".", r"exactly one .*, found a\.pdmodel, b\.pdmodel"),
        (["a.json", "b.json"], ".", r"found a\.json, b\.json"),
        (["a.pdmodel", "b.pdiparams", "c.pdiparams"], ".", r"a\.pdiparams or exactly one"),
        (["a.pdiparams"], "a.pdiparams", "holds the parameters .* name its program"),
        (["__params__"], "__params__", "holds the parameters"),
    ],
)
def test_ambiguous_files_are_refused_without_the_library(
    tmp_path: Path, files: list[str], path: str, pattern: str
) -> None:
    for name in files:
        (tmp_path / name).write_text(PIR)
    assert is_paddle(tmp_path / path)
    with pytest.raises(ModelError, match=pattern):
        open_session(ModelOptions(path=str(tmp_path / path)))


@pytest.mark.parametrize("name", ["config.json", "model.onnx", "weights.bin"])
def test_other_files_are_not_paddle_models(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    assert not is_paddle(tmp_path / name)
    assert not is_paddle(tmp_path)
    assert not is_paddle(tmp_path / "missing.json")


def test_without_paddle_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__model__").touch()
    monkeypatch.setitem(sys.modules, "paddle", None)
    options = ModelOptions(path=str(tmp_path))
    with pytest.raises(ModelError, match=r"install 'penstock-serving\[paddle\]'"):
        open_session(options)
    assert "install 'penstock-serving[paddle]'" in str(model_problems(options)[0])


def tensor(*dims: int, code: int = 5, data: bytes | None = None) -> bytes:
    """A float32 tensor as Paddle writes it, without lod."""
    described = bytes((8, code)) + b"".join(bytes((16, dim)) for dim in dims)
    head = bytes(4) + bytes(8) + bytes(4) + len(described).to_bytes(4, "little") + described
    return head + (bytes(4 * int(np.prod(dims))) if data is None else data)


def test_parameter_files_of_the_wrong_size_raise_model_error(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_bytes(tensor(3, 4) + tensor(4))
    check_params(file, 2)
    with pytest.raises(ModelError, match="has 2 tensors, the program 3"):
        check_params(file, 3)
    file.write_bytes(tensor(3, 4) + tensor(4)[:-1])
    with pytest.raises(ModelError, match=r"cut off at \d+ bytes, expected \d+ or more"):
        check_params(file, 2)
    file.write_bytes(tensor(3, 4) + b"junk, and a lot of it")
    with pytest.raises(ModelError, match="what follows 1 tensors is none"):
        check_params(file, 1)


# Keys


@pytest.mark.parametrize("size", [16, 24, 32])
def test_a_key_is_read_from_a_file_a_variable_and_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    key = bytes(range(size))
    (tmp_path / "key").write_bytes(key)
    assert read_key(str(tmp_path / "key")) == key
    monkeypatch.setenv(f"MODEL_KEY_{size}", b64encode(key).decode())
    assert read_key(f"env:MODEL_KEY_{size}") == key
    reads, writes = os.pipe()
    os.write(writes, key)
    os.close(writes)
    assert read_key(f"/dev/fd/{reads}") == key
    os.close(reads)
    assert read_key(f"/dev/fd/{reads}") == key
    read_key.cache_clear()


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        ("nowhere", "nowhere: the key cannot be read: No such file or directory"),
        ("short", "short: a key has 16, 24 or 32 bytes, this one 3"),
        ("env:NO_SUCH_KEY", "env:NO_SUCH_KEY: the variable is not set"),
        ("env:BAD_KEY", "env:BAD_KEY: the key must be written in base64"),
    ],
)
def test_an_invalid_key_is_refused_without_showing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, pattern: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_bytes(b"abc")
    monkeypatch.setenv("BAD_KEY", "s e c r e t")
    with pytest.raises(ModelError) as raised:
        read_key(source)
    assert str(raised.value) == pattern


@pytest.mark.parametrize("data", [b"", b"\x0a", b"\x0a\x05ab", b"\xff" * 20, b"\x7a\x01a"])
def test_a_program_decrypted_with_another_key_is_refused(data: bytes) -> None:
    check_program(b"\x0a\x02ab\x22\x00\x2a\x00", Path("encrypt_model"))
    with pytest.raises(ModelError, match="encrypt_model is not encrypted with this key"):
        check_program(data, Path("encrypt_model"))


@with_paddle
def test_an_encrypted_model_has_the_results_of_the_plain_one(
    networks: Path, tmp_path: Path
) -> None:
    folder = networks / "encrypted/paddle"
    feed = feed_of("regression", 5)
    plain = Model.open(ModelOptions(path=str(networks / "regression/paddle_combined")))
    requested = ModelOptions(path=str(folder), encryption_key=str(folder / "key"))
    assert model_problems(requested) == []
    model = Model.open(requested)
    for each in (model, model.clone()):
        np.testing.assert_array_equal(each.run(feed)["price"], plain.run(feed)["price"])
    (missing,) = model_problems(ModelOptions(path=str(folder)))
    assert missing.key == "encryption_key"
    other = tmp_path / "other"
    other.write_bytes(bytes(16))
    with pytest.raises(ModelError, match="encrypt_model is not encrypted with this key"):
        open_session(ModelOptions(path=str(folder), encryption_key=str(other)))
    spoilt = copytree(folder, tmp_path / "spoilt")
    (spoilt / "encrypt_params").write_bytes((spoilt / "encrypt_params").read_bytes()[:-8])
    with pytest.raises(ModelError, match="encrypt_params is no complete file"):
        open_session(ModelOptions(path=str(spoilt), encryption_key=str(folder / "key")))
    (spoilt / "encrypt_model").write_bytes(b"abc")
    with pytest.raises(ModelError, match="encrypt_model cannot be decrypted"):
        open_session(ModelOptions(path=str(spoilt), encryption_key=str(folder / "key")))


# The library


@with_paddle
def test_truncated_missing_or_foreign_files_raise_model_error(
    networks: Path, tmp_path: Path
) -> None:
    # Paddle itself crashes with the first, and returns uninitialised memory for the third.
    cases = [
        ("paddle_pdmodel", "inference.pdmodel", lambda data: b""),
        ("paddle_pdmodel", "inference.pdmodel", lambda data: data[:3000]),
        ("paddle_pdmodel", "params.pdiparams", lambda data: data[:-8]),
        ("paddle_pdmodel", "params.pdiparams", lambda data: b"junk" * 10),
        ("paddle_json", "inference.json", lambda data: data[:500]),
        ("paddle_json", "inference.json", lambda data: b'{"base_code":{"magic":"pir"}}'),
        ("paddle_json", "inference.pdiparams", lambda data: data[:-8]),
        ("paddle_separate", "fc_0.w_0", lambda data: data[:-8]),
        ("paddle_combined", "__model__", lambda data: b"junk" * 10),
    ]
    for number, (form, name, spoilt) in enumerate(cases):
        folder = copytree(networks / "regression" / form, tmp_path / str(number))
        file = folder / name
        file.write_bytes(spoilt(file.read_bytes()))
        with pytest.raises(ModelError, match=r"regression|" + name):
            print(open_session(ModelOptions(path=str(folder))), form, name)
    folder = copytree(networks / "regression" / "paddle_separate", tmp_path / "missing")
    (folder / "fc_0.w_0").unlink()
    with pytest.raises(ModelError, match=r"needs the parameter 'fc_0.w_0'"):
        open_session(ModelOptions(path=str(folder)))
    folder = copytree(networks / "regression" / "paddle_json", tmp_path / "none")
    (folder / "inference.pdiparams").unlink()
    with pytest.raises(ModelError, match="needs a file of parameters"):
        open_session(ModelOptions(path=str(folder)))


@with_paddle
def test_lods_are_passed_and_returned(networks: Path) -> None:
    model = Model.open(ModelOptions(path=str(networks / "lod/paddle_pdmodel")))
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    assert [spec.is_lod for spec in model.inputs] == [True]
    got = model.run({"rows": rows, "rows.lod": [0, 2, 5]})
    assert list(got) == ["twice", "pooled", "twice.lod"]
    np.testing.assert_array_equal(got["twice"], rows * 2)
    np.testing.assert_array_equal(got["pooled"], rows[[1, 4]] * 2)
    assert got["twice.lod"].tolist() == [0, 2, 5]
    assert got["twice.lod"].dtype == np.int32
    assert model.run({"rows": rows, "rows.lod": [0, 5]}, ["pooled"])["pooled"].shape == (1, 4)
    with pytest.raises(InputMismatch, match=r"'rows.lod'.* ends at 4, and there are 5 rows"):
        model.run({"rows": rows, "rows.lod": [0, 4]})
    with pytest.raises(InputMismatch, match="LoD"):
        model.run({"rows": rows})  # the lod of the run before is not kept


@with_paddle
@pytest.mark.parametrize("shape", [(2, 1, 3), (2, 3), (2, 1, 1, 3)])
def test_boxes_have_the_lod_of_their_images_for_shape_is_hint(networks: Path, shape) -> None:
    model = Model.open(ModelOptions(path=str(networks / "boxes/paddle_json")))
    (note,) = model.notes
    assert "'save_infer_model/scale_0.tmp_1' is 'fetch_name_0'" in note
    name = model.fetch_names[0]
    got = model.run({"image": np.array([0, 5, 6, 7, 0, 0], np.float32).reshape(shape)}, [name])
    assert got[name].tolist() == [[5, 1], [6, 2], [7, 0]]
    assert got[name + ".lod"].tolist() == [0, 2, 3]


@with_paddle
def test_loading_a_model_leaves_signals_environment_and_logging_unchanged(networks: Path) -> None:
    code = """
import logging, os, signal, sys
from pathlib import Path
from penstock.runtimes.runtime import ModelOptions, open_session

seen = []
signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
def caught():  # but for those of glibc itself
    status = Path("/proc/self/status").read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16) & ~(0b11 << 31)
logs = logging.getLogger()
before = caught(), dict(os.environ), sys.excepthook, os.getcwd(), logs.handlers[:], logs.level
session = open_session(ModelOptions(path=sys.argv[1]))
session.clone()
after = caught(), dict(os.environ), sys.excepthook, os.getcwd(), logs.handlers[:], logs.level
assert after == before
os.kill(os.getpid(), signal.SIGTERM)
assert seen
"""
    path = str(networks / "regression/paddle_json")
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, path], capture_output=True, text=True
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


# Options


def fake(*, cuda: bool = False, tensorrt: bool = False, bf16: bool = True) -> SimpleNamespace:
    """A fake library compiled with these features; its Config records the calls."""

    class Config:
        def __init__(self, *files: str) -> None:
            self.config_calls: dict[str, tuple] = {"files": files}

        def __getattr__(self, name: str):
            return lambda *args, **more: self.config_calls.update({name: (*args, *more.items())})

    kinds = SimpleNamespace(Float32="fp32", Half="fp16", Bfloat16="bf16", Int8="int8")
    return SimpleNamespace(
        base=SimpleNamespace(core=SimpleNamespace(supports_bfloat16=lambda: bf16)),
        is_compiled_with_cuda=lambda: cuda,
        inference=SimpleNamespace(
            Config=Config,
            PrecisionType=kinds,
            get_trt_compile_version=lambda: (8, 6, 1) if tensorrt else (0, 0, 0),
        ),
    )


def config_calls(
    *, is_json: bool = False, library: SimpleNamespace | None = None, **options
) -> dict:
    library = library or fake()
    suffix = ".json" if is_json else ".pdmodel"
    files = PaddleFiles(program=Path("/m/a" + suffix), params=Path("/m/a.pdiparams"))
    requested = ModelOptions(path="/m", **options)
    assert option_problems(requested, library, is_json=is_json) == []
    return config_for(library, files, requested).config_calls


def test_options_become_calls_of_the_librarys_config() -> None:
    assert config_calls(thread_num=3) == {
        "files": ("/m/a.pdmodel", "/m/a.pdiparams"),
        "disable_glog_info": (),
        "disable_gpu": (),
        "set_cpu_math_library_num_threads": (3,),
        "disable_onednn": (),
        "switch_ir_optim": (True,),
        "enable_memory_optim": (True,),
    }
    other = config_calls(ir_optim=False, mem_optim=False, is_json=True)
    assert (other["switch_ir_optim"], other["enable_memory_optim"]) == ((False,), (False,))
    assert (other["enable_new_executor"], other["enable_new_ir"]) == ((True,), (True,))


def test_onednn_is_enabled_by_use_mkldnn() -> None:
    one = config_calls(use_mkldnn=True, mkldnn_cache_capacity=7, mkldnn_op_list=("conv2d",))
    assert "disable_onednn" not in one
    assert one["enable_onednn"] == ()
    assert one["set_onednn_cache_capacity"] == (7,)
    assert one["set_onednn_op"] == ({"conv2d"},)
    bf16 = config_calls(precision="BF16", mkldnn_bf16_op_list=("mul",))
    assert bf16["enable_onednn"] == bf16["enable_onednn_bfloat16"] == ()
    assert bf16["set_bfloat16_op"] == ({"mul"},)


SHAPES = {
    "min_input_shape": {"x": [1, 3]},
    "max_input_shape": {"x": [8, 3]},
    "opt_input_shape": {"x": [4, 3]},
}


def test_a_library_with_cuda_uses_the_configured_gpu() -> None:
    cuda = fake(cuda=True)
    got = config_calls(library=cuda, devices=("1",), precision="fp16")
    assert got["enable_use_gpu"] == (100, 1, "fp16")
    assert "disable_gpu" not in got
    with_tensorrt = config_calls(
        library=fake(cuda=True, tensorrt=True),
        device_type=2,
        devices=("0",),
        precision="int8",
        use_calib=True,
        min_subgraph_size=5,
        dynamic_shape_info=SHAPES,
    )
    assert with_tensorrt["set_trt_dynamic_shape_info"] == (
        {"x": [1, 3]},
        {"x": [8, 3]},
        {"x": [4, 3]},
    )
    engine = dict(with_tensorrt["enable_tensorrt_engine"])
    assert (engine["precision_mode"], engine["min_subgraph_size"]) == ("int8", 5)
    assert engine["use_calib_mode"]


@pytest.mark.parametrize(
    ("options", "library", "key", "pattern"),
    [
        ({"thread_num": 0}, fake(), "thread_num", "0 is below 1"),
        (
            {"device_type": 2, "devices": ("0",), "dynamic_shape_info": {"min_input_shape": {}}},
            fake(cuda=True, tensorrt=True),
            "dynamic_shape_info",
            "needs min_input_shape, max_input_shape, opt_input_shape, each with",
        ),
        ({"precision": "fp16"}, fake(), "precision", "fp16 is not available .* on the CPU"),
        ({"precision": "int8"}, fake(), "precision", "int8 is not available .* on the CPU"),
        ({"precision": "fp7"}, fake(), "precision", "unknown"),
        ({"precision": "bf16"}, fake(bf16=False), "precision", "AVX-512"),
        ({"use_calib": True}, fake(), "use_calib", "TensorRT only"),
        ({"devices": ("0",)}, fake(), "devices", "card 0 .* for the CPU only.*paddlepaddle-gpu"),
        ({"devices": ("x",)}, fake(cuda=True), "devices", "'x' is not the id of a card"),
        ({"device_type": 1}, fake(cuda=True), "devices", "needs the id of a card"),
        ({"device_type": 2, "devices": ("0",)}, fake(cuda=True), "device_type", "without TensorRT"),
        ({"device_type": 3}, fake(), "device_type", r"3 \(ARM CPU\) is not available with Paddle"),
        ({"device_type": 4}, fake(), "device_type", "Kunlun XPU"),
        ({"device_type": 5}, fake(), "device_type", "Ascend 310"),
        ({"device_type": 9}, fake(), "device_type", "9 is unknown; use 0"),
    ],
)
def test_an_unsupported_option_is_a_problem_with_its_key(
    options: dict, library: SimpleNamespace, key: str, pattern: str
) -> None:
    requested = ModelOptions(path="/m", **options)
    (problem,) = option_problems(requested, library, is_json=False)
    assert problem.key == key
    assert re.search(pattern, problem.text)


def test_mkldnn_bf16_op_list_is_refused_for_json_programs() -> None:
    requested = ModelOptions(path="/m", precision="bf16", mkldnn_bf16_op_list=("mul",))
    (problem,) = option_problems(requested, fake(), is_json=True)
    assert problem.key == "mkldnn_bf16_op_list"
    assert option_problems(requested, fake(), is_json=False) == []


@with_paddle
@pytest.mark.parametrize(
    ("options", "tolerance", "notes"),
    [
        ({"use_mkldnn": True, "mkldnn_cache_capacity": 4}, 1e-5, []),
        ({"ir_optim": False, "mem_optim": False}, 1e-5, []),
        ({"precision": "bf16"}, 0.05, []),
        ({"mkldnn_cache_capacity": 4, "min_subgraph_size": 9}, 1e-5, ["cache_capacity", "min_sub"]),
        ({"mkldnn_bf16_op_list": ("mul",)}, 1e-5, ["bf16_op_list"]),
    ],
)
@pytest.mark.parametrize("form", ["paddle_json", "paddle_pdmodel"])
def test_results_are_equal_with_other_options(
    networks: Path, form: str, options: dict, tolerance: float, notes: list[str]
) -> None:
    path = str(networks / "regression" / form)
    feed = feed_of("regression", 5)
    plain = Model.open(ModelOptions(path=path)).run(feed)["price"]
    if options.get("precision") and model_problems(ModelOptions(path=path, **options)):
        pytest.skip("a CPU without AVX-512")
    model = Model.open(ModelOptions(path=path, **options))
    np.testing.assert_allclose(model.run(feed)["price"], plain, rtol=0, atol=tolerance)
    assert len(model.notes) == len(notes)
    assert all(part in note for part, note in zip(notes, model.notes, strict=True))


def test_a_folder_named_paddle_is_not_taken_for_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paddle" / "inference").mkdir(parents=True)
    spec = PathFinder.find_spec("paddle", [str(tmp_path)])
    assert spec is not None
    monkeypatch.setitem(sys.modules, "paddle", module_from_spec(spec))
    monkeypatch.delitem(sys.modules, "paddle.inference", raising=False)
    (tmp_path / "a.json").write_text(PIR)
    options = ModelOptions(path=str(tmp_path / "a.json"))
    assert "install 'penstock-serving[paddle]'" in str(PaddleRuntime().problems(tmp_path, options))
    with pytest.raises(ModelError, match=r"install 'penstock-serving\[paddle\]'"):
        PaddleRuntime().open(tmp_path, options)


def test_a_card_is_refused_without_importing_a_paddle_for_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def imports() -> None:
        raise AssertionError("it starts threads, so that nothing can be forked any more")

    monkeypatch.setattr(paddle, "check_installed", lambda _: None)
    monkeypatch.setattr(paddle, "_is_for_cuda", lambda: False)
    monkeypatch.setattr(paddle, "_library", imports)
    (tmp_path / "a.json").write_text(PIR)
    options = ModelOptions(path="", devices=("0",), device_type=paddle.TENSORRT)
    problems = PaddleRuntime().problems(tmp_path / "a.json", options)
    assert "devices" in {each.key for each in problems}


@with_paddle
def test_unsupported_options_are_determined_with_the_installed_library(networks: Path) -> None:
    path = str(networks / "regression/paddle_json")
    requested = ModelOptions(path=path, precision="int8", device_type=4)
    assert [problem.key for problem in model_problems(requested)] == ["precision", "device_type"]
    with pytest.raises(ModelError, match=r"local_service_conf.precision: int8 .*; .*device_type"):
        open_session(requested)


@with_paddle
def test_sessions_hold_the_gil_and_clones_are_other_sessions(networks: Path) -> None:
    session = open_session(ModelOptions(path=str(networks / "regression/paddle_json")))
    assert session.holds_gil
    assert not session.thread_safe
    assert session.clone() is not session
    assert isinstance(load_runtime("paddle"), PaddleRuntime)
