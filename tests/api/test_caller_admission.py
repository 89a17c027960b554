"""The admission of callers: what it remembers, limits and logs."""

from __future__ import annotations

import logging

import pytest

from penstock.api.admission import CallerAdmission
from penstock.api.call import Shared
from penstock.api.grpc import Grpc
from penstock.api.http import Http, HttpCall
from penstock.caller import Caller
from penstock.door.exchange import Peer
from penstock.engine.submission import Submission
from penstock.errors import PermissionDenied, TooManyRequests, Unauthenticated
from penstock.security.keys import Keys, line_of, new_key
from penstock.security.tokens import SigningKeys, TokenRules
from tests.api.recorded_exchange import RecordedExchange, grpc_head, post
from tests.engine.test_engine import make_harness

KEY = new_key()


class Known:
    """Keys that a test changes."""

    def __init__(self, *scopes: str) -> None:
        self.signing: SigningKeys | None = None
        self.changes = 0
        self.keys = [Keys(line_of("ann", KEY, scopes))]

    def refresh(self, now: float) -> bool:
        return False


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def route(path: str = "/a", **more: bool) -> Http:
    return Http("POST", path, **more)


def sent(key: str | None = KEY, address: str = "10.0.0.1") -> RecordedExchange:
    fields = () if key is None else ((b"x-api-key", key.encode()),)
    exchange = RecordedExchange(post("/a", *fields))
    exchange.peer = Peer(address, 1, None)
    return exchange


def test_a_caller_is_remembered_until_the_keys_change() -> None:
    known = Known()
    admission = CallerAdmission(known)
    assert admission.admit(route(), sent()) == Caller(name="ann", how="key")
    known.keys = []
    assert admission.admit(route(), sent()) is not None
    known.changes += 1
    with pytest.raises(Unauthenticated):
        admission.admit(route(), sent())


def test_a_bounded_number_of_callers_is_remembered() -> None:
    keys = [new_key() for _ in range(4100)]
    known = Known()
    known.keys = [Keys("\n".join(line_of("ann", key, ()) for key in keys))]
    admission = CallerAdmission(known)
    for key in keys:
        assert admission.admit(route(), sent(key)) is not None
    assert len(admission._remembered) <= 4096
    known.keys = []
    for key in keys[4:]:
        assert admission.admit(route(), sent(key)) is not None
    with pytest.raises(Unauthenticated):
        admission.admit(route(), sent(keys[0]))


def test_failures_of_an_address_are_limited_and_valid_keys_are_not() -> None:
    clock = Clock()
    admission = CallerAdmission(Known(), failures_per_minute=2, monotonic=clock)
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            admission.admit(route(), sent("wrong"))
    with pytest.raises(TooManyRequests) as caught:
        admission.admit(route(), sent("wrong"))
    assert caught.value.retry_after == pytest.approx(30.0)
    assert admission.admit(route(), sent()) is not None
    with pytest.raises(Unauthenticated):
        admission.admit(route(), sent("wrong", "10.0.0.2"))
    clock.now = 61.0
    with pytest.raises(Unauthenticated):
        admission.admit(route(), sent("wrong"))


def test_a_new_token_is_admitted_from_an_address_with_failures() -> None:
    pytest.importorskip("cryptography")
    from tests.kit.issuer import AUDIENCE, ISSUER, Issuer

    issuer, known = Issuer(), Known()
    issuer.add("one")
    known.signing = SigningKeys(issuer.key_set())
    rules = TokenRules(issuer=ISSUER, audiences=(AUDIENCE,))
    admission = CallerAdmission(known, rules=rules, failures_per_minute=1, monotonic=Clock())
    for refusal in (Unauthenticated, TooManyRequests):
        with pytest.raises(refusal):
            admission.admit(route(), sent(None))
    assert admission.admit(route(), sent(issuer.token("one"))) is not None
    with pytest.raises(TooManyRequests):
        admission.admit(route(), sent(issuer.forged("one")))


def test_a_token_is_void_when_its_issuer_withdraws_the_key() -> None:
    pytest.importorskip("cryptography")
    from tests.kit.issuer import AUDIENCE, ISSUER, Issuer

    issuer, known = Issuer(), Known()
    for kid in ("old", "new"):
        issuer.add(kid)
    known.signing = SigningKeys(issuer.key_set())
    rules = TokenRules(issuer=ISSUER, audiences=(AUDIENCE,))
    admission = CallerAdmission(known, rules=rules)
    tokens = issuer.token("old"), issuer.token("new")
    for token in tokens:
        assert admission.admit(route(), sent(token)) is not None
    issuer.remove("old")
    known.signing = SigningKeys(issuer.key_set())
    known.changes += 1
    with pytest.raises(Unauthenticated):
        admission.admit(route(), sent(tokens[0]))
    assert admission.admit(route(), sent(tokens[1])) is not None


