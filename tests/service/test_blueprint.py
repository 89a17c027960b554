"""Deployments: several graphs behind one door, and in what their configurations must agree."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Op
from penstock.errors import ConfigError
from penstock.instrument import Instrument
from penstock.service.blueprint import Blueprint, deploy
from penstock.service.build import Works
from tests.service.inside import drawn, root


def graph(name: str | None, /, **config: Any) -> Blueprint:
    return drawn(Op("work", input_ops=[root()]), config, name=name)


def test_two_services_of_one_name_are_an_error() -> None:
    with pytest.raises(ConfigError, match="2 services are called 'a'"):
        deploy([graph("a"), graph("b"), graph("a")])
    with pytest.raises(ConfigError, match="2 services have no name"):
        deploy([graph(None), graph(None)])


def test_what_is_said_of_the_door_once_holds_for_all() -> None:
    config = deploy([graph("a"), graph("b", max_requests=7, deadline=3)]).config
    assert (config.max_requests, config.deadline) == (7, 3.0)


def test_what_is_said_of_the_door_twice_must_agree() -> None:
    deploy([graph("a", http_port=8001), graph("b", http_port=8001)])
    with pytest.raises(ConfigError, match="http_port: a sets 8001 and b 8002, but they share"):
        deploy([graph("a", http_port=8001), graph("b", http_port=8002)])


def test_ops_of_several_graphs_are_told_apart_by_their_graphs() -> None:
    alone, both = deploy([graph("a")]), deploy([graph("a"), graph(None)])
    assert [alone.op_name(each, "work") for each in alone.graphs] == ["work"]
    names = [both.op_name(each, "work") for each in both.graphs]
    assert names == ["a/work", "*/work"]
    assert [both.find_op(name) for name in names] == [(each, 0) for each in both.graphs]


async def test_an_engine_has_the_graphs_of_all_and_the_limits_once() -> None:
    works = Works(deploy([graph("a", max_requests=3), graph("b")]))
    engine = works.engine(asyncio.get_running_loop())
    assert [(each.name, each.version, each.state.value) for each in engine.graphs] == [
        ("a", "1", "serving"),
        ("b", "1", "serving"),
    ]
    assert engine.options.max_requests == 3
    for each in engine.graphs:
        assert await each.close(5.0)


class Listening(Instrument):
    made = 0

    def __init__(self) -> None:
        type(self).made += 1


def test_instruments_come_from_the_service_and_from_its_configuration() -> None:
    mine = Listening()
    path = f"{__name__}:Listening"
    drawing = drawn(Op("work", input_ops=[root()]), {"instruments": [path]})
    assert [type(each) for each in drawing.instruments] == [Listening]
    assert deploy([drawing]).instruments == drawing.instruments
    assert mine not in drawing.instruments


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere:At", "cannot be imported: ModuleNotFoundError"),
        (f"{__name__}:graph", "cannot be called: TypeError"),
        ("builtins:dict", "makes a dict"),
        ("no path", "must name a module"),
    ],
)
def test_an_instrument_that_cannot_be_made_is_an_error_at_start(path: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        drawn(Op("work", input_ops=[root()]), {"instruments": [path]})
