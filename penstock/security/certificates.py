"""Clients' certificates: the caller that a verified certificate names.

Source: RFC 5280, section 4.2.1.6; RFC 9525: the subject is read only if there is no
alternative name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.caller import Caller

ANY = "*"
"""Stands for every certificate of a trusted authority."""


_PREFIXES: Final = {"DNS": "", "URI": "URI:", "email": "email:", "IP Address": "IP:"}
"""By the kind of an alternative name; other kinds have no text that is one name only.

An authority may check names of one kind and not those of another, so one is not the other.
"""
_NOT_PLAIN: Final = tuple(filter(None, _PREFIXES.values()))


def names_of(certificate: Mapping[str, Any]) -> Iterator[str]:
    """The names in a certificate: of the DNS as they are, others with their kind (``URI:``).

    Args:
        certificate: as ``ssl.SSLSocket.getpeercert`` gives it.
    """
    alternatives = certificate.get("subjectAltName", ())
    for kind, value in alternatives:
        prefix = _PREFIXES.get(kind)
        if prefix is not None and _is_name(value, plain=not prefix):
            yield prefix + value
    if not alternatives:
        for relative in certificate.get("subject", ()):
            for attribute, value in relative:
                if attribute == "commonName" and _is_name(value, plain=True):
                    yield value


def _is_name(value: object, *, plain: bool) -> bool:
    return (
        isinstance(value, str)
        and bool(value)
        and value.isprintable()
        and not (plain and value.startswith(_NOT_PLAIN))
    )


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
