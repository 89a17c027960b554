"""Native libraries with threads, seen before a fork; and whether they work after it."""

from __future__ import annotations

import struct
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.service import native_threads
from penstock.service.native_threads import Mapping, library_on, lost_by_forks, mappings
from tests.service.scripts import post, script
from tests.services.process import running

MAPS = """\
7f10-7f20 r--p 00000000 08:01 11 /lib/libc.so.6
7f20-7f40 r-xp 00010000 08:01 11 /lib/libc.so.6
7f40-7f50 r-xp 00000000 08:01 12 /x y/numpy.libs/libscipy_openblas64_-32.so
7f50-7f60 r-xp 00000000 00:00 0
7f60-7f70 r-xp 00000000 00:00 0 [vdso]
7f00-7f10 r-xp 00000000 08:01 13 /usr/bin/python3.11
"""
CODE = [
    Mapping(0x7F00, 0x7F10, "/usr/bin/python3.11"),
    Mapping(0x7F20, 0x7F40, "/lib/libc.so.6"),
    Mapping(0x7F40, 0x7F50, "/x y/numpy.libs/libscipy_openblas64_-32.so"),
]
STANDARD = (
    "libc.so.6",
    "libc-2.31.so",
    "libm.so.6",
    "libstdc++.so.6.0.30",
    "libgcc_s.so.1",
    "libpython3.11.so.1.0",
    "ld-linux-x86-64.so.2",
)


def stack(*words: int) -> bytes:
    return struct.pack(f"={len(words)}Q", *words)


def test_code_of_libraries_is_found_by_address() -> None:
    assert mappings(MAPS) == CODE


def test_a_path_may_hold_what_else_ends_lines() -> None:
    path = "/a\rb/c\x1cd\u2028e/lib.so"
    assert mappings(f"7f40-7f50 r-xp 00000000 08:01 12 {path}\n") == [Mapping(0x7F40, 0x7F50, path)]


def test_a_library_below_a_path_that_is_no_utf_8_is_told_of_in_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "maps").write_bytes(b"7f40-7f50 r-xp 0 08:01 12 /a\rb/z\xe9/lib.so\n")
    (tmp_path / "mem").write_bytes(stack(0x7F41))
    (tmp_path / "task" / "0").mkdir(parents=True)
    (tmp_path / "task" / "0" / "syscall").write_text("0 0x0 0x0\n")
    monkeypatch.setattr(native_threads, "_PROCESS", tmp_path)
    assert native_threads.native_threads() == Counter({"z\\xe9/lib.so": 1})


GOMP = "7f40-7f50 r-xp 0 08:01 12 /lib/libgomp.so.1\n"
BLAS = "7f50-7f60 r-xp 0 08:01 12 /lib/libopenblas.so\n"


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Threads of a process whose only stack is OpenBLAS's; each needs a folder and ``syscall``."""
    (tmp_path / "maps").write_text(GOMP + BLAS)
    (tmp_path / "mem").write_bytes(stack(0x7F51))
    (tmp_path / "task").mkdir()
    monkeypatch.setattr(native_threads, "_PROCESS", tmp_path)
    return tmp_path / "task"


def does(task: Path, what: str) -> None:
    task.mkdir(exist_ok=True)
    (task / "syscall").write_text(what)


def test_a_thread_that_runs_is_looked_at_again_until_it_waits(
    monkeypatch: pytest.MonkeyPatch, tasks: Path
) -> None:
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            does(tasks / "0", "0 0x0 0x0\n")

    monkeypatch.setattr(native_threads, "sleep", wait)
    does(tasks / "0", "running\n")
    assert native_threads.native_threads() == Counter({"lib/libopenblas.so": 1})
    assert len(looks) == 3


def test_one_that_never_waits_is_taken_for_openmp_s_if_that_is_there(tasks: Path) -> None:
    does(tasks / "0", "running\n")
    assert native_threads.native_threads() == Counter({"lib/libgomp.so.1": 1})
    (tasks.parent / "maps").write_text(BLAS)
    assert native_threads.native_threads() == Counter({native_threads.UNKNOWN: 1})


def test_one_that_ends_meanwhile_is_none(monkeypatch: pytest.MonkeyPatch, tasks: Path) -> None:
    does(tasks / "0", "running\n")
    monkeypatch.setattr(native_threads, "sleep", lambda _: (tasks / "0" / "syscall").unlink())
    assert native_threads.native_threads() == Counter()


