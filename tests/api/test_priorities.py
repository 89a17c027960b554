"""Which priority a request has."""

from typing import Any

import pytest

from penstock.api.call import OfStream, Shared
from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.http import Http, HttpCall
from penstock.api.priorities import Priorities
from penstock.caller import Caller
from penstock.engine.submission import Submission
from penstock.errors import Undecodable
from penstock.protocols.heads import RequestHead
from tests.api.recorded_exchange import RecordedExchange, grpc_head, post
from tests.engine.test_engine import make_harness

RULES: dict[str, Any] = {
    "levels": 4,
    "default": 3,
    "callers": {"nightly": 4, "boss": 1, "jwt:sam": 2},
    "scopes": {"interactive": 2, "bulk": 4},
    "routes": {"/fast": 1, "/{name}/slow": 4},
    "header": True,
}


class Message(Submission):
    @property
    def priority(self) -> int:
        return int(self.context)


def level_of(
    pattern: str = "/other",
    caller: Any = None,
    named: bytes | None = None,
    in_message: int = 0,
    **rules: Any,
) -> int:
    head: RequestHead = post("/x", *([] if named is None else [(b"penstock-priority", named)]))
    exchange = RecordedExchange(head)
    exchange.caller = caller
    submission = Message(make_harness().engine.graphs[0], {}, context=in_message)
    submission.call = HttpCall(exchange, Shared(1), Http("POST", pattern))
    return Priorities(**RULES | rules).level_of(submission)


def keyed(name: str, *scopes: str) -> Caller:
    return Caller(name=name, how="key", scopes=frozenset(scopes))


@pytest.mark.parametrize(
    ("pattern", "caller", "named", "priority"),
    [
        ("/other", None, None, 3),
        ("/fast", None, None, 1),
        ("/{name}/slow", None, None, 4),
        ("/fast", keyed("nightly"), None, 4),
        ("/fast", "nightly", None, 4),
        ("/other", keyed("ann", "bulk", "interactive", "unlisted"), None, 2),
        ("/other", keyed("boss", "bulk"), None, 1),
        ("/other", Caller(name="boss", how="jwt"), None, 3),
        ("/other", Caller(name="sam", how="jwt"), None, 2),
        ("/other", keyed("ann"), None, 3),
        ("/other", None, b"1", 3),
        ("/other", keyed("ann"), b"1", 3),
        ("/other", keyed("ann"), b"4", 4),
        ("/fast", None, b"1", 1),
        ("/fast", None, b"4", 4),
        ("/fast", keyed("nightly"), b"1", 4),
        ("/other", keyed("boss"), b"2", 2),
    ],
)
def test_the_caller_counts_before_the_route_and_may_lower_its_own(
    pattern: str, caller: Any, named: bytes | None, priority: int
) -> None:
    assert level_of(pattern, caller, named) == priority - 1


@pytest.mark.parametrize("named", [b"0", b"5", b"high", b"", b"-1", b"1.0", b"00001", b"\xb2"])
def test_another_value_of_the_field_is_refused(named: bytes) -> None:
    with pytest.raises(Undecodable, match="from 1, the highest, to 4"):
        level_of(named=named)


@pytest.mark.parametrize(
    ("caller", "named", "in_message", "priority"),
    [
        (keyed("ann"), None, 4, 4),
        (keyed("ann"), None, 1, 3),
        (keyed("boss"), b"2", 3, 3),
        (keyed("boss"), b"3", 2, 3),
        (None, b"2", 0, 3),
    ],
)
def test_the_message_may_lower_the_priority_as_the_field(
    caller: Any, named: bytes | None, in_message: int, priority: int
) -> None:
    assert level_of("/other", caller, named, in_message) == priority - 1


def test_a_priority_of_a_message_beyond_the_last_is_refused_where_it_counts() -> None:
    assert level_of(in_message=5, header=False) == 2
    with pytest.raises(Undecodable, match="the parameter priority is 1"):
        level_of(in_message=5)


def test_the_field_counts_only_where_the_service_allows_it() -> None:
    assert level_of(named=b"nonsense", header=False) == 2


def test_the_service_s_own_requests_have_the_highest() -> None:
    submission = Submission(make_harness().engine.graphs[0], {})
    assert Priorities(**RULES).level_of(submission) == 0


def test_messages_of_a_stream_have_the_route_and_the_field_of_the_stream() -> None:
    for fields, priority in (((), 1), (((b"penstock-priority", b"2"),), 2)):
        exchange = RecordedExchange(grpc_head("/x.Y/Stream", *fields))
        submission = Submission(make_harness().engine.graphs[0], {})
        stream = GrpcCall(exchange, Shared(1), Grpc("/x.Y/Stream"))
        submission.call = OfStream(None, stream)
        rules = RULES | {"routes": {"/x.Y/Stream": 1}}
        assert Priorities(**rules).level_of(submission) == priority - 1


def test_without_listed_callers_a_request_may_raise_its_priority() -> None:
    rules: dict[str, Any] = {"callers": {}, "scopes": {}}
    assert level_of("/{name}/slow", named=b"1", **rules) == 0


def test_a_graph_has_the_priority_of_its_own_route_by_every_route() -> None:
    rules: dict[str, Any] = {"routes": {"/a": 1, "/b": 2}, "paths": {"g": ["/a", "/b", "/c"]}}
    graph = make_harness().engine.graphs[0]
    graph.name = "g"
    submission = Submission(graph, {})
    for pattern, priority in (("/a", 1), ("/b", 2), ("/v2/models/{model}/infer", 2)):
        submission.call = HttpCall(RecordedExchange(post("/x")), Shared(1), Http("POST", pattern))
        assert Priorities(**RULES | rules).level_of(submission) == priority - 1
