"""Doors to test, on both kinds of loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from penstock.door.door import DoorLimits
from tests.services.door import Site


@pytest.fixture(params=["uvloop", "asyncio"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop


@pytest.fixture
def opened(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> Iterator[Callable[..., Site]]:
    """Opens doors; the arguments are those of ``Site``, and limits by name."""
    sites: list[Site] = []

    def open_one(*, site: dict[str, Any] | None = None, **limits: Any) -> Site:
        sites.append(Site(new_loop, DoorLimits(**limits), **(site or {})))
        return sites[-1]

    yield open_one
    for one in sites:
        one.close()
