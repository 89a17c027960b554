"""Callers of the benchmarks: an API key, a token, and the ``security`` that admits them."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

KEY = "psk_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
ISSUER, AUDIENCE = "https://issuer.test/", "bench"
PRIVATE = ec.derive_private_key(0x1D0C5, ec.SECP256R1())
"""Of the issuer: the same in the process that signs and in the server; on loopback only."""


def token() -> str:
    """A token that is valid for a day."""
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 86_400}
    return jwt.encode(claims, PRIVATE, algorithm="ES256", headers={"kid": "1"})


def security(kind: str, folder: Path) -> dict[str, Any]:
    """Configuration keys of a service that admits ``KEY`` or ``token()``.

    Files are written to ``folder``. ``kind``: ``keys``, ``jwt``, or ``limits``, which is ``keys``
    with a quota that is never exhausted and with priorities.
    """
    if kind == "jwt":
        public = {**ECAlgorithm.to_jwk(PRIVATE.public_key(), as_dict=True), "kid": "1"}
        (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
        keys = str(folder / "jwks.json")
        return {"security": {"jwt": {"issuer": ISSUER, "audience": [AUDIENCE], "keys": keys}}}
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    (folder / "keys.txt").write_text(f"ann sha256:{digest}\n")
    made: dict[str, Any] = {"security": {"keys": str(folder / "keys.txt")}}
    if kind == "limits":
        made["quotas"] = {"all": {"rate": 1e6, "burst": 1_000_000, "concurrency": 10_000}}
        made["priority"] = {"levels": 3, "callers": {"ann": 1}}
    return made
