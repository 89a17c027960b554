"""Where a key or token is read, and which host gets it."""

from __future__ import annotations

import http.server
import logging
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from penstock import AsyncPipelineClient, PipelineClient
from penstock.client import token as tokens
from penstock.client.token import TokenStays, bearer, hint, token_at, with_token
from penstock.errors import ModelError
from penstock.protocols import pb

from .conftest import Service
from .test_channels import Serve

SECRET = "psk_not-to-be-seen"


@pytest.mark.parametrize("text", ["", " ", f"{SECRET}\n", f"Bearer {SECRET}", f"{SECRET}é"])
def test_a_token_that_no_field_can_hold_is_refused_without_being_shown(text: str) -> None:
    for given in (text, lambda: text):
        with pytest.raises(ValueError, match="ASCII without spaces") as refused:
            bearer(given)
        assert SECRET not in str(refused.value)
    with pytest.raises(ValueError, match="ASCII without spaces"):
        PipelineClient(token=text).connect(["127.0.0.1:1"])


def test_a_key_among_the_header_fields_takes_precedence() -> None:
    assert with_token([("a", "b")], "t") == (("a", "b"), ("Authorization", "Bearer t"))
    for name in ("authorization", "X-API-Key"):
        assert with_token([(name, "k")], "t") == ((name, "k"),)


def test_a_refusal_says_how_to_give_a_token() -> None:
    assert "give a key or token by PENSTOCK_TOKEN" in hint(401, None)
    assert "is about the key" in hint(401, SECRET)
    assert SECRET not in hint(401, SECRET)
    assert hint(403, None) == ""


def recorded(serve: Serve) -> tuple[Service, list[str]]:
    """A gRPC server, and the tokens that it gets."""
    seen: list[str] = []

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append(dict(context.invocation_metadata()).get("authorization", ""))
        return pb.Response().SerializeToString()

    return serve(answer), seen


def test_each_grpc_call_sends_the_token_or_a_fresh_one(serve: Serve) -> None:
    service, seen = recorded(serve)
    fresh = iter(["one", "two"])
    for client in (
        PipelineClient(),
        PipelineClient(token=SECRET),
        PipelineClient(token=lambda: next(fresh)),
    ):
        with client:
            client.connect([service.endpoint])
            client.predict({"x": "1"}, timeout=10)
            client.predict({"x": "1"}, asyn=True, timeout=10).result()
            assert SECRET not in repr(client)
    expected = ["", "", *2 * [f"Bearer {SECRET}"], "Bearer one", "Bearer two"]
    assert seen == expected


async def test_calls_on_an_event_loop_send_it_too(serve: Serve) -> None:
    service, seen = recorded(serve)
    async with AsyncPipelineClient(token=SECRET) as client:
        await client.connect([service.endpoint])
        await client.predict({"x": "1"}, timeout=10)
    assert seen == [f"Bearer {SECRET}"]


@contextmanager
def redirecting(host: str, to: list[str], seen: list[str | None]) -> Iterator[str]:
    """A server that redirects to the first address of a list, if there is one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["authorization"])
            self.send_response(307 if to else 200)
            if to:
                self.send_header("location", to[0])
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_only_the_same_host_gets_the_token_after_a_redirect() -> None:
    first: list[str | None] = []
    second: list[str | None] = []
    third: list[str | None] = []
    with ExitStack() as stack:
        other = stack.enter_context(redirecting("127.0.0.2", [], third))
        near = stack.enter_context(redirecting("127.0.0.1", [other], second))
        by_name = near.replace("127.0.0.1", "localhost")
        start = stack.enter_context(redirecting("127.0.0.1", [by_name], first))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), TokenStays())
        fields = dict(with_token((), SECRET))
        opener.open(urllib.request.Request(start, headers=fields), timeout=10).close()
    assert (first, second, third) == ([f"Bearer {SECRET}"], [f"Bearer {SECRET}"], [None])


def test_a_redirect_to_plain_text_does_not_get_the_token() -> None:
    request = urllib.request.Request("https://a.test/", headers=dict(with_token((), SECRET)))
    for url, kept in [("https://a.test:1/x", True), ("http://a.test/", False)]:
        following = TokenStays().redirect_request(request, None, 307, "", {}, url)
        assert following is not None
        assert following.has_header("Authorization") == kept


def test_a_token_is_read_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", SECRET)
    assert token_at("env:A_TOKEN") == SECRET
    monkeypatch.setenv("A_TOKEN", f"{SECRET} ")
    with pytest.raises(ModelError, match="env:A_TOKEN: a key or token is ASCII") as refused:
        token_at("env:A_TOKEN")
    assert SECRET not in str(refused.value)
    monkeypatch.delenv("A_TOKEN")
    with pytest.raises(ModelError, match="env:A_TOKEN: the variable is not set"):
        token_at("env:A_TOKEN")


def test_a_token_s_file_is_read_again_and_the_last_one_stays_if_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    with pytest.raises(ModelError, match="the token cannot be read: No such file"):
        token_at(str(file))
    file.write_text("one\n")
    now = 100.0
    monkeypatch.setattr(tokens, "time", SimpleNamespace(monotonic=lambda: now))
    given = token_at(str(file))
    assert callable(given)
    file.write_text("two\n")
    assert given() == "one"
    now += 1.5
    assert given() == "two"
    file.write_text(f"{SECRET} and more")
    now += 1.5
    with caplog.at_level(logging.WARNING):
        assert given() == "two"
    assert "the last token stays in use" in caplog.text
    assert SECRET not in caplog.text
    file.unlink()
    now += 1.5
    assert given() == "two"


def test_a_folder_is_no_token_s_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="must be in a regular file"):
        token_at(str(tmp_path))
