"""Client certificates name callers by every protocol; nobody else gets past the head."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

pytest.importorskip("cryptography", reason="makes certificates")

from penstock.protocols import standard_messages as messages
from penstock.protocols.pb import pipeline_service_pb2
from penstock.security.keys import line_of, new_key
from tests.kit import baidu_std, http1
from tests.kit.authority import Authority
from tests.kit.frames import message
from tests.kit.http2 import call, client_of
from tests.service.scripts import until
from tests.services.process import ServiceFailed, ServiceProcess, running

pytestmark = pytest.mark.real
KEY = new_key()
SCRIPT = """
from penstock import App, Service, op, run

app = App(
    "typed", log_requests=True,
    door={{"tls": {{"certificate": {server!r}, "client_ca": {authority!r}}}}},
    security={{
        "keys": {keys!r}, "failures_per_minute": 100_000,
        "certificates": {{"ann.test": ["admin"], "bob.test": []}},
    }},
)

@app.route("/double")
def double(x: int) -> int:
    return 2 * x

@op()
def echo(request):
    return request

run(app, Service("echo", echo))
"""


@dataclass
class Site:
    server: ServiceProcess
    authority: Authority
    folder: Path

    @contextmanager
    def link(self, port: int, client: Path | None) -> Iterator[socket.socket]:
        """A connection with a client's certificate."""
        context = ssl.create_default_context(cafile=str(self.authority.file))
        if client is not None:
            context.load_cert_chain(client)
        with (
            http1.connect(port) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as link,
        ):
            yield link


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder, "authority")
    server = authority.issue("localhost")
    keys = folder / "keys.txt"
    keys.write_text(line_of("key", KEY, ()) + "\n")
    script = folder / "service.py"
    text = SCRIPT.format(server=str(server), authority=str(authority.file), keys=str(keys))
    script.write_text(text)
    with running(script, ready=False) as process:
        found = Site(process, authority, folder)
        until(lambda: is_ready(found), "the service is ready")
        yield found


def is_ready(site: Site) -> bool:
    try:
        return by_http(site, None, {}, "GET", "/readyz") == 200
    except ConnectionRefusedError:
        return False


Fields = dict[str, str]


def by_http(
    site: Site, client: Path | None, fields: Fields, method: str, path: str, body: bytes = b""
) -> int:
    more = [f"{name}: {value}".encode() for name, value in fields.items()]
    sent = http1.request(body, *more, method=method.encode(), target=path.encode())
    with site.link(site.server.http_port, client) as link:
        connection = http1.Connection(link)
        connection.send(sent)
        return connection.reply().status


def by_typed(site: Site, client: Path | None, fields: Fields) -> int:
    return by_http(site, client, fields, "POST", "/double", b'{"x":2}')


def by_pipeline(site: Site, client: Path | None, fields: Fields) -> int:
    body = b'{"key":["x"],"value":["1"]}'
    return by_http(site, client, fields, "POST", "/echo/prediction", body)


def by_oip(site: Site, client: Path | None, fields: Fields) -> int:
    body = b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[3]}]}'
    return by_http(site, client, fields, "POST", "/v2/models/double/infer", body)


def by_grpc(site: Site, client: Path | None, fields: Fields, path: str, body: bytes) -> int:
    more = [(name.encode(), value.encode()) for name, value in fields.items()]
    with site.link(site.server.rpc_port, client) as connection:
        link = client_of(connection)
        stream = link.open(call(path.encode(), *more))
        link.upload(stream, message(body))
        answer = link.answer(stream)
    return {"0": 200, "7": 403, "16": 401}.get(answer.fields[b"grpc-status"].decode(), 500)


def pipeline_request() -> bytes:
    request = pipeline_service_pb2.Request(name="echo", method="prediction")
    request.key.append("x")
    request.value.append("1")
    return bytes(request.SerializeToString())


PIPELINE = "baidu.paddle_serving.pipeline_serving.PipelineService"


def by_grpc_pipeline(site: Site, client: Path | None, fields: Fields) -> int:
    return by_grpc(site, client, fields, f"/{PIPELINE}/inference", pipeline_request())


