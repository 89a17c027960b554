"""The TLS context of a service: which file is wrong, and why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.config.schema import ServiceConfig
from penstock.errors import StartupError
from penstock.service.door import tls_of
from tests.peers.programs import program


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
