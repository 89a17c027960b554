"""Self-signed certificates, by openssl; without it the test skips."""

from __future__ import annotations

from pathlib import Path

from tests.peers.programs import run


def make_certificate(folder: Path, names: str = "DNS:localhost") -> tuple[Path, Path]:
    """A new certificate for these names, and its key: PEM."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -batch"
    subject = ["-subj", "/CN=localhost", "-addext", f"subjectAltName={names}"]
    run("openssl", *command.split(), *subject, "-keyout", key, "-out", certificate).good()
    return certificate, key
