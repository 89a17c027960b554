"""Claims of tokens, without signatures; ``test_protocols.py`` has those."""

import json
import time
from typing import Any

import pytest

from penstock.errors import Unauthenticated
from penstock.security.tokens import SigningKeys, TokenRules, caller_of, verified

RULES = TokenRules(issuer="i", audiences=("a", "b"), leeway=30.0)
GOOD: dict[str, Any] = {"iss": "i", "aud": "a", "sub": "ann", "exp": 1000, "iat": 900, "nbf": 900}


@pytest.mark.parametrize(
    ("change", "now"),
    [
        ({}, 950.0),
        ({}, 1029.0),
        ({}, 871.0),
        ({"aud": ["c", "b"]}, 950.0),
        ({"iat": None, "nbf": None}, 0.0),
        ({"exp": 1000.5}, 950.0),
    ],
)
def test_good_claims_name_a_caller(change: dict[str, Any], now: float) -> None:
    caller, until = caller_of({**GOOD, **change}, RULES, now)
    assert (caller.name, caller.how) == ("ann", "jwt")
    assert until == ({**GOOD, **change})["exp"] + 30


@pytest.mark.parametrize(
    ("change", "now", "why"),
    [
        ({}, 1030.0, "expired"),
        ({}, 869.0, "not valid yet"),
        ({"nbf": None}, 869.0, "not valid yet"),
        ({"exp": None}, 950.0, "does not expire"),
        ({"exp": "1000"}, 950.0, "no time in exp"),
        ({"exp": True}, 0.0, "no time in exp"),
        ({"exp": float("inf")}, 950.0, "no time in exp"),
        ({"exp": 10**400}, 950.0, "no time in exp"),
        ({"iat": -(10**400)}, 950.0, "no time in iat"),
        ({"nbf": "x"}, 950.0, "no time in nbf"),
        ({"iss": "j"}, 950.0, "another issuer"),
        ({"iss": None}, 950.0, "another issuer"),
        ({"iss": ["i"]}, 950.0, "another issuer"),
        ({"aud": "c"}, 950.0, "another service"),
        ({"aud": None}, 950.0, "another service"),
        ({"aud": {"a": 1}}, 950.0, "another service"),
        ({"aud": []}, 950.0, "another service"),
        ({"sub": ""}, 950.0, "no name"),
        ({"sub": 1}, 950.0, "no name"),
        ({"sub": "a" * 201}, 950.0, "no name"),
    ],
)
def test_other_claims_are_refused(change: dict[str, Any], now: float, why: str) -> None:
    with pytest.raises(Unauthenticated, match=why):
        caller_of({**GOOD, **change}, RULES, now)


@pytest.mark.parametrize(
    ("change", "scopes"),
    [
        ({}, set()),
        ({"scope": "a b"}, {"a", "b"}),
        ({"scp": ["a", 1]}, {"a"}),
        ({"scp": "a", "scope": "b"}, {"a", "b"}),
        ({"scope": {"a": 1}}, set()),
    ],
)
def test_scopes_are_in_either_claim(change: dict[str, Any], scopes: set[str]) -> None:
    assert caller_of({**GOOD, **change}, RULES, 950.0)[0].scopes == scopes


def test_the_name_may_be_in_another_claim() -> None:
    rules = TokenRules(issuer="i", audiences=("a",), name="email")
    assert caller_of({**GOOD, "email": "e"}, rules, 950.0)[0].name == "e"


class TestKeySets:
    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("jwt")
        pytest.importorskip("cryptography")

    @pytest.mark.parametrize(
        "text", [b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": [{"kty": "EC"}]}']
    )
    def test_what_is_no_key_set_is_refused(self, text: bytes) -> None:
        with pytest.raises(ValueError, match=r"[Kk]ey"):
            SigningKeys(text)

    def test_shared_secrets_and_keys_for_encryption_are_left_out(self) -> None:
        keys = [{"kty": "oct", "k": "c2VjcmV0"}, {"kty": "RSA", "use": "enc"}]
        assert len(SigningKeys(json.dumps({"keys": keys}).encode())) == 0

    @pytest.mark.parametrize("depth", [2, 100_000])
    def test_a_token_of_any_bytes_is_refused(self, depth: int) -> None:
        from tests.kit.issuer import raw_token

        keys = SigningKeys(b'{"keys": []}')
        deep = raw_token({}, {}) if depth == 2 else "W1tb" * (depth // 4) + ".e30.e30"
        for token in (deep.encode(), b"..", b"\xff.\xff.\xff", b"e30.e30.", b"W10.W10.W10"):
            with pytest.raises(Unauthenticated):
                verified(token, keys, RULES, 950.0)

    def test_a_token_of_another_form_of_the_same_bytes_is_refused(self) -> None:
        from tests.kit.issuer import AUDIENCE, ISSUER, Issuer

        issuer = Issuer()
        issuer.add("one")
        keys, token = SigningKeys(issuer.key_set()), issuer.token("one").encode()
        rules = TokenRules(issuer=ISSUER, audiences=(AUDIENCE,))
        assert verified(token, keys, rules, time.time())[0].name == "ann"
        for changed in (token + b"!", token + b"=", token[:-4] + b"\n" + token[-4:]):
            with pytest.raises(Unauthenticated, match="no JSON Web Token"):
                verified(changed, keys, rules, time.time())

    def test_a_token_for_another_service_asks_for_no_new_key(self) -> None:
        from tests.kit.issuer import raw_token

        token = raw_token({"alg": "ES256", "kid": "new"}, {**GOOD, "aud": "c"}).encode()
        with pytest.raises(Unauthenticated, match="another service"):
            verified(token, SigningKeys(b'{"keys": []}'), RULES, 950.0)

    def test_keys_of_an_unknown_kind_are_left_out(self) -> None:
        from tests.kit.issuer import AUDIENCE, ISSUER, Issuer

        issuer = Issuer()
        issuer.add("one")
        good = json.loads(issuer.key_set())["keys"]
        others = [
            {"kty": "OKP", "crv": "X25519", "x": "AAAA", "kid": "x"},
            {**good[0], "kid": "y", "alg": "RSA-OAEP"},
        ]
        keys = SigningKeys(json.dumps({"keys": others + good}).encode())
        assert (len(keys), [each[:3] for each in keys.left_out]) == (1, ["'x'", "'y'"])
        rules = TokenRules(issuer=ISSUER, audiences=(AUDIENCE,))
        assert verified(issuer.token("one").encode(), keys, rules, time.time())[0].name == "ann"

    def test_each_of_several_keys_without_a_name_is_tried(self) -> None:
        from tests.kit.issuer import AUDIENCE, ISSUER, Issuer

        issuer, rules = Issuer(), TokenRules(issuer=ISSUER, audiences=(AUDIENCE,))
        for kid in ("one", "two"):
            issuer.add(kid)
        nameless = json.loads(issuer.key_set())["keys"]
        for each in nameless:
            del each["kid"]
        keys = SigningKeys(json.dumps({"keys": nameless}).encode())
        assert len(keys) == 2
        for kid in ("one", "two"):
            token = issuer.token(kid, head={"kid": None}).encode()
            assert verified(token, keys, rules, time.time())[0].name == "ann"
        forged = issuer.forged("one", head={"kid": None}).encode()
        with pytest.raises(Unauthenticated, match="signature"):
            verified(forged, keys, rules, time.time())
