"""What is read of files of keys and of an issuer, and when callers are verified again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from penstock.config.callers import SecurityConfig
from penstock.config.schema import ServiceConfig
from penstock.errors import StartupError
from penstock.security.keys import line_of, new_key
from penstock.service import credentials
from penstock.service.credentials import Credentials, callers_without_key, fetched
from tests.service.scripts import until


def line() -> str:
    return line_of("ann", new_key(), ()) + "\n"


@contextmanager
def dripping() -> Iterator[tuple[str, Event]]:
    """The URL of a server that never ends its answer, and whether somebody has asked it."""
    asked, over = Event(), Event()

    def serve() -> None:
        with suppress(OSError), listening.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            asked.set()
            while not over.wait(0.01):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/keys", asked
        finally:
            over.set()
            thread.join()


def test_the_same_bytes_are_no_change(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(line())
    known = Credentials(SecurityConfig(keys=str(file)))
    (source,) = known._sources
    former = source.value
    assert not source.read_again(0.0)
    assert source.value is former
    file.write_text(line())
    assert source.read_again(0.0)
    assert source.value is not former


def test_a_file_is_found_from_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(line())
    monkeypatch.chdir(tmp_path)
    (source,) = Credentials(SecurityConfig(keys="keys.txt"))._sources
    monkeypatch.chdir("/")
    file.write_text(line())
    assert source.read_again(0.0)


def test_a_file_is_read_when_nobody_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(line())
    (source,) = Credentials(SecurityConfig(keys=str(file)))._sources
    for text in ("", line() + line(), line()):
        file.write_text(text)
        assert not source.due(0.0)
    assert source.due(0.0)


def test_a_last_line_that_may_be_cut_leaves_the_former_keys(tmp_path: Path) -> None:
    file, key = tmp_path / "keys.txt", new_key()
    file.write_text(line())
    (source,) = Credentials(SecurityConfig(keys=str(file)))._sources
    former = source.value
    file.write_text(line_of("ann", key, ["admin-read"]).removesuffix("-read"))
    assert not source.read_again(0.0)
    assert source.value is former
    with pytest.raises(StartupError, match="no newline"):
        Credentials(SecurityConfig(keys=str(file)))
    file.write_text("")
    assert source.read_again(0.0)
    assert len(source.value) == 0


def test_an_issuer_that_does_not_answer_keeps_no_key_valid(tmp_path: Path) -> None:
    pytest.importorskip("jwt")
    file = tmp_path / "keys.txt"
    file.write_text(line())
    with dripping() as (url, asked):
        jwt = {"issuer": "i", "audience": ["a"], "keys": url}
        known = Credentials(SecurityConfig.model_validate({"keys": str(file), "jwt": jwt}))
        known.start()
        try:
            assert asked.wait(30)
            file.write_text("")
            until(lambda: len(known.keys[0]) == 0, "the key is not valid any more")
        finally:
            known.close()


def test_an_answer_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_TIMEOUT", 0.2)
    with dripping() as (url, _), pytest.raises(OSError, match="takes too long"):
        fetched(url)


def test_an_issuer_on_this_machine_is_asked_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("cryptography")
    from tests.kit.issuer import issuing

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with issuing() as issuer:
        assert fetched(issuer.url) == issuer.key_set()


def test_a_caller_of_a_quota_or_priority_without_a_key_is_named(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(line_of("search", new_key(), ()) + "\n")
    config = ServiceConfig.model_validate(
        {
            "http_port": 8080,
            "security": {"keys": str(file)},
            "priority": {"levels": 2, "callers": {"search": 1, "search-2": 2, "jwt:ann": 2}},
            "quotas": {"few": {"rate": 1, "callers": ["ads", "certificate:gateway.example"]}},
        }
    )
    kinds = "(names of tokens and certificates begin with jwt: and certificate:)"
    assert callers_without_key(config, Credentials(config.security)) == [
        f"quotas.few.callers: no API key has the name 'ads'; {kinds}",
        f"priority.callers: no API key has the name 'search-2'; did you mean 'search'? {kinds}",
    ]
