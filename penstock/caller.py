"""Who makes a request, as a service's admission of callers says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

How: TypeAlias = Literal["key", "jwt", "certificate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An authenticated caller.

    Attributes:
        name: such as the name of an API key, the subject of a token, or that of a certificate. It
            is in the request log and in traces.
        how: how the caller was authenticated.
        scopes: what it may do.
        claims: what the token or certificate says about it; not the token itself. Empty for an API
            key. Must not be changed: requests of the same token have the same claims.
    """

    name: str
    how: How
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def name_of(caller: Any) -> str:
    """A caller's name for logs, quotas and priorities; empty if it has none.

    Names of tokens and certificates have the kind before them (``jwt:ann``): an issuer, which gives
    its own names, cannot name the caller of an API key.

    Args:
        caller: what an admission of callers returned, of any type.
    """
    if isinstance(caller, Caller):
        return caller.name if caller.how == "key" else f"{caller.how}:{caller.name}"
    name = caller if isinstance(caller, str) else getattr(caller, "name", "")
    return name if isinstance(name, str) else ""
