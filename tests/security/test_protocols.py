"""Nothing without a right key or token gets past the head, over any protocol; secrets are in no
log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jwt", reason="tokens need PyJWT")
pytest.importorskip("cryptography", reason="tokens need PyJWT with its extra crypto")

from penstock.protocols import standard_messages as messages
from penstock.protocols.pb import pipeline_service_pb2
from penstock.security.keys import line_of, new_key
from tests.kit import baidu_std, http1
from tests.kit.frames import message
from tests.kit.http2 import call, linked
from tests.kit.issuer import AUDIENCE, ISSUER, Issuer, issuing, raw_token, usual
from tests.service.scripts import until
from tests.services.process import ServiceProcess, free_port, running

pytestmark = pytest.mark.real

SCRIPT = """
from penstock import App, Service, op, run

dag = {{"enable_prometheus": True, "prometheus_port": {metrics}}}
quotas = {{"two": {{"rate": 0.001, "burst": 2, "callers": ["fay", "gil"], "routes": ["half"]}}}}
app = App("typed", security={security!r}, dag=dag, quotas=quotas, log_requests=True)

@app.route("/double")
def double(x: int) -> int:
    return 2 * x

@app.route("/half")
def half(x: float) -> float:
    return x / 2

@op()
def echo(request):
    return request

run(app, Service("echo", echo))
"""
KEY, OLD_KEY, OTHER_KEY = new_key(), new_key(), new_key()


@dataclass
class Site:
    issuer: Issuer
    server: ServiceProcess
    keys: Path
    metrics: int


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    keys = folder / "keys.txt"
    lines = [line_of("bob", KEY, ()), line_of("bob", OLD_KEY, ["admin"])]
    keys.write_text("".join(f"{line}\n" for line in lines))
    with issuing() as issuer:
        issuer.add("one")
        issuer.add("two", "RS256")
        jwt = {"issuer": ISSUER, "audience": [AUDIENCE], "keys": issuer.url}
        security = {"keys": str(keys), "jwt": jwt, "failures_per_minute": 100_000}
        security["scopes"] = {"/half": "half.use"}
        script = folder / "service.py"
        metrics = free_port()
        script.write_text(SCRIPT.format(security=security, metrics=metrics))
        with running(script) as server:
            assert issuer.fetched.wait(30)
            until_answered(server, issuer)
            yield Site(issuer, server, keys, metrics)
            log = server.log()
    secrets = [KEY, OLD_KEY, OTHER_KEY, *SHOWN]
    assert [each for each in secrets if each and each in log] == []


def until_answered(server: ServiceProcess, issuer: Issuer) -> None:
    """Wait until the service has the issuer's keys: until then it is not available to tokens."""
    good = {"authorization": f"Bearer {issuer.token('one')}"}
    deadline = time.monotonic() + 30
    while by_pipeline(server, good) == 503 and time.monotonic() < deadline:
        pass


SHOWN: list[str] = []
"""The tokens that were sent."""
Fields = dict[str, str]


def bearer(token: str) -> Fields:
    SHOWN.append(token)
    return {"authorization": f"Bearer {token}"}