@pytest.mark.parametrize("state", ["", "1", "0 no 0x0\n", "0 0x7fffffff 0x0\n"])
def test_one_that_cannot_be_read_is_taken_for_openmp_s_too(tasks: Path, state: str) -> None:
    does(tasks / "0", state)
    assert native_threads.native_threads() == Counter({"lib/libgomp.so.1": 1})


def test_the_first_library_on_a_stack_that_is_not_everybody_s_is_named() -> None:
    found = "numpy.libs/libscipy_openblas64_-32.so"
    assert library_on(stack(0, 2**63, 0x7F25, 0x7F01, 0x7F4F, 0x7F30), CODE) == found
    assert library_on(stack(0x7F25, 0x7F50, 0x7F3F, 0x7EFF), CODE) is None
    assert library_on(stack(0x7F40)[:7], CODE) is None
    assert library_on(b"", []) is None


@pytest.mark.parametrize("name", STANDARD)
def test_what_every_library_uses_is_nobody_s_thread(name: str) -> None:
    code = [Mapping(0x10, 0x20, f"/lib/{name}"), Mapping(0x20, 0x30, "/capi/libcrypto.so.3")]
    assert library_on(stack(0x11, 0x21), code) == "capi/libcrypto.so.3"


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("scikit_learn.libs/libgomp-e985bcbb.so.1.0.0", True),
        ("lib/libgomp.so.1", True),
        ("lib/libgomposer.so", False),
        ("numpy.libs/libscipy_openblas64_-32.so", False),
        ("libgomp/other.so", False),
    ],
)
def test_openmp_of_gnu_does_not_outlive_a_fork(name: str, lost: bool) -> None:
    assert lost_by_forks(Counter({name: 2})) == (Counter({name: 2}) if lost else Counter())


USED = """
import cv2
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

ROWS = np.random.default_rng(1).random((500, 500), np.float32)

def model():
    weights = numpy_helper.from_array(ROWS, "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 500])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 500])],
        [weights],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(made.SerializeToString(), options)

def everything():
    (product,) = model().run(None, {"x": ROWS})
    picture = cv2.GaussianBlur((np.tile(ROWS, (3, 3)) * 255).astype(np.uint8), (15, 15), 3)
    resized = cv2.resize(picture, (333, 444))
    return f"{product.sum():.3g} {(ROWS @ ROWS).sum():.3g} {resized.sum()}"

BEFORE = everything()
"""
USING = """
def process(self, feed_batch, typical_logid):
    return {"before": BEFORE, "now": everything()}
"""
PROCESSES = '"dag": {"is_thread_op": False}, "op": {"work": {"concurrency": 2}}'


@pytest.mark.real
def test_libraries_that_a_script_has_used_work_in_its_worker_processes(tmp_path: Path) -> None:
    with running(script(tmp_path, USING, PROCESSES, before=USED)) as server:
        for _ in range(4):
            reply = post(server, timeout=60, a="1").json
            values = dict(zip(reply["key"], reply["value"], strict=True))
            assert values["now"] == values["before"]
        log = server.log()
        assert "threads of native libraries in the supervisor: " in log
        assert "openblas" in log
        assert "WARNING" not in log
        assert server.stop() == 0


OPENMP = """
import ctypes
openmp = ctypes.CDLL({library!r})
nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)
openmp.GOMP_parallel(nothing, None, 2, 0)
"""


USING_IT = """
def process(self, feed_batch, typical_logid):
    openmp.GOMP_parallel(nothing, None, 2, 0)
    return {"done": "1"}
"""


@pytest.mark.real
@pytest.mark.parametrize("waits", ["passive", "active"])  # active ones are never seen waiting
def test_openmp_of_gnu_works_in_worker_processes_though_the_script_has_used_it(
    tmp_path: Path, waits: str
) -> None:
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    libraries = Path(spec.origin).parents[1] / "scikit_learn.libs"
    found = [*libraries.glob("libgomp*")] if sys.platform == "linux" else []
    if not found:
        pytest.skip("scikit-learn has no OpenMP of GNU here")
    before = OPENMP.format(library=str(found[0]))
    path = script(tmp_path, USING_IT, PROCESSES, before=before)
    with running(path, environment={"OMP_WAIT_POLICY": waits}) as server:
        assert f"threads run already (scikit_learn.libs/{found[0].name})" in server.log()
        assert post(server, timeout=10, a="1").json["value"] == ["1"]
