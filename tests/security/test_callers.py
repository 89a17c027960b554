"""Everything of ours that calls a service shows a key: commands, clients and remote ops."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from paddle_serving_client import HttpClient
from penstock import PipelineClient
from penstock.cli import app
from penstock.client import CallFailed
from penstock.security.keys import line_of, new_key
from tests.kit.onnx_models import scale
from tests.service.scripts import until
from tests.services.process import ServiceFailed, ServiceProcess, free_port, running

pytestmark = pytest.mark.real

KEY, UNKNOWN = new_key(), new_key()
CONF = """
feed_var { name: "x" alias_name: "x" feed_type: 1 shape: 3 }
fetch_var { name: "y" alias_name: "y" fetch_type: 1 shape: 3 }
"""
SCRIPT = """
from penstock import App, Model, Service, run

app = App("typed", security={security!r}, admin_port={admin_port})

@app.route("/double")
def double(x: int) -> int:
    return 2 * x

run(app, Service("scale", Model({model!r})))
"""
CALLING = Path(__file__).parents[1] / "faults/remote_service.py"
SERVE = (sys.executable, "-m", "penstock", "serve", "--model")


@dataclass
class Site:
    server: ServiceProcess
    model: Path
    keys: str

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.server.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.server.rpc_port}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    keys = folder / "keys.txt"
    keys.write_text(line_of("bob", KEY, ["admin"]) + "\n")
    model = scale(folder / "model.onnx", 2.0)
    security = {"keys": str(keys), "failures_per_minute": 100_000}
    script = folder / "service.py"
    script.write_text(SCRIPT.format(security=security, model=str(model), admin_port=free_port()))
    with running(script) as server:
        yield Site(server, model, f"security.keys={keys}")
        log = server.log()
    assert [each for each in (KEY, UNKNOWN) if each in log] == []


def penstock(*arguments: str, token: str | None = KEY) -> Result:
    done = CliRunner().invoke(app, arguments, env={"PENSTOCK_TOKEN": token})
    assert not isinstance(done.exception, Exception), done.exception
    for secret in (KEY, UNKNOWN):
        assert secret not in done.output
    return done


# Long enough for a request to end beside other tests.
LOAD = "-c 1 --duration 1s --warm-up 0"
COMMANDS = {
    "a route": "client {http}/double x:=2",
    "a pipeline over HTTP": "client {http} x=[[1,2,3]] --name scale",
    "a pipeline over gRPC": "client --grpc {grpc} x=[[1,2,3]] --name scale",
    "bench over HTTP": f"bench http://{{http}}/double x:=2 {LOAD}",
    "bench over gRPC": f"bench grpc://{{grpc}}/scale/prediction x=[[1,2,3]] {LOAD}",
    "bench of a model over HTTP": f"bench http://{{http}}/v2/models/scale {LOAD}",
    "bench of a model over gRPC": f"bench grpc://{{grpc}}/v2/models/scale {LOAD}",
    "status, at the admin port after a redirect": "status {http}",
    "trace": "trace {http} --seconds 0.1 -o {folder}/trace.json",
    "plan of a load": "plan http://{http}/v2/models/scale --measuring 1s -c 1",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_send_the_key_of_the_environment(site: Site, name: str, tmp_path: Path) -> None:
    command = COMMANDS[name].format(http=site.http, grpc=site.grpc, folder=tmp_path).split()
    done = penstock(*command)
    assert done.exit_code == 0, done.output
    refused = penstock(*command, token=None)
    assert refused.exit_code == 1
    assert "401" in refused.output or "UNAUTHENTICATED" in refused.output
    if not name.startswith("bench over"):  # whose failures are counted, in the service's words
        assert "give a key or token by PENSTOCK_TOKEN or --token" in refused.output


def test_the_option_has_precedence_and_an_unknown_key_is_said_to_be_the_reason(site: Site) -> None:
    assert penstock("status", site.http, "--token", KEY, token=UNKNOWN).exit_code == 0
    refused = penstock("status", site.http, token=UNKNOWN)
    assert refused.exit_code == 1
    assert "HTTP 401: the key is not known; this is about the key or token of" in refused.output


def test_a_header_of_the_user_s_own_has_precedence(site: Site) -> None:
    own = ("-H", f"X-API-Key: {KEY}")
    done = penstock("client", f"{site.http}/double", "x:=2", *own, token=UNKNOWN)
    assert done.stdout == "4\n"


def test_a_key_with_a_space_is_a_usage_error_that_does_not_show_it(site: Site) -> None:
    done = penstock("status", site.http, token=f"{KEY} ")
    assert done.exit_code == 2
    assert "ASCII without spaces" in done.output


def test_help_prefers_the_variable() -> None:
    for command in ("client", "bench", "status", "trace", "plan"):
        text = " ".join(penstock(command, "--help").output.split())
        assert "PENSTOCK_TOKEN" in text
        assert "other users of this machine can see command lines" in text


def test_a_pipeline_client_sends_its_token(site: Site) -> None:
    with PipelineClient(token=KEY) as client:
        client.connect([site.grpc])
        assert client.predict({"x": np.float32([[1, 2, 3]])}, name="scale", timeout=10).err_no == 0
    with PipelineClient(token=lambda: UNKNOWN) as client:
        client.connect([site.grpc])
        with pytest.raises(CallFailed, match=r"UNAUTHENTICATED.*the key is not known"):
            client.predict({"x": "1"}, name="scale", timeout=10)


@pytest.mark.parametrize("grpc", [False, True])
def test_the_http_client_of_paddle_sends_its_token(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture, grpc: bool
) -> None:
    (tmp_path / "serving_client_conf.prototxt").write_text(CONF)
    with running(site.model, command=SERVE, environment={"PENSTOCK_SET": site.keys}) as server:
        for token, good in [(KEY, True), (lambda: KEY, True), (UNKNOWN, False), (None, False)]:
            client = HttpClient(token=token)
            client.load_client_config(str(tmp_path))
            client.set_use_grpc_client(grpc)
            client.connect(f"127.0.0.1:{server.http_port}")
            answer = client.predict({"x": np.float32([[1, 2, 3]])}, batch=True)
            assert (answer is not None) == good
        client = HttpClient(token=lambda: f"{KEY}\n")
        client.load_client_config(str(tmp_path))
        client.set_use_grpc_client(grpc)
        client.connect(f"127.0.0.1:{server.http_port}")
        with pytest.raises(ValueError, match="ASCII without spaces"):
            client.predict({"x": np.float32([[1, 2, 3]])}, batch=True)
        assert [each for each in (KEY, UNKNOWN) if each in server.log() + caplog.text] == []


@pytest.mark.parametrize("client_type", ["grpc", "pipeline_grpc"])
def test_a_remote_op_sends_the_token_in_its_file(
    site: Site, tmp_path: Path, client_type: str
) -> None:
    token = tmp_path / "token"
    token.write_text(KEY + "\n")
    arguments = ("scale", client_type, site.grpc, "--", f"server_token={token}")
    with running(CALLING, *arguments) as calling:
        url = f"{calling.http_url}/pipe"

        def answer() -> str:
            return httpx.post(url, json={"x": [[1, 2, 3]]}, timeout=20).text

        assert '"y":[[2.0,4.0,6.0]]' in answer()
        token.write_text(UNKNOWN)
        until(lambda: '"error":"inference"' in answer(), "the new token, which is unknown")
        until(lambda: "UNAUTHENTICATED" in calling.log(), "why")
        assert [each for each in (KEY, UNKNOWN) if each in calling.log() + answer()] == []


def test_a_remote_op_without_its_token_does_not_start() -> None:
    arguments = ("scale", "grpc", "127.0.0.1:1", "--", "server_token=env:NO_SUCH_TOKEN")
    with pytest.raises(ServiceFailed, match=r"op.scale.server_token: env:NO_SUCH_TOKEN: the var"):
        with running(CALLING, *arguments):
            pass
