"""What a receiver of slabs does, whatever their sender does."""

from __future__ import annotations

import faulthandler
import fcntl
import mmap
import os
import signal
from typing import Any

import numpy as np
import pytest

from penstock.executors.processes.frame import FrameError, Ref
from penstock.executors.processes.mapping import SlabReader
from penstock.executors.processes.slab import MOST_SLABS
from tests.executors.processes.ends import LIMIT, MIB, SEALS, Hostile, descriptors, memfd

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


@pytest.mark.parametrize(
    ("size", "seals", "flags"),
    [
        (MIB, 0, 0),
        (MIB, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL, 0),
        (MIB, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL, 0),
        (MIB, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, 0),
        (0, SEALS, 0),
        (64, SEALS, 0),
        (LIMIT + 1, SEALS, 0),
        (1 << 60, SEALS, 0),
        (2 * MIB, SEALS, os.MFD_HUGETLB),
    ],
)
def test_memory_that_could_kill_its_reader_is_not_accepted(
    size: int, seals: int, flags: int
) -> None:
    try:
        descriptor = memfd(size, seals, flags)
    except OSError as error:
        pytest.skip(f"this system makes none: {error}")
    reader = SlabReader(LIMIT)
    before = descriptors()
    with pytest.raises(FrameError):
        reader.accept(0, descriptor)
    assert descriptors() == before - 1
    assert repr(reader) == "<SlabReader 0 MiB, 0 slabs, 0 held>"


def test_what_is_no_memory_is_not_accepted(tmp_path: Any) -> None:
    reader = SlabReader(LIMIT)
    (tmp_path / "file").write_bytes(bytes(MIB))
    file = os.open(tmp_path / "file", os.O_RDWR)
    one, other = os.pipe()
    for descriptor in (file, one, other, os.open("/dev/zero", os.O_RDONLY)):
        with pytest.raises(FrameError, match="cannot be mapped"):
            reader.accept(0, descriptor)


def test_slabs_are_accepted_up_to_the_limit_and_each_number_once() -> None:
    reader = SlabReader(3 * MIB)
    reader.accept(0, memfd(2 * MIB))
    with pytest.raises(FrameError, match="one too many"):
        reader.accept(0, memfd(MIB))
    with pytest.raises(FrameError, match="what is left"):
        reader.accept(1, memfd(2 * MIB))
    reader.accept(1, memfd(MIB))
    reader.close()


def test_no_more_slabs_are_accepted_than_a_sender_may_have() -> None:
    reader = SlabReader(LIMIT)
    for slab in range(MOST_SLABS):
        reader.accept(slab, memfd(4096))
    with pytest.raises(FrameError, match="one too many"):
        reader.accept(MOST_SLABS, memfd(4096))
    reader.close()


@pytest.mark.parametrize(
    "ref",
    [
        Ref(1, 1, 64, 8),
        Ref(0, 0, 64, 8),
        Ref(0, 2, 64, 8),
        Ref(0, 1, 0, 8),
        Ref(0, 1, 63, 8),
        Ref(0, 1, 65, 8),
        Ref(0, 1, 64, 0),
        Ref(0, 1, 64, MIB - 63),
        Ref(0, 1, MIB, 1),
        Ref(0, 1, 2**63, 2**63),
        Ref(0, 1, 64, 2**64 - 1),
        Ref(2**32 - 1, 2**32 - 1, 2**64 - 64, 2**64 - 1),
    ],
)
def test_a_lie_about_where_an_array_is_comes_to_light(ref: Ref) -> None:
    reader = SlabReader(LIMIT)
    Hostile(reader)
    with pytest.raises(FrameError):
        reader.fetch(ref)
    assert len(reader.fetch(Ref(0, 1, 64, MIB - 64))) == MIB - 64


def test_a_slab_that_is_used_again_too_early_is_refused_and_can_still_be_read() -> None:
    reader = SlabReader(LIMIT)
    sender = Hostile(reader)
    view = reader.fetch(Ref(0, 1, 64, 8))
    sender.write(2)
    with pytest.raises(FrameError, match="used again"):
        reader.fetch(Ref(0, 2, 64, 8))
    with pytest.raises(FrameError, match="generation 1"):
        reader.fetch(Ref(0, 1, 64, 8))
    assert bytes(view) == bytes(8)


def test_a_generation_that_was_given_back_is_over() -> None:
    reader = SlabReader(LIMIT)
    sender = Hostile(reader)
    reader.fetch(Ref(0, 1, 64, 8))
    assert reader.freed() == [(0, 1)]
    with pytest.raises(FrameError, match="given back"):
        reader.fetch(Ref(0, 1, 64, 8))
    sender.write(5)
    reader.fetch(Ref(0, 5, 64, 8))
    sender.write(3)
    with pytest.raises(FrameError, match="generation 3"):
        reader.fetch(Ref(0, 3, 64, 8))


def test_a_slab_that_is_given_up_while_it_is_read_stays_until_it_is_not() -> None:
    reader = SlabReader(2 * MIB)
    sender = Hostile(reader)
    sender.memory[64:72] = b"contents"
    view = reader.fetch(Ref(0, 1, 64, 8))
    sender.write(0)
    reader.accept(1, memfd(MIB))
    with pytest.raises(FrameError, match="what is left"):
        reader.accept(2, memfd(MIB))
    assert bytes(view) == b"contents"
    del view
    reader.accept(2, memfd(MIB))
    reader.close()


def reads_all(descriptor: int, ready: int, go: int) -> None:
    """A receiver, as a process of its own: maps, waits, and reads everything."""
    reader = SlabReader(LIMIT)
    reader.accept(0, descriptor)
    array = np.frombuffer(reader.fetch(Ref(0, 1, 64, MIB - 64)), np.uint8)
    os.write(ready, b"1")
    os.read(go, 1)
    os._exit(3 if array.sum() >= 0 else 4)


@pytest.mark.parametrize("act", ["truncate", "grow", "punch", "seal", "close"])
def test_nothing_a_sender_does_kills_its_reader(act: str) -> None:
    descriptor = memfd(MIB)
    memory = mmap.mmap(descriptor, MIB)
    memory[:] = b"\1\0\0\0" + b"x" * (MIB - 4)
    ready, ready_end = os.pipe()
    go_end, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            reads_all(os.dup(descriptor), ready_end, go_end)
        finally:
            os._exit(5)
    assert os.read(ready, 1) == b"1"
    if act in ("truncate", "grow"):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 4096 if act == "truncate" else 2 * MIB)
    elif act == "seal":
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    elif act == "punch":
        memory.madvise(mmap.MADV_REMOVE)
    os.close(descriptor)
    if act == "close":
        memory.close()
    os.write(go, b"1")
    status = os.waitpid(pid, 0)[1]
    for each in (ready, ready_end, go_end, go):
        os.close(each)
    assert not os.WIFSIGNALED(status), signal.Signals(os.WTERMSIG(status)).name
    assert os.WEXITSTATUS(status) == 3


def test_the_same_reading_without_seals_would_be_deadly() -> None:
    """The test above can fail."""
    descriptor = memfd(MIB, 0)
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        memory = mmap.mmap(descriptor, MIB, prot=mmap.PROT_READ)
        os.ftruncate(descriptor, 4096)
        os._exit(memory[MIB - 1])
    os.close(descriptor)
    status = os.waitpid(pid, 0)[1]
    assert os.WTERMSIG(status) == signal.SIGBUS
