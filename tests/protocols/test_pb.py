"""Penstock's messages and others of the same names, as two generated modules in one process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from penstock.protocols import pb
from tests.wire.test_original_proto import PROTO_V09

BOTH = """
import pipeline_pb2 as theirs
from penstock.protocols import pb as ours

sent = theirs.Request(key=["a"], value=["1"], tensors=[theirs.Tensor(name="x", shape=[2])])
read = ours.Request.FromString(sent.SerializeToString())
assert type(read.tensors[0]) is type(read.tensors.add()) is ours.Tensor
assert type(sent.tensors[0]) is theirs.Tensor is not ours.Tensor
print(read.key[0], read.tensors[0].name, ours.Request.DESCRIPTOR.full_name)
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module generated from the original's file, as users have it."""
    folder = tmp_path_factory.mktemp("original")
    (folder / "pipeline.proto").write_text(PROTO_V09)
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "pipeline.proto"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    return folder


@pytest.mark.parametrize(
    "first", ["import pipeline_pb2", "from penstock import PipelineClient, PipelineServer"]
)
def test_the_originals_messages_can_be_imported_in_the_same_process(
    original: Path, first: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", first + BOTH],
        cwd=original,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a x baidu.paddle_serving.pipeline_serving.Request\n"


def test_the_messages_need_no_protobuf_as_new_as_their_compiler() -> None:
    older = (
        "from google.protobuf import runtime_version as version\n"
        "version.OSS_MAJOR = version.MAJOR = 6\n"
        "version.OSS_MINOR = version.MINOR = 31\n"
        "from penstock.protocols import pb\n"
        "assert pb.Request.FromString(pb.Request(key=['a']).SerializeToString()).key == ['a']\n"
    )
    subprocess.run([sys.executable, "-c", older], check=True, timeout=60)


def test_messages_are_not_in_the_default_descriptor_pool() -> None:
    assert pb.Request.DESCRIPTOR.file.pool is not descriptor_pool.Default()


def test_a_message_can_be_pickled() -> None:
    request = pb.Request(key=["a"], tensors=[pb.Tensor(name="x")])
    unpickled = pickle.loads(pickle.dumps(request))
    assert type(unpickled) is pb.Request
    assert unpickled == request
