"""The certificates of a service: which file is wrong, and why; files that change."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.config.schema import ServiceConfig
from penstock.errors import StartupError
from penstock.service.door import tls_of
from tests.kit.certificates import make_certificate
from tests.peers.programs import program
from tests.service.scripts import PENSTOCK, until
from tests.services.process import free_port


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate, its key, another key, and its key with a passphrase."""
    folder = tmp_path_factory.mktemp("pems")
    curve = "-pkeyopt ec_paramgen_curve:prime256v1"
    for command in (
        f"req -x509 -newkey ec {curve} -nodes -days 2 -subj /CN=x -keyout key -out certificate",
        f"genpkey -algorithm EC {curve} -out other",
        "pkcs8 -topk8 -in key -passout pass:secret -out locked",
    ):
        arguments = [program("openssl"), *command.split()]
        subprocess.run(arguments, cwd=folder, check=True, capture_output=True)
    (folder / "text").write_text("no PEM")
    return folder


def config(folder: Path, certificate: str, key: str | None) -> ServiceConfig:
    files = {"certificate": certificate, "key": key}
    paths = {name: str(folder / file) for name, file in files.items() if file is not None}
    return ServiceConfig.model_validate({"rpc_port": 0, "door": {"tls": paths}})


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("none", "key", "/none cannot be read: No such file or directory"),
        ("certificate", "none", "/none cannot be read: No such file or directory"),
        ("certificate", "other", "/other does not belong to the certificate in .*/certificate"),
        ("certificate", None, "is no PEM file with a certificate and a private key"),
        ("text", "key", "/text or .*/key is no PEM file with a certificate and a private key"),
        ("certificate", "text", "/certificate or .*/text is no PEM file"),
        ("certificate", "locked", "the private key in .*/locked has a passphrase"),
    ],
)
def test_unusable_tls_files_are_named(
    pems: Path, certificate: str, key: str | None, message: str
) -> None:
    with pytest.raises(StartupError, match=f"^door.tls: .*{message}"):
        tls_of(config(pems, certificate, key))


def test_a_certificate_and_its_key_make_a_context(pems: Path) -> None:
    assert tls_of(config(pems, "certificate", "key")) is not None


APP = """
from penstock import App
app = App("texts")

@app.route("/length")
def length(text: str) -> int:
    return len(text)
"""


def shown(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection, whose certificate has been verified."""
    link = socket.create_connection(("127.0.0.1", port), timeout=30)
    return context.wrap_socket(link, server_hostname="localhost")


def alive(link: ssl.SSLSocket) -> bool:
    """Whether the service is alive, over this connection."""
    link.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\nok\n"):
        piece = link.recv(1 << 16)
        if not piece:
            return False
        answer += piece
    return answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.real
@pytest.mark.parametrize("engines", [1, 2])
def test_new_connections_get_a_renewed_certificate(tmp_path: Path, engines: int) -> None:
    path = tmp_path / "app.py"
    path.write_text(APP)
    renewed = tmp_path / "renewed"
    renewed.mkdir()
    certificate, key = make_certificate(tmp_path)
    old = ssl.create_default_context(cafile=str(certificate))
    new = ssl.create_default_context(cafile=str(make_certificate(renewed)[0]))
    port = free_port()
    environment = {
        "PENSTOCK_SET": f"door.tls.certificate={certificate};door.tls.key={key}",
        "PENSTOCK_BUILD_DAG_EACH_WORKER": "true",
        "PENSTOCK_WORKER_NUM": str(engines),
        "PENSTOCK_KEEP_ALIVE": "60",
        "PENSTOCK_HTTP_PORT": str(port),
    }
    with tls_service(path, environment, port, old) as log, shown(port, old) as before:
        assert alive(before)
        (renewed / "key.pem").replace(key)
        (renewed / "certificate.pem").replace(certificate)
        for _ in range(8):  # of every engine
            with shown(port, new) as after:
                assert alive(after)
        assert alive(before)
        certificate.write_text("no PEM")
        for _ in range(8):
            with shown(port, new) as after:
                assert alive(after)
        until(lambda: "remain in use" in log(), "a line of the log")
        assert log().count("remain in use") <= engines


@contextmanager
def tls_service(
    path: Path, environment: dict[str, str], port: int, context: ssl.SSLContext
) -> Iterator[Callable[[], str]]:
    """A service over TLS; yields what reads its log."""
    log = path.with_suffix(".log")
    given = {**os.environ, **environment}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*PENSTOCK, str(path)], env=given, stdout=output, stderr=output
        ) as process,
    ):
        try:
            end = time.monotonic() + 60
            while True:
                with suppress(OSError), shown(port, context) as link:
                    if alive(link):
                        break
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
            yield log.read_text
        finally:
            process.terminate()
            process.wait(30)
