"""Deployments: several graphs behind one door, and the keys in which they must agree."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from penstock import Op
from penstock.errors import ConfigError, StartupError
from penstock.instrument import Instrument
from penstock.repository.served import at_start
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
    sources = [both.source_of(each, "work") for each in both.graphs]
    assert [each.label for each in sources] == names
    assert [both.find_op(each) for each in sources] == [(each, 0) for each in both.graphs]


def test_a_further_version_is_made_of_its_description_in_every_process() -> None:
    deployment = deploy([graph("a"), graph("b")], lambda description: graph(description["name"]))
    made = deployment.version_of({"name": "a", "version": "2"})
    assert (made.key, deployment.label_of(made)) == (("a", "2"), "a@2")
    source = deployment.source_of(made, "work")
    assert (source.label, source.description) == ("a/work@2", {"name": "a", "version": "2"})
    found, index = deployment.find_op(source)
    assert (found.key, index) == (("a", "2"), 0)
    swapped = deployment.states["a"].only({"name": "a", "version": "2"})
    later = deployment.with_states([swapped])
    assert [each.key for each in later.graphs] == [("a", "2"), ("b", "1")]
    assert later.states == {"a": swapped, "b": deployment.states["b"]}
    assert later.op_name(later.graphs[0], "work") == "a/work@2"
    old = later.find_op(later.source_of(deployment.graphs[0], "work"))  # it may still drain
    assert old == (deployment.graphs[0], 0)
    back = later.version_of({"name": "a", "version": "1"})
    assert later.op_name(back, "work") == "a/work"


def test_an_engine_that_starts_with_versions_has_what_belongs_to_the_service() -> None:
    listener = Instrument()
    first = replace(graph("a"), instruments=(listener,), applications=(list,))
    deployment = deploy([first], lambda description: graph(description["name"]))
    later = deployment.with_states([deployment.states["a"].only({"name": "a", "version": "2"})])
    assert (later.instruments, later.applications) == ((listener,), (list,))


@pytest.mark.parametrize(
    ("description", "why"),
    [
        ({"name": "a"}, "a version is a printable text"),
        ({"name": "a", "version": 2}, "a version is a printable text"),
        ({"name": "c", "version": "2"}, "there is no graph 'c'"),
        (at_start("a", "2"), "the service did not start with version 2 of 'a'"),
        ({"name": "a", "version": "2", "makes": "b"}, "a version of 'a' was wanted, and one of"),
        ({"name": "a", "version": "2", "max_requests": 7}, "max_requests is 7, and the service"),
    ],
)
def test_a_description_that_makes_no_version_of_the_service_is_refused(
    description: dict[str, Any], why: str
) -> None:
    def make(given: Mapping[str, Any]) -> Blueprint:
        keys = {key: given[key] for key in ("max_requests",) if key in given}
        return graph(given.get("makes", given["name"]), **keys)

    deployment = deploy([graph("a"), graph("b")], make)
    with pytest.raises(StartupError, match=why):
        deployment.version_of(description)
    with pytest.raises(StartupError, match="takes no further versions"):
        deploy([graph("a")]).version_of({"name": "a", "version": "2"})


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
