import errno
import resource

import pytest

from penstock.config.schema import ServiceConfig
from penstock.errors import StartupError
from penstock.service.door import limits_of
from penstock.service.listening import (
    max_connections,
    raise_descriptor_limit,
    too_few_descriptors_end_the_start,
)


@pytest.mark.parametrize(
    ("descriptors", "processes", "most"),
    [
        (100_000, 0, 1024),
        (100_000, 1000, 1024),
        (1024, 0, 896),
        (1024, 8, 896 - 8 * 22),
        (1024, 100, 896 - 256),  # half of the descriptors is for connections
        (256, 2, 256 - 64 - 44),
        (20, 8, 16),
    ],
)
def test_the_connection_limit_leaves_descriptors_for_workers_and_the_rest(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, processes: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (descriptors, descriptors))
    assert max_connections(None, processes) == most
    assert max_connections(5, processes) == 5
    assert limits_of(ServiceConfig(), processes).max_connections == most


@pytest.mark.parametrize(
    ("soft", "hard", "processes", "expected", "warned"),
    [
        (1024, 4096, 0, 1024, False),
        (1024, 4096, 11, 1024, False),
        (1024, 4096, 12, 4 * 264, False),
        (1024, 4096, 100, 4096, True),
        (1024, 1024, 12, 1024, False),
        (1024, 1024, 23, 1024, False),
        (1024, 1024, 24, 1024, True),
        (1024, resource.RLIM_INFINITY, 100, 8800, False),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 100, resource.RLIM_INFINITY, False),
    ],
)
def test_the_soft_limit_is_raised_for_worker_processes_up_to_the_hard_limit(
    monkeypatch: pytest.MonkeyPatch,
    soft: int,
    hard: int,
    processes: int,
    expected: int,
    warned: bool,
) -> None:
    limits = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda what: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda what, given: limits.__setitem__(0, given[0]))
    assert (raise_descriptor_limit(processes) is not None) == warned
    assert limits == [expected, hard]


def test_a_start_without_a_free_descriptor_is_an_error_that_names_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (64, 64))
    with pytest.raises(StartupError, match=r"may open 64 files, .* raise ulimit -n"):
        with too_few_descriptors_end_the_start():
            raise OSError(errno.EMFILE, "Too many open files")
    with pytest.raises(FileNotFoundError):
        with too_few_descriptors_end_the_start():
            raise FileNotFoundError(errno.ENOENT, "another error")
