"""Replicas behind a name, which come and go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from penstock.client import CallFailed, Endpoint, Variant, routed_call
from penstock.client.names import changes

from .conftest import TIMEOUT, Service, Stuck, echo

Serve = Callable[..., Service]
FEED = {"k": "v"}


class Names:
    """The name server: what a look-up gives."""

    def __init__(self) -> None:
        self.found: list[str] = []

    async def lookup(self, loop: object, host: str, port: int) -> list[str]:
        await asyncio.sleep(0)
        if host != "pods.example" or not self.found:
            raise OSError("no such name")
        return [*self.found]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names()
    monkeypatch.setattr(routed_call, "lookup", made.lookup)
    monkeypatch.setattr("penstock.client.endpoint_channel.lookup", made.lookup)
    monkeypatch.setattr(routed_call, "AGAIN", 0.001)
    return made


def servers(serve: Serve, *answers: Callable[..., bytes]) -> list[Service]:
    first = serve(answers[0])
    return [
        first,
        *(
            serve(each, address=f"127.0.0.{at}:{first.port}")
            for at, each in enumerate(answers[1:], start=2)
        ),
    ]


def until(made: Endpoint, replicas: set[str]) -> None:
    """Call until these replicas answer, and no others."""
    limit = time.monotonic() + TIMEOUT
    while True:
        assert time.monotonic() < limit
        if {made.predict(FEED, timeout=TIMEOUT).replica for _ in range(12)} == replicas:
            return


def test_what_has_come_and_what_has_gone() -> None:
    assert changes([], ["a", "b", "a"]) == (["a", "b"], [])
    assert changes(["a", "b"], ["c", "b"]) == (["c"], ["a"])
    assert changes(["a"], ["a"]) == ([], [])


def test_calls_go_to_all_servers_of_a_name_as_they_come_and_go(serve: Serve, names: Names) -> None:
    pods = servers(serve, echo, echo, echo)
    names.found = ["127.0.0.1"]
    with Endpoint("x", [Variant("v", [f"dns:///pods.example:{pods[0].port}"])]) as made:
        until(made, {pods[0].endpoint})
        names.found = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        until(made, {each.endpoint for each in pods})
        names.found = ["127.0.0.3"]
        until(made, {pods[2].endpoint})
        names.found = []  # the name server fails: what is known stays
        for _ in range(20):
            assert made.predict(FEED, timeout=TIMEOUT).replica == pods[2].endpoint
        for _ in range(20):  # places are used again
            names.found = ["127.0.0.1", "127.0.0.2"]
            until(made, {each.endpoint for each in pods[:2]})
            names.found = ["127.0.0.3"]
            until(made, {pods[2].endpoint})
        assert len(made._variants["v"].calls().opened()[1].names) <= 4


def test_a_call_in_flight_to_a_server_that_has_gone_ends_by_itself(
    serve: Serve, names: Names, stuck: Stuck
) -> None:
    pods = servers(serve, stuck, echo)
    names.found = ["127.0.0.1"]
    with Endpoint("x", [Variant("v", [f"dns:///pods.example:{pods[0].port}"])]) as made:
        held = made.predict_future(FEED, timeout=TIMEOUT)
        assert stuck.entered.wait(TIMEOUT)
        names.found = ["127.0.0.2"]
        with_other = made.predict_future(FEED, timeout=TIMEOUT)
        limit = time.monotonic() + TIMEOUT
        while made.predict_future(FEED, timeout=0.2).exception(TIMEOUT) is not None:
            assert time.monotonic() < limit
        stuck.released.set()
        held.result(TIMEOUT)
        with_other.result(TIMEOUT)
        until(made, {pods[1].endpoint})


def test_a_name_that_is_none_is_the_failure_of_its_calls(names: Names) -> None:
    with Endpoint("x", [Variant("v", ["dns:///pods.example:1"])], connect_retry_count=0) as made:
        with pytest.raises(CallFailed, match="the name does not resolve"):
            made.predict(FEED, timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("cluster", "error"),
    [
        (["dns:///pods"], "must be host:port"),
        (["dns:///pods:1 site:a"], "has no tags"),
        (["dns://pods:1"], "must be host:port"),
    ],
)
def test_what_is_no_name_is_refused(cluster: list[str], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Endpoint("x", [Variant("v", cluster)])