def with_shared_secret(issuer: Issuer) -> str:
    """The public key as the secret of HS256: RFC 8725, section 2.1."""
    signed = raw_token({"alg": "HS256", "kid": "two"}, usual()).rstrip(".")
    tag = hmac.new(issuer.public_pem("two"), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{urlsafe_b64encode(tag).rstrip(b'=').decode()}"


def changed(token: str) -> str:
    """Another subject with the same signature."""
    head, _, signature = token.split(".")
    _, claims, _ = raw_token({}, usual(sub="root")).split(".")
    return f"{head}.{claims}.{signature}"


GOOD: dict[str, Callable[[Issuer], Fields]] = {
    "a key in X-API-Key": lambda _: {"x-api-key": KEY},
    "a key as Bearer": lambda _: bearer(KEY),
    "bearer in small letters": lambda _: {"authorization": f"bearer {KEY}"},
    "the second key of a name": lambda _: {"x-api-key": OLD_KEY},
    "a token, ES256": lambda issuer: bearer(issuer.token("one")),
    "a token, RS256": lambda issuer: bearer(issuer.token("two")),
    "a token for several services": lambda issuer: bearer(
        issuer.token("one", aud=["other", AUDIENCE])
    ),
    "a token in X-API-Key": lambda issuer: {"x-api-key": issuer.token("one")},
}
NOW = time.time
BAD: dict[str, Callable[[Issuer], Fields]] = {
    "nothing": lambda _: {},
    "an empty key": lambda _: {"x-api-key": ""},
    "Bearer alone": lambda _: {"authorization": "Bearer"},
    "an unknown key": lambda _: {"x-api-key": OTHER_KEY},
    "the beginning of a key": lambda _: {"x-api-key": KEY[:-1]},
    "a key and more": lambda _: {"x-api-key": KEY + "a"},
    "Basic": lambda _: {"authorization": f"Basic {KEY}"},
    "a wrong key before a right one": lambda _: {**bearer(KEY), "x-api-key": OTHER_KEY},
    "an expired token": lambda issuer: bearer(issuer.token("one", exp=NOW() - 60)),
    "a token without end": lambda issuer: bearer(issuer.token("one", exp=None)),
    "a token of later": lambda issuer: bearer(issuer.token("one", nbf=NOW() + 90)),
    "a token issued later": lambda issuer: bearer(issuer.token("one", iat=NOW() + 90)),
    "another issuer": lambda issuer: bearer(issuer.token("one", iss="https://other.test")),
    "another service": lambda issuer: bearer(issuer.token("one", aud="other")),
    "no audience": lambda issuer: bearer(issuer.token("one", aud=None)),
    "no name": lambda issuer: bearer(issuer.token("one", sub=None)),
    "a forged token": lambda issuer: bearer(issuer.forged("one")),
    "a forged token, RS256": lambda issuer: bearer(issuer.forged("two")),
    "changed claims": lambda issuer: bearer(changed(issuer.token("one"))),
    "alg none": lambda _: bearer(raw_token({"alg": "none", "kid": "one"}, usual())),
    "alg None": lambda _: bearer(raw_token({"alg": "None", "kid": "one"}, usual())),
    "HS256 with the public key": lambda issuer: bearer(with_shared_secret(issuer)),
    "another algorithm than the key's": lambda issuer: bearer(
        raw_token({"alg": "RS256", "kid": "one"}, usual(), b"a" * 256)
    ),
    "critical extensions": lambda issuer: bearer(issuer.token("one", head={"crit": ["exp"]})),
    "no token at all": lambda _: bearer("a.b.c"),
}


def by_http(server: ServiceProcess, method: str, path: str, fields: Fields, body: bytes) -> Any:
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with http1.connected(server.http_port) as connection:
        connection.send(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{head}"
            f"Content-Length: {len(body)}\r\n\r\n".encode(),
            body,
        )
        return connection.reply()


def by_pipeline(server: ServiceProcess, fields: Fields) -> int:
    body = b'{"key":["x"],"value":["1"]}'
    return int(by_http(server, "POST", "/echo/prediction", fields, body).status)


def by_typed(server: ServiceProcess, fields: Fields) -> int:
    reply = by_http(server, "POST", "/double", fields, b'{"x":2}')
    if reply.status == 401:
        assert reply.header("www-authenticate").startswith("Bearer")
    return int(reply.status)


def by_oip(server: ServiceProcess, fields: Fields) -> int:
    return int(by_http(server, "GET", "/v2", fields, b"").status)


def by_grpc(server: ServiceProcess, path: str, body: bytes, fields: Fields) -> int:
    more = [(name.encode(), value.encode()) for name, value in fields.items()]
    with linked(server.rpc_port) as link:
        stream = link.open(call(path.encode(), *more))
        link.upload(stream, message(body))
        answer = link.answer(stream)
    return {"0": 200, "7": 403, "16": 401}.get(answer.fields[b"grpc-status"].decode(), 500)


def by_grpc_pipeline(server: ServiceProcess, fields: Fields) -> int:
    request = pipeline_service_pb2.Request(name="echo", method="prediction")
    request.key.append("x")
    request.value.append("1")
    path = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
    return by_grpc(server, path, request.SerializeToString(), fields)


def by_grpc_oip(server: ServiceProcess, fields: Fields) -> int:
    return by_grpc(server, f"/{messages.INFERENCE}/ServerMetadata", b"", fields)


PROTOCOLS = {
    "pipeline": by_pipeline,
    "typed": by_typed,
    "OIP": by_oip,
    "gRPC pipeline": by_grpc_pipeline,
    "gRPC OIP": by_grpc_oip,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("case", GOOD)
def test_a_right_key_or_token_is_admitted(site: Site, protocol: str, case: str) -> None:
    assert PROTOCOLS[protocol](site.server, GOOD[case](site.issuer)) == 200


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("case", BAD)
def test_another_one_is_refused(site: Site, protocol: str, case: str) -> None:
    assert PROTOCOLS[protocol](site.server, BAD[case](site.issuer)) == 401


def test_the_log_names_callers_and_why_others_were_refused(site: Site) -> None:
    assert by_typed(site.server, bearer(site.issuer.token("one", sub="cleo"))) == 200
    assert by_typed(site.server, {"x-api-key": KEY}) == 200
    assert by_typed(site.server, {}) == 401
    for text in ("caller='jwt:cleo'", "caller='bob'", "was refused"):
        until(lambda text=text: text in site.server.log(), text)


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/no", 404), ("PUT", "/half", 405)])
def test_the_log_names_callers_of_routes_that_do_not_exist(
    site: Site, method: str, path: str, status: int
) -> None:
    assert by_http(site.server, method, path, {"x-api-key": KEY}, b"").status == status
    line = re.compile(f"{method} {path} {status} .* ms caller='bob'")
    until(lambda: line.search(site.server.log()) is not None, line.pattern)


def half_of_3() -> bytes:
    """A request by gRPC."""
    request, _ = messages.inference_messages("ModelInfer")
    wanted = request(model_name="half")
    one = wanted.inputs.add(name="x", datatype="FP64", shape=[1])
    one.contents.fp64_contents.append(3.0)
    return bytes(wanted.SerializeToString())


def by_grpc_infer(server: ServiceProcess, method: str, fields: Fields) -> int:
    return by_grpc(server, f"/{messages.INFERENCE}/{method}", half_of_3(), fields)


def test_the_scope_of_a_route_holds_for_its_function_by_every_protocol(site: Site) -> None:
    body = b'{"inputs":[{"name":"x","datatype":"FP64","shape":[1],"data":[3.0]}]}'
    path = "/v2/models/half/infer"
    may, others = bearer(site.issuer.token("one", scope="half.use")), {"x-api-key": KEY}
    assert by_http(site.server, "POST", "/half", others, b'{"x":3.0}').status == 403
    assert by_http(site.server, "POST", path, others, body).status == 403
    assert by_grpc_infer(site.server, "ModelInfer", others) == 403
    assert by_http(site.server, "POST", "/half", may, b'{"x":3.0}').status == 200
    assert by_http(site.server, "POST", path, may, body).status == 200
    assert by_grpc_infer(site.server, "ModelInfer", may) == 200


def test_baidu_std_is_refused(site: Site) -> None:
    meta = baidu_std.request_meta(
        "baidu.paddle_serving.pipeline_serving.PipelineService", "inference"
    )
    with baidu_std.connected(site.server.rpc_port) as connection:
        connection.send(baidu_std.frame(meta, b"", body=len(meta) + (1 << 20)))
        answer = connection.read()
    assert answer.code == 1004


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/v2/health/live", "/v2/health/ready"])
def test_probes_are_open(site: Site, path: str) -> None:
    assert by_http(site.server, "GET", path, {}, b"").status == 200
    assert by_http(site.server, "GET", path, {"x-api-key": OTHER_KEY}, b"").status == 200


@pytest.mark.parametrize(("method", "status"), [("Live", 200), ("Ready", 200), ("Metadata", 401)])
def test_probes_over_grpc_are_open(site: Site, method: str, status: int) -> None:
    assert by_grpc(site.server, f"/{messages.INFERENCE}/Server{method}", b"", {}) == status


def test_the_status_counts_the_requests_and_refusals_of_callers(site: Site) -> None:
    def counts() -> dict[str, Any]:
        status = json.loads(
            by_http(site.server, "GET", "/status", {"x-api-key": OLD_KEY}, b"").body
        )
        return {each["name"]: each for each in status["callers"]}

    before = counts().get("jwt:counted", {"requests": 0})
    token = bearer(site.issuer.token("one", sub="counted"))
    assert by_typed(site.server, token) == 200
    assert by_http(site.server, "POST", "/half", token, b'{"x":3.0}').status == 403
    found = counts()["jwt:counted"]
    assert (before["requests"], found["requests"], found["failed"]) == (0, 2, 0)
    assert found["refused"] == {"forbidden": 1}


@pytest.mark.parametrize(
    "path",
    [
        "/status",
        "/metrics",
        "/ui/state",
        "/ui/history",
        "/ui/requests",
        "/health/deep",
        "/trace?seconds=0.1",
    ],
)
def test_pages_of_operators_need_their_scope(site: Site, path: str) -> None:
    assert by_http(site.server, "GET", path, {}, b"").status == 401
    assert by_http(site.server, "GET", path, {"x-api-key": KEY}, b"").status == 403
    assert by_http(site.server, "GET", path, {"x-api-key": OLD_KEY}, b"").status == 200
    token = site.issuer.token("one", scope="read admin")
    assert by_http(site.server, "GET", path, bearer(token), b"").status == 200


@pytest.mark.parametrize("path", ["/metrics", "/unknown"])
def test_the_port_for_scrapers_needs_their_scope(site: Site, path: str) -> None:
    for key, status in (("", 401), (KEY, 403), (OLD_KEY, 200)):
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n\r\n"
        with http1.connected(site.metrics) as connection:
            connection.send(head.encode())
            wanted = status if path == "/metrics" or not key else 404
            assert connection.reply().status == wanted


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/doubles"), ("GET", "/double"), ("PUT", "/v2/models/a")],
)
def test_who_is_unknown_is_not_told_which_routes_exist(site: Site, method: str, path: str) -> None:
    refused = by_http(site.server, method, path, {}, b"")
    assert refused.status == 401
    assert b"double" not in refused.body
    assert by_http(site.server, method, path, {"x-api-key": KEY}, b"").status in (404, 405)


def test_nor_which_methods_a_route_has(site: Site) -> None:
    assert by_http(site.server, "OPTIONS", "/double", {}, b"").status == 401


def test_nor_which_methods_of_grpc(site: Site) -> None:
    assert by_grpc(site.server, "/a.B/C", b"", {}) == 401
    assert by_grpc(site.server, "/a.B/C", b"", {"x-api-key": KEY}) == 500


def test_the_body_of_an_unknown_caller_is_not_read(site: Site) -> None:
    with http1.connected(site.server.http_port) as connection:
        connection.send(
            b"POST /double HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n"
        )
        assert connection.reply().status == 401


def status_after(site: Site, fields: Fields, wanted: int) -> int:
    """The status of calls, once it is the wanted one or a time is over."""
    deadline = time.monotonic() + 20
    while (found := by_typed(site.server, fields)) != wanted and time.monotonic() < deadline:
        pass
    return found


def test_keys_of_the_file_are_replaced_without_a_restart(site: Site) -> None:
    before, added = site.keys.read_text(), new_key()
    SHOWN.append(added)
    assert by_typed(site.server, {"x-api-key": added}) == 401
    site.keys.write_text(before + line_of("eve", added, ()) + "\n")
    assert status_after(site, {"x-api-key": added}, 200) == 200
    assert by_typed(site.server, {"x-api-key": KEY}) == 200
    site.keys.write_text(before)
    assert status_after(site, {"x-api-key": added}, 401) == 401


def test_a_stream_counts_each_message_and_ends_with_its_key(site: Site) -> None:
    before, key = site.keys.read_text(), new_key()
    SHOWN.append(key)
    site.keys.write_text(before + line_of("fay", key, ["half.use"]) + "\n")
    assert status_after(site, {"x-api-key": key}, 200) == 200
    path = f"/{messages.INFERENCE}/ModelStreamInfer".encode()
    with linked(site.server.rpc_port) as link:
        stream = link.open(call(path, (b"x-api-key", key.encode())))
        content = link.content(stream)

        def ask() -> None:
            size = len(content.body)
            link.upload(stream, message(half_of_3()), end=False)
            link.until(lambda: len(content.body) > size or content.ended)

        for _ in range(2):
            ask()
        assert b"over the quota" not in content.body
        ask()
        assert b"over the quota 'two'" in content.body
        site.keys.write_text(before)
        deadline = time.monotonic() + 20
        while not content.ended and time.monotonic() < deadline:
            ask()
        assert content.fields[b"grpc-status"] == b"16"


def test_a_quota_of_a_graph_counts_calls_that_name_it_in_their_body(site: Site) -> None:
    before, key = site.keys.read_text(), new_key()
    SHOWN.append(key)
    site.keys.write_text(before + line_of("gil", key, ["half.use"]) + "\n")
    shown = {"x-api-key": key}
    assert status_after(site, shown, 200) == 200
    path = f"/{messages.INFERENCE}/ModelInfer"
    for status in ("0", "0", "8"):  # RESOURCE_EXHAUSTED
        with linked(site.server.rpc_port) as link:
            stream = link.open(call(path.encode(), (b"x-api-key", key.encode())))
            link.upload(stream, message(half_of_3()))
            assert link.answer(stream).fields[b"grpc-status"].decode() == status
    assert by_http(site.server, "POST", "/half", shown, b'{"x":3.0}').status == 429
    assert by_typed(site.server, shown) == 200  # another graph
    site.keys.write_text(before)


def test_a_broken_file_of_keys_leaves_the_last_good_one(site: Site) -> None:
    before = site.keys.read_text()
    site.keys.write_text(before + OTHER_KEY + "\n")
    deadline = time.monotonic() + 20
    while "the last one stays" not in site.server.log() and time.monotonic() < deadline:
        pass
    assert by_typed(site.server, {"x-api-key": KEY}) == 200
    site.keys.write_text(before)


def test_a_new_key_of_the_issuer_is_fetched_when_a_token_names_it(site: Site) -> None:
    site.issuer.add("three")
    fetches = site.issuer.fetches
    good = bearer(site.issuer.token("three"))
    assert by_typed(site.server, good) == 503  # with Retry-After: the keys are being fetched
    assert status_after(site, good, 200) == 200
    for number in range(20):
        assert (
            by_typed(site.server, bearer(site.issuer.token("one", head={"kid": f"n{number}"})))
            == 401
        )
    assert site.issuer.fetches == fetches + 1
