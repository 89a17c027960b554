"""The door's Unix socket and TLS, on a running service."""

from __future__ import annotations

import http.client
import socket
import ssl
import stat
import time
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.client.calls import ask_grpc, ask_http
from penstock.client.errors import CallFailed, NotConnected
from penstock.observe.status import NoStatus, ask_status
from tests.attacks.site import service
from tests.kit import http2
from tests.kit.certificates import make_certificate
from tests.kit.http1 import pairs, request
from tests.kit.pipeline import decode, encode
from tests.services.process import ServiceProcess

MESSAGE = encode({"key": ["x"], "value": ["1"]})
pytestmark = pytest.mark.real

TARGET = b"/echo/prediction"


def exchange(link: socket.socket, nonce: str) -> bytes:
    """Sends one request over a connected socket; returns the whole response."""
    link.settimeout(5)
    link.sendall(request(pairs(x=nonce), b"Connection: close", target=TARGET))
    data = b""
    while more := link.recv(4096):
        data += more
    return data


def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "door"
    with service({"door": {"unix_socket": str(path)}}) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(path))
            assert b'"12"' in exchange(link, "12")
        with grpc.insecure_channel(f"unix:{path}") as channel:
            answer = channel.unary_unary(http2.METHOD)(MESSAGE, timeout=5)
            assert decode(answer)["err_no"] == 0
        assert server.stop() == 0
        assert not path.exists()


def test_both_ports_serve_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    tls = {"certificate": str(certificate), "key": str(key)}
    with service({"door": {"tls": tls}}, ready=False) as server:
        context = ssl.create_default_context(cafile=str(certificate))
        wait_until_listening(server)
        link = http.client.HTTPSConnection("localhost", server.http_port, context=context)
        link.request("POST", TARGET.decode(), pairs(x="12"))
        reply = link.getresponse()
        assert reply.status == 200
        assert b'"12"' in reply.read()
        assert link.sock.version() in ("TLSv1.2", "TLSv1.3")
        link.close()
        root = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(f"localhost:{server.rpc_port}", root) as channel:
            answer = channel.unary_unary(http2.METHOD)(MESSAGE, timeout=5)
            assert decode(answer)["err_no"] == 0
        assert request_without_tls(server.http_port) == b""
        # The certificate is neither trusted nor that of the address.
        assert ask_status(f"https://127.0.0.1:{server.http_port}")["ready"]
        with pytest.raises(NoStatus, match="If the service uses TLS, write https://"):
            ask_status(f"127.0.0.1:{server.http_port}")
        (tmp_path / "other").mkdir()
        other, _ = make_certificate(tmp_path / "other")
        for command in ("status", "trace"):
            more = ("--seconds", "0.1", "-o", str(tmp_path / "t")) if command == "trace" else ()
            for file, exit_code, text in (
                (str(certificate), 0, ""),
                (str(other), 1, "certificate verify failed"),
                ("none.pem", 1, "error: none.pem: No such file"),
            ):
                arguments = (f"https://localhost:{server.http_port}", *more, "--ca-file", file)
                done = CliRunner().invoke(app, (command, *arguments))
                assert done.exit_code == exit_code
                assert text in done.stderr
        trusted = {"name": "echo", "method": "prediction", "log_id": 0, "timeout": 5}
        trusted["ca_file"] = str(certificate)
        for ask, port in ((ask_http, server.http_port), (ask_grpc, server.rpc_port)):
            assert ask(f"https://localhost:{port}", {"x": "12"}, **trusted)["value"] == ["12"]
            with pytest.raises(CallFailed, match="certificate verify failed"):
                ask(f"https://localhost:{port}", {"x": "12"}, **{**trusted, "ca_file": None})
            with pytest.raises(NotConnected, match=r"none\.pem: .*No such file"):
                ask(f"https://localhost:{port}", {"x": "12"}, **{**trusted, "ca_file": "none.pem"})


def wait_until_listening(server: ServiceProcess) -> None:
    """Waits for the banner, since the usual readiness check has no TLS."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if "penstock serves" in server.log():
            return
        time.sleep(0.02)  # another process, whose log is the only sign
    raise AssertionError(server.log())


def request_without_tls(port: int) -> bytes:
    """The response to a client without TLS, except for an alert."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        link.sendall(request(pairs(x="1"), target=TARGET))
        try:
            data = link.recv(4096)
        except ConnectionResetError:
            return b""
    return b"" if data[:1] == b"\x15" else data