def test_refusals_are_logged_without_the_key_and_not_all_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    admission = CallerAdmission(Known(), monotonic=clock)
    with caplog.at_level(logging.WARNING):
        for clock.now in (0.0, 0.1, 0.2, 1.5):
            with pytest.raises(Unauthenticated):
                admission.admit(route(), sent("secret"))
    assert [each.message for each in caplog.records] == [
        "a caller at 10.0.0.1 was refused: the key is not known",
        "a caller at 10.0.0.1 was refused: the key is not known (2 more since the last line)",
    ]


def test_routes_of_operators_and_with_scopes_need_them() -> None:
    scopes = {"/b": "b.use", "/x.Y/Z": "z.use"}
    plain = CallerAdmission(Known("c"), scopes=scopes)
    strong = CallerAdmission(Known("admin", "b.use", "z.use"), scopes=scopes)
    method = Grpc("/x.Y/Z")
    call = RecordedExchange(grpc_head("/x.Y/Z", (b"authorization", b"Bearer " + KEY.encode())))
    for wanted in (route(admin=True), route("/b")):
        with pytest.raises(PermissionDenied):
            plain.admit(wanted, sent())
        assert strong.admit(wanted, sent()) is not None
    with pytest.raises(PermissionDenied):
        plain.admit(method, call)
    assert strong.admit(method, call) is not None


def test_open_routes_ask_nobody() -> None:
    admission = CallerAdmission(Known(), open_paths=["/a"])
    assert admission.admit(route(), sent(None)) is None
    assert admission.admit(route("/b", open=True), sent("wrong")) is None
    with pytest.raises(Unauthenticated):
        admission.admit(route("/c"), sent(None))


def to_graph(name: str, path: str, caller: Caller | None, key: str | None = KEY) -> Submission:
    graph = make_harness().engine.graphs[0]
    graph.name = name
    submission = Submission(graph, {})
    exchange = sent(key)
    exchange.caller = caller
    submission.call = HttpCall(exchange, Shared(1), route(path))
    return submission


def test_the_scope_of_a_route_holds_for_its_graph_by_every_route() -> None:
    for scopes in ({"/double": "math"}, {"double": "math"}):
        admission = CallerAdmission(Known(), scopes=scopes)
        admission.set_paths({"double": ["/double"], "other": ["/other"]})
        infer = "/v2/models/{model}/infer"
        with pytest.raises(PermissionDenied, match="math"):
            admission.permit(to_graph("double", infer, Caller(name="ann", how="key")))
        may = Caller(name="ann", how="key", scopes=frozenset({"math"}))
        admission.permit(to_graph("double", infer, may))
        admission.permit(to_graph("other", infer, Caller(name="ann", how="key")))


def test_an_open_route_does_not_open_a_graph_with_a_scope() -> None:
    scopes = {"double": "math"}
    admission = CallerAdmission(Known(), scopes=scopes, open_paths=["/double"])
    with pytest.raises(Unauthenticated):
        admission.permit(to_graph("double", "/double", None, None))
    with pytest.raises(PermissionDenied):
        admission.permit(to_graph("double", "/double", None))
    CallerAdmission(Known("math"), scopes=scopes).permit(to_graph("double", "/double", None))
    own = Submission(make_harness().engine.graphs[0], {})
    own.graph.name = "double"
    admission.permit(own)


OTHER = b"Bearer " + new_key().encode()
GOOD = b"Bearer " + KEY.encode()


@pytest.mark.parametrize("other", [OTHER, GOOD], ids=["different", "equal"])
@pytest.mark.parametrize("name", [b"authorization", b"x-api-key"])
def test_two_keys_are_refused(name: bytes, other: bytes) -> None:
    admission = CallerAdmission(Known())
    good = GOOD
    if name == b"x-api-key":
        good, other = good[7:], other[7:]
    for fields in ([(name, other), (name, good)], [(name, good), (name, other)]):
        with pytest.raises(Unauthenticated, match="more than once"):
            admission.admit(route(), RecordedExchange(post("/a", *fields)))
    more = [(b"a", b"1"), (b"a", b"2"), (b"authorization", GOOD)]
    assert admission.admit(route(), RecordedExchange(post("/a", *more))) is not None


def test_an_empty_key_hides_no_token() -> None:
    exchange = RecordedExchange(post("/a", (b"x-api-key", b""), (b"authorization", GOOD)))
    assert CallerAdmission(Known()).admit(route(), exchange) is not None
