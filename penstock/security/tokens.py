"""JSON Web Tokens: their signatures and claims.

A token is accepted if its algorithm is in the list of the service, one of the issuer's keys has
made its signature, and its claims say that it is from this issuer, for this service, and valid now.
The list has only algorithms with a public key: ``none`` and those with a shared secret never pass,
so a public key cannot be taken for a secret.

PyJWT, an optional package, checks signatures; claims are checked here, with the time as an
argument.
Source: RFC 7515, RFC 7517, RFC 7519, RFC 8725, RFC 9068.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from sys import float_info
from typing import Any, Final, Literal, NoReturn, TypeAlias

from penstock.caller import Caller
from penstock.errors import StartupError, Unauthenticated

Algorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]

_INVALID: Final = 'Bearer realm="penstock", error="invalid_token"'
_COMPACT: Final = re.compile(rb"[\w-]+\.[\w-]+\.[\w-]*").fullmatch
"""Three parts of base64url. PyJWT skips other characters, so one token could be sent in many forms,
each with a signature to check and a place in the memory of callers.
"""
_MOST_KEYS: Final = 100
_LONGEST_NAME: Final = 200


class UnknownKey(Unauthenticated):
    """The token names a key that is not in the issuer's set; a newer set may have it."""


def invalid(text: str) -> Unauthenticated:
    """The refusal of a token or key that was shown; RFC 6750, section 3.1."""
    return Unauthenticated(text, _INVALID)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must say.

    Attributes:
        issuer: the value of ``iss``.
        audiences: ``aud`` must have one of them.
        algorithms: allowed ones.
        leeway: seconds by which clocks may differ.
        name: the claim with the caller's name.
    """

    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256")
    leeway: float = 30.0
    name: str = "sub"


class SigningKeys:
    """An issuer's keys.

    Args:
        text: a JSON Web Key Set. Keys of an unknown kind are left out (RFC 7517, section 5).

    Attributes:
        left_out: the names (``kid``) of keys for signatures that could not be read, and why.

    Raises:
        ValueError: it is none, or no key of it can be read.
        StartupError: PyJWT is not installed.
    """

    def __init__(self, text: bytes) -> None:
        jwk, self._jws = import_jwt()
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError("it is no JSON Web Key Set") from error
        keys = value.get("keys") if isinstance(value, dict) else None
        if not isinstance(keys, list) or len(keys) > _MOST_KEYS:
            raise ValueError("it is no JSON Web Key Set")
        self.left_out: list[str] = []
        self._keys: dict[str | None, list[tuple[str | None, Any]]] = {}
        for each in keys:
            if not isinstance(each, dict) or each.get("use", "sig") != "sig":
                continue
            if each.get("kty") not in ("RSA", "EC", "OKP"):
                continue  # a shared secret, or a kind of a later time
            public = {name: each[name] for name in each if name not in _PRIVATE}
            kid, algorithm = each.get("kid"), each.get("alg")
            try:
                made = jwk(public).key
            except Exception as error:  # noqa: BLE001 - the package raises errors of many kinds
                self.left_out.append(f"{str(kid)[:100]!a} ({type(error).__name__})")
                continue
            name = kid if isinstance(kid, str) else None
            self._keys.setdefault(name, []).append((algorithm, made))
        if self.left_out and not self._keys:
            raise ValueError(f"no key of the set can be read: {', '.join(self.left_out)}")

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def parts(self, token: bytes) -> tuple[dict[str, Any], bytes]:
        """The head and the payload of a token; its signature is not checked.

        Raises:
            Unauthenticated: it is no token.
        """
        try:
            if not _COMPACT(token):
                raise ValueError("it is not three parts of base64url")
            found = self._jws.decode_complete(token, options={"verify_signature": False})
        except Exception as error:
            raise invalid("the token is no JSON Web Token") from error
        return found["header"], found["payload"]

    def check(self, token: bytes, head: Mapping[str, Any]) -> None:
        """Check a token's signature.

        Args:
            token: as sent.
            head: its head, of an allowed algorithm.

        Raises:
            Unauthenticated: none of these keys has made it.
        """
        algorithm, kid = head["alg"], head.get("kid")
        if kid is None and len(self._keys) == 1:
            (found,) = self._keys.values()
        elif (kid is None or isinstance(kid, str)) and kid in self._keys:
            found = self._keys[kid]
        else:
            raise UnknownKey("the token is not signed with a known key", _INVALID)
        fitting = [key for expected, key in found if expected in (None, algorithm)]
        if not fitting:
            raise invalid("the token's algorithm is not that of its key")
        failure: Exception | None = None
        for key in fitting:
            try:
                self._jws.decode(token, key=key, algorithms=[algorithm])
            except Exception as error:  # noqa: BLE001 - of several keys without names one is right
                failure = error
            else:
                return
        raise invalid("the token's signature is invalid") from failure


_PRIVATE: Final = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth", "k"))


def verified(
    token: bytes, keys: SigningKeys, rules: TokenRules, now: float
) -> tuple[Caller, float]:
    """The caller of a token, and the time until which it is valid.

    The signature is checked last, because that takes the longest: somebody who makes up tokens must
    know the issuer and the service before it costs more than reading them.

    Args:
        token: as sent.
        keys: the issuer's.
        rules: what it must say.
        now: seconds since 1970.

    Raises:
        Unauthenticated: it is not valid. The text has nothing of it.
    """
    head, payload = keys.parts(token)
    if head.get("alg") not in rules.algorithms:
        raise invalid("the token's algorithm is not allowed")
    if "crit" in head:
        raise invalid("the token has critical extensions, which are not supported")
    try:
        claims = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise invalid("the token's claims are no JSON") from error
    if not isinstance(claims, dict):
        raise invalid("the token's claims are no JSON object")
    found = caller_of(claims, rules, now)
    keys.check(token, head)
    return found


def caller_of(claims: Mapping[str, Any], rules: TokenRules, now: float) -> tuple[Caller, float]:
    """The caller that claims name, and the time until which they are valid; see ``verified``."""
    if claims.get("iss") != rules.issuer:
        _refuse("is from another issuer")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if not any(each in rules.audiences for each in audiences if isinstance(each, str)):
        _refuse("is for another service")
    expires = _time(claims, "exp")
    if expires is None:
        _refuse("does not expire")
    until = expires + rules.leeway
    if now >= until:
        _refuse("has expired")
    for claim in ("nbf", "iat"):
        since = _time(claims, claim)
        if since is not None and now < since - rules.leeway:
            _refuse("is not valid yet")
    name = claims.get(rules.name)
    if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME:
        _refuse(f"has no name in {rules.name}")
    return Caller(name=name, how="jwt", scopes=_scopes(claims), claims=claims), until


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    found: set[str] = set()
    for claim in ("scope", "scp"):
        value = claims.get(claim)
        if isinstance(value, str):
            found.update(value.split())
        elif isinstance(value, list):
            found.update(each for each in value if isinstance(each, str))
    return frozenset(found)


def _time(claims: Mapping[str, Any], claim: str) -> float | None:
    value = claims.get(claim)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= float_info.max  # NaN, infinity, an integer of hundreds of digits
    ):
        _refuse(f"has no time in {claim}")
    return float(value)


def _refuse(why: str) -> NoReturn:
    raise invalid(f"the token {why}")


def import_jwt() -> tuple[Any, Any]:
    """The class of keys, and the functions for signatures.

    Raises:
        StartupError: PyJWT, or what it needs, is not installed.
    """
    try:
        import jwt
        from jwt.algorithms import has_crypto
    except ModuleNotFoundError:
        has_crypto = False
    if not has_crypto:
        text = "security.jwt needs a further package: pip install 'penstock-serving[jwt]'"
        raise StartupError(text)
    return jwt.PyJWK, jwt.PyJWS()
