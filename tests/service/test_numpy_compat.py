"""numpy's behaviour as expected by services written for the original; in a separate process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from penstock.service.numpy_compat import fromstring


@pytest.mark.parametrize("data", [b"\1\2\3\4", "\1\2\3\4", memoryview(b"\1\2\3\4")])
def test_fromstring_reads_bytes_into_a_writable_array(data: bytes | str) -> None:
    array = fromstring(data, np.uint8)
    assert array.tolist() == [1, 2, 3, 4]
    array[0] = 7
    assert fromstring(data, "<u2").tolist() == [0x201, 0x403]
    assert fromstring(data, np.uint8, 2).tolist() == [1, 2]
    assert fromstring(b"", np.uint8).size == 0
    with pytest.raises(ValueError, match="multiple of element size"):
        fromstring(data, "<u8")


def test_fromstring_reads_text_as_before() -> None:
    assert fromstring("1, 2", dtype=int, sep=",").tolist() == [1, 2]
    assert fromstring("1 2 3", sep=" ", count=2).tolist() == [1, 2]


CODE = """
import threading
import numpy as np
from penstock.service.numpy_compat import restore_numpy
before = str([np.float32(0.2)])
import penstock.service.run  # changes nothing
assert str([np.float32(0.2)]) == before
print(restore_numpy())

def show():
    print([np.float32(0.2), np.int64(3), np.bool_(True)], repr(np.float32([0.2])))
    print(np.fromstring(b"ab", np.uint8))

show()
thread = threading.Thread(target=show)
thread.start()
thread.join()
"""


def test_scalars_are_printed_as_numbers_in_every_thread() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    message, *values = run.stdout.splitlines()
    expected = "numpy.fromstring reads bytes here, and scalars print as in numpy 1, as services"
    assert message.startswith(expected)
    assert values == ["[0.2, 3, True] array([0.2], dtype=float32)", "[97 98]"] * 2
