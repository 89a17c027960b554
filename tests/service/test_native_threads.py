"""Native libraries with threads before a fork, and their use after it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.supervisor.fork_safety import fork_unsafe_pools
from tests.service.scripts import post, script
from tests.services.process import running


def maps(*files: str) -> str:
    lines = (f"7f40-7f50 r-xp 00000000 08:01 12 /x y/{each}" for each in files)
    return "\n".join(["7f60-7f70 r-xp 00000000 00:00 0 [vdso]", *lines, ""])


@pytest.mark.parametrize(
    ("files", "in_the_way"),
    [
        (["libc.so.6", "numpy.libs/libscipy_openblas64_-32.so"], []),
        (["onnxruntime_pybind11_state.so", "libopenblas.so"], []),
        (["cv2.abi3.so"], []),
        (["libopenblas.so", "libgomp-a34b.so.1"], ["libgomp-a34b.so.1"]),
        (["libopenblas.so", "libtorch_cpu.so"], ["libtorch_cpu.so"]),
        (["libopenblas.so", "libgomp/other.so"], []),
        (["libmine.so"], ["an unknown library"]),
    ],
)
def test_libraries_whose_threads_do_not_survive_a_fork_are_detected(
    files: list[str], in_the_way: list[str]
) -> None:
    assert fork_unsafe_pools(maps(*files)) == in_the_way


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
def test_libraries_used_by_a_script_work_in_its_worker_processes(tmp_path: Path) -> None:
    with running(script(tmp_path, USING, PROCESSES, before=USED)) as server:
        for _ in range(4):
            reply = post(server, timeout=60, a="1").json
            values = dict(zip(reply["key"], reply["value"], strict=True))
            assert values["now"] == values["before"]
        log = server.log()
        assert "WARNING" not in log  # none of them prevents a fork
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
@pytest.mark.parametrize(
    "waits",
    # Active threads are never seen waiting, and use every core.
    ["passive", pytest.param("active", marks=pytest.mark.long)],
)
def test_gnu_openmp_used_by_a_script_works_in_its_worker_processes(
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
        assert f"threads run already ({found[0].name})" in server.log()
        assert post(server, timeout=10, a="1").json["value"] == ["1"]
