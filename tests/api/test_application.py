"""What applications declare together: their paths, their graphs, their form of error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from penstock.api.application import WHOLE, Applications, Route, Section
from penstock.api.http import Http, HttpCall
from penstock.api.paddle import PaddleApplication
from penstock.api.plain import PlainApplication
from penstock.api.router import Router
from penstock.door.exchange import HttpReply
from penstock.errors import StartupError
from tests.api.recorded_exchange import RecordedExchange, post
from tests.engine.test_graph import EngineOfGraphs
from tests.kit.held_protocol import HeldProtocol


def answer(call: HttpCall, body: bytes) -> None:
    call.reply(200, (), call.route.pattern.encode())


def form(status: int, text: str) -> HttpReply:
    return HttpReply(status, (), f"! {text}".encode())


class Declaring:
    def __init__(self, *declared: Route | Section) -> None:
        self._declared = declared

    def routes(self) -> Iterable[Route | Section]:
        return self._declared


class Admitting(Declaring):
    def admit(self, route: Route, exchange: Any) -> None:
        return None


class Site:
    """The router of a service with two graphs, ``a`` and ``b``, and further applications."""

    def __init__(self, *declared: Route | Section) -> None:
        graphs = EngineOfGraphs()
        graphs.add("a")
        graphs.add("b")
        self.protocol: Any = HeldProtocol(graphs.engine.names)
        found = Applications(graphs.engine)
        found.add(PaddleApplication(self.protocol, found))
        found.add(PlainApplication(graphs.engine, applications=found))
        found.add(Declaring(*declared))
        self.router = Router(
            found.declared,
            max_message_bytes=1 << 20,
            not_found=found.not_found,
            refusal=found.refusal,
        )

    def ask(self, path: str, body: bytes = b"{}") -> tuple[int, str]:
        """The answer to a request; 0 if the pipeline protocol has it."""
        calls = len(self.protocol.calls)
        exchange = RecordedExchange(post(path, length=len(body)), whole=body)
        self.router.begin(exchange)
        if len(self.protocol.calls) > calls:
            return 0, ""
        ((status, _, text, _),) = exchange.replies
        return status, text.decode()


A = Http("POST", "/one", answer, graph="a")
B = Http("POST", "/two/three", answer, graph="b")


def test_the_pipeline_protocol_takes_every_name_outside_of_sections() -> None:
    site = Site(Section("/own", lambda path: form(404, path), form))
    assert site.ask("/a/x") == site.ask("/unknown/x") == (0, "")
    assert site.ask("/own/x") == (404, "! /own/x")
    assert site.ask("/own/x/y") == (404, "! /own/x/y")
    assert site.ask("/own/%f") == (400, "! bad percent escape in the path")
    assert site.ask("/unknown/x/y") == (404, "Not Found\n")
    assert site.ask("/unknown/%2F") == (404, "Not Found\n")


def test_a_graph_with_a_route_of_its_own_is_not_served_by_name() -> None:
    site = Site(A)
    assert site.ask("/one") == (200, "/one")
    assert site.ask("/a")[1] == '{"error":"unknown_service","message":"there is no route /a"}'
    assert "did you mean /b?" in site.ask("/b/")[1]
    # The other graph has none: the pipeline protocol is still the service's.
    assert site.ask("/a/x") == site.ask("/unknown/x") == (0, "")


def test_the_pipeline_protocol_gives_way_where_every_graph_has_a_route_of_its_own() -> None:
    site = Site(A, B)
    assert site.ask("/a/prediction") == (0, "")
    assert site.ask("/a/x")[0] == 404
    assert "did you mean /two/three?" in site.ask("/two/four")[1]
    assert site.ask("/two/%2F")[1].startswith('{"error":"unknown_service"')
    refused = site.router.failure(None, 400, "no request")
    assert refused.body == b'{"error":"undecodable","message":"no request"}'


def test_an_application_may_answer_for_the_whole_service_in_its_form() -> None:
    site = Site(Section(WHOLE, lambda path: form(404, path), form))
    assert site.ask("/a/x") == (0, "")
    assert site.ask("/unknown/x") == (404, "! /unknown/x")
    assert site.ask("/unknown") == (404, "! /unknown")
    assert site.router.failure(None, 400, "no request").body == b"! no request"
    ours = Site(Section(WHOLE))
    assert ours.ask("/unknown/x")[1].startswith('{"error":"unknown_service"')


def test_a_pattern_of_an_application_with_the_usual_form_is_served_beside_routes_of_graphs() -> (
    None
):
    site = Site(A, B, Http("POST", "/lines/{name}", answer))
    assert site.ask("/lines/x") == (200, "/lines/{name}")


def test_only_one_application_admits_callers() -> None:
    found = Applications(EngineOfGraphs().engine)
    found.add(Declaring())
    assert found.admission is None
    first = Admitting()
    found.add(first)
    assert found.admission is first
    with pytest.raises(StartupError, match="only one may"):
        found.add(Admitting())
