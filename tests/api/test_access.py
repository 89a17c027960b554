"""Access to pages that are for this machine only, or for clients with a token."""

from __future__ import annotations

import pytest

from penstock.api.access import Access
from penstock.protocols.heads import Headers, RequestHead

TOKEN = "a-token-of-some-length"
HERE = "127.0.0.1"


def head(*fields: tuple[str, str], host: str = "localhost:80", version: str = "1.1") -> RequestHead:
    headers: Headers = tuple((name.encode(), value.encode()) for name, value in fields)
    return RequestHead(
        "GET", b"/ui", headers, version=version, authority=host.encode(), content_length=None
    )


def access(token: str | None = None, *, tls: bool = False) -> Access:
    return Access("the page", "ui.token", token, tls=tls)


@pytest.mark.parametrize("peer", [HERE, "127.8.9.1", "::1", "::ffff:127.0.0.1", ""])
@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1:80", "[::1]:80", "a.localhost:80"]
)
def test_without_a_token_clients_on_this_machine_have_access(peer: str, host: str) -> None:
    assert access().denial(peer, head(host=host)) is None


@pytest.mark.parametrize(
    ("peer", "request_head", "why"),
    [
        ("10.0.0.1", head(), "for this machine only"),
        ("::ffff:10.0.0.1", head(), "for this machine only"),
        (HERE, head(("x-forwarded-for", "10.0.0.1")), "through a proxy"),
        (HERE, head(("forwarded", "for=10.0.0.1")), "through a proxy"),
        (HERE, head(("x-real-ip", "10.0.0.1")), "through a proxy"),
        (HERE, head(("via", "1.1 a")), "through a proxy"),
        ("", head(("x-forwarded-proto", "https")), "through a proxy"),
        (HERE, head(version="1.0"), "through a proxy"),  # no browser uses that version
        (HERE, head(host="evil.example:80"), "by the name localhost"),
        (HERE, head(host="localhost.evil.example"), "by the name localhost"),
        (HERE, head(host="127.0.0.1.evil.example"), "by the name localhost"),
        (HERE, head(host="evil-localhost"), "by the name localhost"),
        (HERE, head(host="[::2]:80"), "by the name localhost"),
        (HERE, head(host=""), "by the name localhost"),
        # A token is no help if none is configured.
        ("10.0.0.1", head(("authorization", f"Bearer {TOKEN}")), "for this machine only"),
    ],
)
def test_without_a_token_other_clients_are_refused_with_the_reason(
    peer: str, request_head: RequestHead, why: str
) -> None:
    denial = access().denial(peer, request_head)
    assert denial is not None
    assert (denial.status, denial.code) == (403, "forbidden")
    assert why in denial.text
    assert "ui.token" in denial.text


def test_a_token_gives_access_from_anywhere_and_is_required_everywhere() -> None:
    guard = access(TOKEN)
    for given in (f"Bearer {TOKEN}", f"bearer {TOKEN}"):
        request_head = head(
            ("authorization", given), ("x-forwarded-for", "10.0.0.1"), host="any.example"
        )
        assert guard.denial("10.0.0.1", request_head) is None
    for wrong in ("", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xff"):
        denial = guard.denial(HERE, head(("authorization", wrong)))
        assert denial is not None
        assert denial.status == 401
    assert guard.denial(HERE, head()) is not None  # on this machine too


@pytest.mark.parametrize("tls", [False, True])
def test_the_cookie_of_a_client_with_the_token_gives_access(tls: bool) -> None:
    guard = access(TOKEN, tls=tls)
    ((name, line),) = guard.cookie(head(("authorization", f"Bearer {TOKEN}")))
    assert name == b"set-cookie"
    pair, *attributes = line.decode().split("; ")
    assert {"HttpOnly", "SameSite=Strict"} <= set(attributes)
    assert ("Secure" in attributes) == tls
    assert TOKEN not in line.decode()
    assert guard.denial("10.0.0.1", head(("cookie", f"a=b; {pair}"))) is None
    assert guard.denial("10.0.0.1", head(("cookie", pair), ("cookie", "a=b"))) is None
    assert guard.denial(HERE, head(("cookie", f"{pair}0"))) is not None
    other = access("another-token-entirely")
    assert other.denial(HERE, head(("cookie", pair))) is not None


def test_a_client_without_the_token_gets_no_cookie() -> None:
    assert access(TOKEN).cookie(head()) == ()
    assert access(TOKEN).cookie(head(("authorization", "Bearer wrong"))) == ()
    assert access().cookie(head(("authorization", "Bearer "))) == ()
