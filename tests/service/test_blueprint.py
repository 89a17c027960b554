"""Deployments: several graphs behind one door, and the keys in which they must agree."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Op
from penstock.errors import ConfigError
from penstock.instrument import Instrument
from penstock.service.blueprint import Blueprint, deploy
from penstock.service.build import LoadedDeployment
from tests.service.in_process import blueprint_of, root


def graph(name: str | None, /, **config: Any) -> Blueprint:
    return blueprint_of(Op("work", input_ops=[root()]), config, name=name)


def test_two_services_with_the_same_name_are_an_error() -> None:
    with pytest.raises(ConfigError, match="2 services are called 'a'"):
        deploy([graph("a"), graph("b"), graph("a")])
    with pytest.raises(ConfigError, match="2 services have no name"):
        deploy([graph(None), graph(None)])


def test_a_door_key_of_one_service_applies_to_all() -> None:
    config = deploy([graph("a"), graph("b", max_requests=7, deadline=3)]).config
    assert (config.max_requests, config.deadline) == (7, 3.0)


def test_conflicting_door_keys_of_two_services_are_an_error() -> None:
    deploy([graph("a", http_port=8001), graph("b", http_port=8001)])
    with pytest.raises(ConfigError, match="http_port: a sets 8001 and b 8002, but they share"):
        deploy([graph("a", http_port=8001), graph("b", http_port=8002)])


def test_ops_of_several_graphs_have_their_graph_s_name_as_a_prefix() -> None:
    alone, both = deploy([graph("a")]), deploy([graph("a"), graph(None)])
    assert [alone.op_name(each, "work") for each in alone.graphs] == ["work"]
    names = [both.op_name(each, "work") for each in both.graphs]
    assert names == ["a/work", "*/work"]
    assert [both.find_op(name) for name in names] == [(each, 0) for each in both.graphs]


async def test_an_engine_has_all_graphs_and_one_set_of_limits() -> None:
    loaded = LoadedDeployment(deploy([graph("a", max_requests=3), graph("b")]))
    engine = loaded.engine(asyncio.get_running_loop())
    assert [(each.name, each.version, each.state.value) for each in engine.graphs] == [
        ("a", "1", "serving"),
        ("b", "1", "serving"),
    ]
    assert engine.options.max_requests == 3
    for each in engine.graphs:
        assert await each.close(5.0)


class CountingInstrument(Instrument):
    made = 0

    def __init__(self) -> None:
        type(self).made += 1


def test_instruments_are_made_from_the_service_and_its_configuration() -> None:
    mine = CountingInstrument()
    path = f"{__name__}:CountingInstrument"
    drawing = blueprint_of(Op("work", input_ops=[root()]), {"instruments": [path]})
    assert [type(each) for each in drawing.instruments] == [CountingInstrument]
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
        blueprint_of(Op("work", input_ops=[root()]), {"instruments": [path]})
