"""Endpoints, variants and replicas, against servers made with grpcio."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from penstock.client import (
    CallFailed,
    Endpoint,
    Service,
    Split,
    Variant,
    VariantConf,
    outliers,
)
from penstock.client.model_feeds import ModelFeeds
from penstock.client.routing import HedgeBudget
from penstock.errors import InputMismatch, ModelError, RequestError, ServiceBusy
from penstock.protocols import pb
from penstock.protocols.standard_messages import general_model_messages, inference_messages
from penstock.protocols.status import GrpcCode
from penstock.runtimes.prototxt import parse_model_conf

from .conftest import TIMEOUT, Stuck, echo
from .conftest import Service as Server

Serve = Callable[..., Server]
Made = Callable[..., Endpoint]
FEED = {"k": "v"}
MANY = 60


@pytest.fixture
def endpoint() -> Iterator[Made]:
    made = []

    def make(*variants: Variant, **options: Any) -> Endpoint:
        made.append(Endpoint("x", variants, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def one(*servers: Server | str) -> Variant:
    return Variant("v", [each if isinstance(each, str) else each.endpoint for each in servers])


def unavailable(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAVAILABLE, "lost in the middle")


def busy(request: bytes, context: grpc.ServicerContext) -> bytes:
    return pb.Response(err_no=3004, err_msg="at capacity").SerializeToString()


def refusing(request: bytes, context: grpc.ServicerContext) -> bytes:
    """Says that it has not begun the call, and when it may come again: in a second."""
    context.set_trailing_metadata((("grpc-retry-pushback-ms", "1000"),))
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "at capacity")


def test_an_answer_has_the_outputs_the_variants_tag_and_the_replica(
    serve: Serve, endpoint: Made
) -> None:
    server = serve(echo)
    found = endpoint(one(server)).predict({"k": "v", "l": "w"}, log_id=7, timeout=TIMEOUT)
    assert found == ({"k": "v", "l": "w"}, "v", server.endpoint, 1)
    assert server.next_request().logid == 7
    assert endpoint(one(server)).predict({"k": "v", "l": "w"}, ["l"]).outputs == {"l": "w"}


def test_weights_choose_the_variant_unless_the_call_names_one(serve: Serve, endpoint: Made) -> None:
    variants = [
        Variant(tag, [serve(echo).endpoint], weight)
        for tag, weight in (("a", 75), ("b", 25), ("none", 0))
    ]
    made = endpoint(*variants)
    assert made.tags == ("a", "b", "none")
    futures = [made.predict_future(FEED, timeout=TIMEOUT) for _ in range(400)]
    tags = Counter(each.result(TIMEOUT).tag for each in futures)
    # Of 400 draws, 300 are expected; five standard deviations of 8.7.
    assert 256 < tags["a"] < 344
    assert tags["none"] == 0
    assert made.predict(FEED, tag="none", timeout=TIMEOUT).tag == "none"
    with pytest.raises(ValueError, match="has the variants"):
        made.predict(FEED, tag="c")


def test_replicas_share_the_calls_and_many_threads_share_an_endpoint(
    serve: Serve, endpoint: Made
) -> None:
    made = endpoint(one(serve(echo), serve(echo)))

    def call(number: int) -> str:
        found = made.predict({"k": str(number)}, timeout=TIMEOUT)
        assert found.outputs == {"k": str(number)}
        return found.replica

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(call, range(MANY)))) == 2
    assert made._variants["v"].calls().opened()[1].in_flight == [0, 0]


def test_a_replica_that_cannot_be_reached_costs_no_call(
    serve: Serve, endpoint: Made, dead_endpoint: str
) -> None:
    made = endpoint(one(dead_endpoint, serve(echo)), connect_retry_count=0)
    for _ in range(MANY):
        assert made.predict(FEED, timeout=TIMEOUT).outputs == FEED


def test_a_failure_after_which_a_call_may_have_run_is_repeated_only_if_idempotent(
    serve: Serve, endpoint: Made
) -> None:
    lost, good = serve(unavailable), serve(echo)
    made = endpoint(one(lost, good), load_balance_strategy="rr")
    found = [made.predict(FEED, idempotent=True, timeout=TIMEOUT) for _ in range(4)]
    assert {each.replica for each in found} == {good.endpoint}
    assert max(each.attempts for each in found) == 2
    futures = [made.predict_future(FEED, timeout=TIMEOUT) for _ in range(4)]
    errors = [each.exception(TIMEOUT) for each in futures]
    assert any("lost in the middle" in str(each) for each in errors)


def test_an_outage_of_all_replicas_does_not_multiply_the_calls(
    serve: Serve, endpoint: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outliers, "FIRST_EJECTION", 1000.0)
    monkeypatch.setattr(outliers, "LONGEST_EJECTION", 1000.0)
    servers = [serve(unavailable) for _ in range(2)]
    made = endpoint(one(*servers), load_balance_strategy="rr", idempotent=True)

    def received() -> int:
        return sum(each.received.qsize() for each in servers)

    assert made.predict_future(FEED).exception(TIMEOUT) is not None
    assert received() == 3
    for _ in range(10):  # until both are out
        made.predict_future(FEED).exception(TIMEOUT)
    before = received()
    for _ in range(10):
        assert "lost in the middle" in str(made.predict_future(FEED).exception(TIMEOUT))
    assert received() == before + 10
    for each in servers:
        each.answer = echo
    assert made.predict(FEED, timeout=TIMEOUT).outputs == FEED


def test_a_replica_that_is_at_capacity_passes_the_call_on(serve: Serve, endpoint: Made) -> None:
    full, good = serve(refusing), serve(echo)
    made = endpoint(one(full, good), load_balance_strategy="rr")
    found = [made.predict(FEED, timeout=TIMEOUT).replica for _ in range(4)]
    assert set(found) == {good.endpoint}
    assert full.received.qsize() > 0
    with pytest.raises(CallFailed, match="at capacity"):
        endpoint(one(full)).predict(FEED, timeout=0.9)


def test_a_busy_reply_that_does_not_say_whether_an_op_has_run_is_passed_on_if_idempotent(
    serve: Serve, endpoint: Made
) -> None:
    full, good = serve(busy), serve(echo)
    made = endpoint(one(full, good), load_balance_strategy="rr")
    found = [made.predict(FEED, timeout=TIMEOUT, idempotent=True).replica for _ in range(4)]
    assert set(found) == {good.endpoint}
    errors = [made.predict_future(FEED).exception(TIMEOUT) for _ in range(2)]
    assert any(isinstance(each, ServiceBusy) for each in errors)


def test_a_reply_that_is_none_comes_from_another_replica_if_the_call_is_idempotent(
    serve: Serve, endpoint: Made
) -> None:
    broken, good = serve(lambda *_: b"\xff"), serve(echo)
    made = endpoint(one(broken, good), load_balance_strategy="rr", idempotent=True)
    assert {made.predict(FEED, timeout=TIMEOUT).replica for _ in range(4)} == {good.endpoint}
    with pytest.raises(CallFailed, match="cannot be read") as failed:
        endpoint(one(broken)).predict(FEED, timeout=TIMEOUT)
    assert broken.endpoint in str(failed.value)


def test_a_replica_that_answers_garbage_gets_no_further_calls(
    serve: Serve, endpoint: Made, caplog: pytest.LogCaptureFixture
) -> None:
    broken, good = serve(lambda *_: b"\xff"), serve(echo)
    made = endpoint(one(broken, good), load_balance_strategy="rr")
    errors = [made.predict_future(FEED, timeout=TIMEOUT).exception(TIMEOUT) for _ in range(MANY)]
    failed = [str(each) for each in errors if each is not None]
    # Five until it is ejected, and one for each second that the test takes.
    assert 5 <= len(failed) < MANY // 2
    assert all("cannot be read" in each for each in failed)
    assert good.received.qsize() == MANY - len(failed)
    assert f"{broken.endpoint} is tried last for a while: its last calls have failed" in caplog.text


def test_a_replica_that_hangs_is_no_longer_asked_first_once_backup_requests_have_won(
    serve: Serve, stuck: Stuck, endpoint: Made
) -> None:
    made = endpoint(
        one(serve(stuck), serve(echo)),
        load_balance_strategy="rr",
        hedge_request_timeout_ms=20,
        hedge_budget=1.0,
        idempotent=True,
    )
    twice = [made.predict(FEED, timeout=TIMEOUT).attempts - 1 for _ in range(MANY)]
    assert 5 <= sum(twice) < MANY // 2


def test_a_late_idempotent_call_is_sent_to_a_second_replica_and_the_first_is_told(
    serve: Serve, stuck: Stuck, endpoint: Made
) -> None:
    late, good = serve(stuck), serve(echo)
    variant = one(late, good)
    made = endpoint(
        variant,
        load_balance_strategy="rr",
        hedge_request_timeout_ms=50,
        hedge_budget=1.0,
        idempotent=True,
    )
    found = [made.predict(FEED, timeout=TIMEOUT) for _ in range(2)]
    assert {each.replica for each in found} == {good.endpoint}
    assert stuck.abandoned.wait(TIMEOUT)
    assert max(each.attempts for each in found) == 2


def test_without_a_budget_or_idempotence_no_backup_request_is_sent(
    serve: Serve, stuck: Stuck, endpoint: Made
) -> None:
    for options in ({"hedge_budget": 0.0, "idempotent": True}, {"hedge_budget": 1.0}):
        made = endpoint(
            one(serve(stuck), serve(echo)),
            load_balance_strategy="rr",
            hedge_request_timeout_ms=1,
            **options,
        )
        futures = [made.predict_future(FEED, timeout=0.3) for _ in range(4)]
        errors = [each.exception(TIMEOUT) for each in futures]
        assert any("deadline" in str(each).lower() for each in errors), errors


@pytest.mark.parametrize("strategy", ["rr", "la", "two_choices"])
def test_a_backup_request_that_the_budget_refuses_takes_no_replicas_turn(
    serve: Serve, endpoint: Made, strategy: str
) -> None:
    refused = threading.Semaphore(0)

    class Spent(HedgeBudget):
        def take(self) -> bool:
            refused.release()
            return False

    def late(request: bytes, context: grpc.ServicerContext) -> bytes:
        assert refused.acquire(timeout=TIMEOUT)
        return echo(request, context)

    slow = serve(late)
    made = endpoint(
        one(slow, serve(echo)),
        load_balance_strategy=strategy,
        hedge_request_timeout_ms=20,
        idempotent=True,
    )
    made._variants["v"]._budget = Spent()
    for _ in range(MANY):
        made.predict(FEED, timeout=TIMEOUT)
    # Half of them, and those until the other one is connected.
    assert MANY // 3 < slow.received.qsize() < MANY * 2 // 3


@pytest.mark.parametrize("strategy", ["rr", "la", "two_choices"])
def test_a_call_that_is_sent_again_takes_no_replicas_turn(
    serve: Serve, endpoint: Made, strategy: str
) -> None:
    full, good = serve(refusing), serve(echo)
    made = endpoint(one(full, good), load_balance_strategy=strategy)
    for _ in range(MANY):
        assert made.predict(FEED, timeout=TIMEOUT).replica == good.endpoint
    assert full.received.qsize() < MANY * 2 // 3


def test_a_key_stays_with_one_replica(serve: Serve, endpoint: Made) -> None:
    made = endpoint(one(*(serve(echo) for _ in range(3))), load_balance_strategy="sticky")
    where = {
        key: {made.predict(FEED, key=key, timeout=TIMEOUT).replica for _ in range(5)}
        for key in "abcdefghijkl"
    }
    assert {len(replicas) for replicas in where.values()} == {1}
    assert len(set.union(*where.values())) > 1


def test_a_value_in_the_call_chooses_the_variant_and_the_servers_with_its_tag(
    serve: Serve, endpoint: Made
) -> None:
    a, b, other = (serve(echo).endpoint for _ in range(3))
    made = endpoint(
        Variant(
            "sites",
            [f"{a} site:a", f"{b} site:b"],
            split=Split(split_tag_name="site", tag_candidates=("a", "b")),
        ),
        Variant("others", [other]),
    )

    def replicas(**options: Any) -> set[tuple[str, str]]:
        found = [made.predict(FEED, timeout=TIMEOUT, **options) for _ in range(8)]
        return {(each.tag, each.replica) for each in found}

    assert replicas(split={"site": "a"}) == {("sites", a)}
    assert replicas(split={"site": "b"}) == {("sites", b)}
    assert replicas(split={"site": "c"}) == replicas() == {("others", other)}
    with pytest.raises(ValueError, match="no server of the cluster has the tag site:c"):
        endpoint(
            Variant("v", [f"{a} site:a"], split=Split(split_tag_name="site", tag_candidates=("c",)))
        )


def test_a_future_and_a_task_cancel_the_call_on_the_server(
    serve: Serve, stuck: Stuck, endpoint: Made
) -> None:
    made = endpoint(one(serve(stuck)))
    future = made.predict_future(FEED)
    assert stuck.entered.wait(TIMEOUT)
    assert future.cancel()
    assert not future.cancel()
    assert stuck.abandoned.wait(TIMEOUT)
    with pytest.raises(CallFailed) as failed:
        future.result(TIMEOUT)
    assert failed.value.status is GrpcCode.CANCELLED
    stuck.abandoned.clear()
    stuck.entered.clear()

    async def cancelled() -> None:
        task = asyncio.create_task(made.predict_async(FEED))
        assert await asyncio.to_thread(stuck.entered.wait, TIMEOUT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert stuck.abandoned.wait(TIMEOUT)


def test_calls_on_an_event_loop(serve: Serve, endpoint: Made) -> None:
    made = endpoint(one(serve(echo)))

    async def calls() -> list[str]:
        found = await asyncio.gather(
            *(made.predict_async({"k": str(at)}, timeout=TIMEOUT) for at in range(MANY))
        )
        return [each.outputs["k"] for each in found]

    assert asyncio.run(calls()) == [str(at) for at in range(MANY)]


def test_closing_ends_calls_also_one_that_waits_for_its_next_attempt(
    serve: Serve, stuck: Stuck, endpoint: Made
) -> None:
    made = endpoint(one(serve(stuck)))
    future = made.predict_future(FEED)
    assert stuck.entered.wait(TIMEOUT)
    made.close()
    with pytest.raises(CallFailed, match="the client was closed"):
        future.result(TIMEOUT)

    server = serve(refusing)  # its hint is a second
    made = endpoint(one(server))
    future = made.predict_future(FEED)
    server.received.get(timeout=TIMEOUT)
    in_flight = made._variants["v"].calls().opened()[1].in_flight
    limit = time.monotonic() + TIMEOUT
    while in_flight != [0] and time.monotonic() < limit:
        time.sleep(0.001)
    made.close()
    with pytest.raises(CallFailed, match="the client was closed"):
        future.result(TIMEOUT)


def test_a_forked_child_and_its_parent_can_both_use_an_endpoint(
    serve: Serve, endpoint: Made
) -> None:
    made = endpoint(one(serve(echo)))
    made.predict(FEED, timeout=TIMEOUT)
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if made.predict(FEED, timeout=TIMEOUT).outputs == FEED else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert made.predict(FEED, timeout=TIMEOUT).outputs == FEED


def test_a_model_of_the_open_inference_protocol(serve: Serve, endpoint: Made) -> None:
    request, response = inference_messages("ModelInfer")

    def doubled(received: bytes, context: grpc.ServicerContext) -> bytes:
        call = request.FromString(received)
        values = np.frombuffer(call.raw_input_contents[0], np.float32) * 2
        reply = response(model_name=call.model_name, raw_output_contents=[values.tobytes()] * 2)
        for name in ("y", "z"):
            reply.outputs.add(name=name, datatype="FP32", shape=[1, 2])
        wanted = [each.name for each in call.outputs]
        assert wanted in ([], ["y"])
        return bytes(reply.SerializeToString())

    server = serve(doubled)
    made = endpoint(one(server), protocol="oip")
    feed = {"x": np.float32([[1, 2]])}
    outputs = made.predict(feed, timeout=TIMEOUT).outputs
    assert {name: each.tolist() for name, each in outputs.items()} == {
        "y": [[2, 4]],
        "z": [[2, 4]],
    }
    assert list(made.predict(feed, "y", timeout=TIMEOUT).outputs) == ["y"]
    assert request.FromString(server.received.get(timeout=TIMEOUT)).model_name == "x"
    with pytest.raises(TypeError, match="write an array"):
        made.predict({"x": object()})


def test_a_model_of_general_model_service(serve: Serve, endpoint: Made) -> None:
    request, response = general_model_messages()

    def twice(received: bytes, context: grpc.ServicerContext) -> bytes:
        call = request.FromString(received)
        (tensor,) = call.tensor
        doubled = {"name": "y", "elem_type": 1, "shape": tensor.shape}
        outputs = [{"tensor": [doubled], "engine_name": "m"}]
        outputs[0]["tensor"][0]["float_data"] = [2 * each for each in tensor.float_data]
        return bytes(response(outputs=outputs, log_id=call.log_id).SerializeToString())

    server = serve(twice)
    conf = (
        'feed_var { name: "x" feed_type: 1 shape: 2 } fetch_var { name: "y" alias_name: "twice" }'
    )
    feeds = ModelFeeds(parse_model_conf(conf))
    made = endpoint(one(server), protocol="h2:grpc", client_config=feeds)
    feed = {"x": np.float32([[1, 2]])}
    found = made.predict(feed, ["twice"], log_id=2**63, timeout=TIMEOUT)
    np.testing.assert_array_equal(found.outputs["twice"], np.float32([[2, 4]]))
    sent = request.FromString(server.received.get(timeout=TIMEOUT))
    assert (sent.fetch_var_names, sent.log_id) == (["twice"], 2**63)
    with pytest.raises(InputMismatch, match="Wrong feed name: z"):
        made.predict({"z": 1})
    bad = response(err_no=5000, err_msg="no such input").SerializeToString()
    with pytest.raises(RequestError, match="no such input"):
        endpoint(one(serve(lambda *_: bad)), protocol="h2:grpc").predict(feed, timeout=TIMEOUT)


def test_inference_sends_a_message_of_any_service(serve: Serve, endpoint: Made) -> None:
    server = serve(echo)
    made = endpoint(one(server), protocol="h2:grpc", service_name="my.Service")
    found = made.inference(pb.Request(key=["k"], value=["v"]), pb.Response, timeout=TIMEOUT)
    assert list(found.outputs.value) == ["v"]
    assert server.paths == {"/my.Service/inference"}
    with pytest.raises(TypeError, match=r"the messages of my.Service are not known"):
        made.predict(FEED)


REFUSED: list[tuple[list[Variant], dict[str, Any], str]] = [
    ([], {}, "weights of variants"),
    ([Variant("v", ["h:1"], 0)], {}, "weights of variants"),
    ([Variant("v", ["h:1"], -1)], {}, "variant 'v': its weight is negative"),
    ([Variant("v", ["h:1"]), Variant("v", ["h:2"])], {}, "two variants have the tag"),
    ([Variant("v", [])], {}, "variant 'v': a cluster needs"),
    ([Variant("v", ["h"])], {}, "variant 'v': an endpoint must be host:port"),
    ([Variant("v", ["h:1"])], {"hedge_budget": 2}, "hedge_budget is a share"),
    ([Variant("v", ["h:1"])], {"protocol": "soap"}, "protocol is one of"),
    ([Variant("v", ["h:1"])], {"compress_type": 2}, "compress_type is for baidu_std"),
    ([Variant("v", ["h:1"])], {"protocol": "baidu_std", "token": "t"}, "a token is for gRPC"),
]


@pytest.mark.parametrize(("variants", "options", "error"), REFUSED, ids=range(len(REFUSED)))
def test_what_makes_no_sense_is_refused(
    variants: list[Variant], options: dict[str, Any], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        Endpoint("x", variants, **options)


def test_a_service_has_endpoints_by_name(serve: Serve, tmp_path: Path) -> None:
    endpoints = [Endpoint(name, [one(serve(echo))]) for name in ("a", "b")]
    with Service(endpoints) as service:
        assert [*service] == ["a", "b"]
        assert service["b"].predict(FEED, timeout=TIMEOUT).outputs == FEED
        with pytest.raises(KeyError, match="there is no endpoint 'c'"):
            service["c"]
    with pytest.raises(ValueError, match="two endpoints have the name 'a'"):
        Service([endpoints[0], endpoints[0]])
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        Service.read(tmp_path)


def test_a_variant_may_be_called_in_its_own_way(serve: Serve, endpoint: Made) -> None:
    made = endpoint(
        Variant("v", [serve(echo).endpoint], conf=VariantConf(rpc_timeout_ms=0)), protocol="oip"
    )
    assert made.predict(FEED).outputs == FEED
