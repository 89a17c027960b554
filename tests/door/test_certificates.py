"""Certificates whose files change."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest

from penstock.door.certificates import Certificates
from penstock.errors import StartupError
from tests.kit.certificates import make_certificate


@pytest.fixture
def versions(tmp_path: Path) -> list[Path]:
    """Folders with a certificate and its key each."""
    found = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        make_certificate(folder)
        found.append(folder)
    return found


def certificates(folder: Path) -> Certificates:
    files = [str(folder / name) for name in ("certificate.pem", "key.pem")]

    def read() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(*files)
        except (OSError, ssl.SSLError) as error:
            raise StartupError(str(error)) from error
        return context

    return Certificates(files, read)


def test_unchanged_files_are_not_read_again(versions: list[Path]) -> None:
    read = certificates(versions[0])
    assert read.current() is read.current()


def test_a_replaced_link_is_noticed(versions: list[Path], tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(versions[0])
    read = certificates(link)
    first = read.current()
    replacement = tmp_path / "next"
    replacement.symlink_to(versions[1])
    replacement.replace(link)
    assert read.current() is not first


def test_the_old_context_remains_while_the_files_do_not_fit(
    versions: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    old, new = versions
    read = certificates(old)
    first = read.current()
    shutil.copy(new / "certificate.pem", old)  # its key comes later
    for _ in range(3):
        assert read.current() is first
    [record] = caplog.records
    assert "remain in use" in record.getMessage()
    shutil.copy(new / "key.pem", old)
    assert read.current() is not first
    assert "changed certificates" in caplog.records[-1].getMessage()
    (old / "key.pem").unlink()
    second = read.current()
    assert read.current() is second
    assert [each.levelname for each in caplog.records] == ["ERROR", "INFO", "ERROR"]
