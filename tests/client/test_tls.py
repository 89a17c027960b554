"""The files of a client's TLS: which one cannot be used, and that they are read again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.client.tls import Security, Tls
from tests.kit.certificates import make_certificate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A certificate, its private key, and that of another certificate."""
    cert, key = make_certificate(tmp_path_factory.mktemp("one"))
    return cert, key, make_certificate(tmp_path_factory.mktemp("other"))[1]


@pytest.mark.parametrize(
    ("wrong", "content", "why"),
    [
        ("ca", None, "No such file"),
        ("cert", None, "No such file"),
        ("key", None, "No such file"),
        ("ca", b"no PEM", "no PEM file of certificates"),
        ("cert", b"no PEM", "no PEM file of a certificate"),
        ("key", b"no PEM", "no PEM file of the private key"),
        ("key", b"other", "no PEM file of the private key"),
    ],
)
def test_an_error_names_the_file_that_cannot_be_used(
    wrong: str, content: bytes | None, why: str, tmp_path: Path, made: tuple[Path, Path, Path]
) -> None:
    cert, key, other = made
    files = {"ca": cert, "cert": cert, "key": key}
    files[wrong] = tmp_path / "wrong.pem"
    if content is not None:
        files[wrong].write_bytes(other.read_bytes() if content == b"other" else content)
    with pytest.raises(OSError, match=why) as caught:
        Security(Tls(ca_file=files["ca"], cert_file=files["cert"], key_file=files["key"]))
    assert caught.value.filename == str(files[wrong])


def test_changed_files_are_read_again(
    tmp_path: Path, made: tuple[Path, Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.write_bytes(made[0].read_bytes())
    security = Security(Tls(ca_file=authorities))
    first = security.context
    assert security.context is first
    authorities.write_bytes(2 * made[0].read_bytes())
    second = security.context
    assert second is not first
    authorities.write_bytes(b"half of a file")
    with caplog.at_level(logging.WARNING):
        assert security.context is second
    assert str(authorities) in caplog.text
