"""Fixtures of those who share memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.executors.processes.ends import Ends, descriptors


@pytest.fixture
def no_descriptor_is_left() -> Iterator[None]:
    gc.collect()
    before = descriptors()
    yield
    gc.collect()
    assert descriptors() == before


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()
