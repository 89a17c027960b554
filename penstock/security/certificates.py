"""Clients' certificates: the caller that a verified certificate names.

Source: RFC 5280, section 4.2.1.6; RFC 9525: the subject is read only if there is no
alternative name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.caller import Caller

ANY = "*"
"""Stands for every certificate of a trusted authority."""


def names_of(certificate: Mapping[str, Any]) -> Iterator[str]:
    """The names in a certificate.

    Args:
        certificate: as ``ssl.SSLSocket.getpeercert`` gives it.
    """
    alternatives = certificate.get("subjectAltName", ())
    for _, value in alternatives:
        yield value
    if not alternatives:
        for relative in certificate.get("subject", ()):
            for attribute, value in relative:
                if attribute == "commonName":
                    yield value


def caller_of(certificate: Mapping[str, Any], known: Mapping[str, frozenset[str]]) -> Caller | None:
    """The caller of a verified certificate; None if it is not a known one.

    Args:
        certificate: see ``names_of``.
        known: scopes by name; ``ANY`` for all other names.
    """
    names = [*names_of(certificate)]
    for name in names:
        if name in known and name != ANY:
            return Caller(name=name, how="certificate", scopes=known[name], claims=certificate)
    if names and ANY in known:
        return Caller(name=names[0], how="certificate", scopes=known[ANY], claims=certificate)
    return None