def by_grpc_oip(site: Site, client: Path | None, fields: Fields) -> int:
    request = messages.inference_messages("ModelInfer")[0](model_name="double")
    tensor = request.inputs.add(name="x", datatype="INT64", shape=[1])
    tensor.contents.int64_contents.append(3)
    path = f"/{messages.INFERENCE}/ModelInfer"
    return by_grpc(site, client, fields, path, request.SerializeToString())


def by_baidu_std(site: Site, client: Path | None, _fields: Fields) -> int:
    """The protocol has no field for a key."""
    sent = baidu_std.request(pipeline_request(), service=PIPELINE, method="inference")
    with site.link(site.server.rpc_port, client) as link:
        answer = baidu_std.Connection(link).ask(sent)
    return {0: 200, 1004: 401}.get(answer.code, 500)


WITH_KEYS = {
    "typed": by_typed,
    "pipeline": by_pipeline,
    "OIP": by_oip,
    "gRPC pipeline": by_grpc_pipeline,
    "gRPC OIP": by_grpc_oip,
}
PROTOCOLS: dict[str, Callable[[Site, Path | None, Fields], int]] = {
    **WITH_KEYS,
    "baidu_std": by_baidu_std,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("name", "status"), [(None, 401), ("eve.test", 401), ("bob.test", 200)])
def test_the_name_in_a_certificate_is_the_caller(
    site: Site, protocol: str, name: str | None, status: int
) -> None:
    client = None if name is None else site.authority.issue(name)
    assert PROTOCOLS[protocol](site, client, {}) == status


@pytest.mark.parametrize("port", ["http_port", "rpc_port"])
def test_a_certificate_of_another_authority_ends_the_handshake(site: Site, port: str) -> None:
    client = Authority(site.folder, "other").issue("ann.test")
    received = b""
    with suppress(ssl.SSLError, ConnectionError):
        with site.link(getattr(site.server, port), client) as link:
            link.sendall(http1.request(target=b"/livez", method=b"GET"))
            received = link.recv(1)
    assert received == b""


@pytest.mark.parametrize("protocol", WITH_KEYS)
def test_a_key_has_precedence_over_a_certificate(site: Site, protocol: str) -> None:
    ask, bob = WITH_KEYS[protocol], site.authority.issue("bob.test")
    assert ask(site, bob, {"x-api-key": KEY}) == 200
    assert ask(site, bob, {"x-api-key": new_key()}) == 401
    assert ask(site, None, {"authorization": f"Bearer {KEY}"}) == 200


def test_the_log_names_the_caller(site: Site) -> None:
    assert by_typed(site, site.authority.issue("ann.test"), {}) == 200
    until(lambda: "caller='certificate:ann.test'" in site.server.log(), "the line of the request")


def test_pages_of_operators_need_the_scope_of_the_certificate(site: Site) -> None:
    ann, bob = map(site.authority.issue, ("ann.test", "bob.test"))
    assert by_http(site, bob, {}, "GET", "/status") == 403
    assert by_http(site, ann, {}, "GET", "/status") == 200
    assert by_http(site, None, {}, "GET", "/livez") == 200


CALLING = Path(__file__).parents[1] / "faults/remote_service.py"


@pytest.mark.parametrize(("name", "answered"), [("bob.test", True), (None, False)])
def test_a_remote_op_shows_its_certificate(site: Site, name: str | None, answered: bool) -> None:
    keys = [f"server_ca_file={site.authority.file}"]
    if name is not None:
        keys.append(f"server_cert_file={site.authority.issue(name)}")
    at = f"localhost:{site.server.rpc_port}"
    with running(CALLING, "echo", "pipeline_grpc", at, "--", *keys) as calling:
        answer = httpx.post(f"{calling.http_url}/pipe", json={"x": [[1, 2]]}, timeout=20)
        assert (answer.status_code == 200) is answered, answer.text
        if not answered:
            until(lambda: "UNAUTHENTICATED" in calling.log(), "the reason in the log")


def test_a_remote_op_without_its_authority_does_not_start(tmp_path: Path) -> None:
    keys = ("--", f"server_ca_file={tmp_path / 'none.pem'}")
    with pytest.raises(
        ServiceFailed, match=r"op\.scale\.server_ca_file: /.*/none.pem: No such file"
    ):
        with running(CALLING, "scale", "grpc", "127.0.0.1:1", *keys):
            pass
