"""Which native libraries have threads in this process.

A fork leaves them behind. OpenBLAS, ONNX Runtime and OpenCV bear that: they start new ones in the
child, when they need them. GNU's OpenMP does not: once it has threads, whoever uses it in a child
waits for threads that are not there. Where those run, nothing is forked (``spawning.py``).

The kernel says where the stack of a waiting thread is, and what is mapped where; the first library
among the return addresses on that stack is whose thread it is. A guess, and good enough to name it.
Of a thread that runs it says nothing. Most that run have just worked and soon wait; OpenMP may be
told to let its threads run for ever, so what cannot be told is taken for its, if that is there.
"""

from __future__ import annotations

import logging
import re
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from struct import iter_unpack
from time import monotonic, sleep
from typing import BinaryIO, Final, NamedTuple

_log = logging.getLogger(__name__)

UNKNOWN: Final = "a library that cannot be told"

_PROCESS: Final = Path("/proc/self")
_STACK: Final = 4096  # bytes; those seen had their library within the first few hundred
_BUSY: Final = 0.1  # seconds; OpenBLAS waits after 2**26 ticks, OpenMP after a few milliseconds
_LOOK: Final = 0.002  # seconds between two looks
_NOBODYS: Final = re.compile(
    r"(ld-linux|libc|libm|libpthread|libstdc\+\+|libgcc_s|libpython[\d.]*)(?!\w).*"
)
_LOST_BY_FORKS: Final = re.compile(r"libgomp\b.*")


class Mapping(NamedTuple):
    """Memory that holds a library's code."""

    start: int
    end: int
    path: str


def tell_native_threads() -> None:
    """Log them: forks do not have them."""
    try:
        found = native_threads()
    except OSError:
        return
    if found:
        names = ", ".join(f"{name} ({count})" for name, count in found.items())
        _log.info("threads of native libraries in the supervisor: %s", names)


def native_threads() -> Counter[str]:
    """Threads that Python did not start, by the library's folder and file.

    Raises:
        OSError: this system does not tell.
    """
    ours = {each.native_id for each in threading.enumerate()}
    maps = (_PROCESS / "maps").read_bytes()  # paths are no text
    code = mappings(maps.decode("utf-8", "backslashreplace"))
    untold = next((name for name in map(_name, code) if _is_lost_by_forks(name)), UNKNOWN)
    found: Counter[str] = Counter()
    tasks = [each for each in (_PROCESS / "task").iterdir() if int(each.name) not in ours]
    until = monotonic() + _BUSY
    with (_PROCESS / "mem").open("rb", buffering=0) as memory:
        while tasks:
            busy = []
            for task in tasks:
                try:
                    stack = _stack(task, memory)
                except (FileNotFoundError, ProcessLookupError):
                    continue  # it has ended
                if stack is None and monotonic() < until:
                    busy.append(task)
                else:
                    found[library_on(stack or b"", code) or untold] += 1
            if tasks := busy:
                sleep(_LOOK)
    return found


def _stack(task: Path, memory: BinaryIO) -> bytes | None:
    """A thread's, from where it waits; None while it runs, nothing where that cannot be read.

    Raises:
        FileNotFoundError, ProcessLookupError: there is no such thread any more.
    """
    try:
        state = (task / "syscall").read_text().split()
        if state == ["running"]:
            return None
        memory.seek(int(state[-2], 16))
        return memory.read(_STACK)
    except (FileNotFoundError, ProcessLookupError):
        raise
    except (OSError, ValueError, IndexError):
        return b""


def lost_by_forks(found: Counter[str]) -> Counter[str]:
    """Those of them whose library cannot be used any more in a child."""
    return Counter({name: count for name, count in found.items() if _is_lost_by_forks(name)})


def _is_lost_by_forks(name: str) -> bool:
    return _LOST_BY_FORKS.match(Path(name).name) is not None


def mappings(text: str) -> list[Mapping]:
    """The code of libraries in ``/proc/self/maps``, by address."""
    found = []
    for line in filter(None, text.split("\n")):  # a path may hold what else ends lines
        addresses, rights, _, _, _, *path = line.split(maxsplit=5)
        if "x" in rights and path and path[0].startswith("/"):
            start, end = (int(each, 16) for each in addresses.split("-"))
            found.append(Mapping(start, end, path[0]))
    return sorted(found)


def library_on(stack: bytes, code: Sequence[Mapping]) -> str | None:
    """The first library on a stack that is not everybody's: its folder and file."""
    starts = [each.start for each in code]
    for (word,) in iter_unpack("=Q", stack[: len(stack) // 8 * 8]):
        at = bisect_right(starts, word) - 1
        if at < 0 or word >= code[at].end:
            continue
        file = Path(code[at].path).name
        if not _NOBODYS.match(file) and not file.startswith("python"):
            return _name(code[at])
    return None


def _name(library: Mapping) -> str:
    """Its folder and file."""
    path = Path(library.path)
    return f"{path.parent.name}/{path.name}"
