"""An identity provider that a test plays: keys that change, a key set over HTTP, and tokens."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER = "https://issuer.test"
AUDIENCE = "penstock-test"


class Issuer:
    """See the module.

    Attributes:
        url: of the key set.
        fetches: how often it was read.
    """

    def __init__(self) -> None:
        self.url = ""
        self.fetches = 0
        self.fetched = Event()
        self._keys: dict[str, tuple[str, Any]] = {}

    def add(self, kid: str, algorithm: str = "ES256") -> None:
        """Make a key, which the set has from now on."""
        self._keys[kid] = (algorithm, private_key(algorithm))

    def remove(self, kid: str) -> None:
        """Withdraw a key."""
        del self._keys[kid]

    def key_set(self) -> bytes:
        """The public keys."""
        found = []
        for kid, (algorithm, key) in self._keys.items():
            handler = jwt.get_algorithm_by_name(algorithm)
            jwk = handler.to_jwk(key.public_key(), as_dict=True)
            found.append({**jwk, "kid": kid, "alg": algorithm, "use": "sig"})
        return json.dumps({"keys": found}).encode()

    def public_pem(self, kid: str) -> bytes:
        """A public key as everybody may have it."""
        encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        pem: bytes = self._keys[kid][1].public_key().public_bytes(encoding, form)
        return pem

    def token(self, kid: str, *, head: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token; ``claims`` replace the usual ones, and None removes one."""
        algorithm, key = self._keys[kid]
        return jwt.encode(usual(**claims), key, algorithm, headers=_headers(kid, head))

    def forged(self, kid: str, *, head: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token with this key's name, signed with another one."""
        algorithm = self._keys[kid][0]
        key = private_key(algorithm)
        return jwt.encode(usual(**claims), key, algorithm, headers=_headers(kid, head))


def _headers(kid: str, more: dict[str, Any] | None) -> dict[str, Any]:
    found = {"kid": kid, **(more or {})}
    return {name: value for name, value in found.items() if value is not None}


def private_key(algorithm: str) -> Any:
    """A new private key for an algorithm."""
    if algorithm.startswith("ES"):
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(65537, 2048)


def usual(**claims: Any) -> dict[str, Any]:
    """Claims of a good token, with changes."""
    now = time.time()
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 600, **claims}
    return {name: value for name, value in found.items() if value is not None}


def raw_token(head: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token of any content."""
    parts = (json.dumps(head).encode(), json.dumps(claims).encode(), signature)
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@contextmanager
def issuing() -> Iterator[Issuer]:
    """An issuer whose key set can be read over HTTP."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = issuer.key_set()
            issuer.fetches += 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            issuer.fetched.set()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_port}/keys"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
