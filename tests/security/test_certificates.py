"""The caller that a client's certificate names."""

from typing import Any

import pytest

from penstock.security.certificates import caller_of

NAMED = {
    "subjectAltName": (("DNS", "a.test"), ("URI", "spiffe://b")),
    "subject": ((("commonName", "c"),),),
}


def only(kind: str, value: Any) -> dict[str, Any]:
    return {"subjectAltName": ((kind, value),), "subject": ((("commonName", "c"),),)}


OLD = {"subject": ((("organizationName", "o"),), (("commonName", "c"),))}
SCOPES = frozenset(("admin",))


@pytest.mark.parametrize(
    ("certificate", "known", "name"),
    [
        (NAMED, "a.test", "a.test"),
        (NAMED, "URI:spiffe://b", "URI:spiffe://b"),
        (NAMED, "spiffe://b", None),
        (only("email", "a.test"), "a.test", None),
        (only("email", "a@b.test"), "email:a@b.test", "email:a@b.test"),
        (only("DNS", "URI:spiffe://b"), "URI:spiffe://b", None),
        (only("IP Address", "10.0.0.1"), "*", "IP:10.0.0.1"),
        (only("DirName", ((("commonName", "c"),),)), "*", None),
        (only("othername", "<unsupported>"), "*", None),
        (only("DNS", "a\nb"), "*", None),
        ({"subject": ((("commonName", "email:a@b.test"),),)}, "email:a@b.test", None),
        (NAMED, "c", None),
        (NAMED, "*", "a.test"),
        (OLD, "c", "c"),
        (OLD, "o", None),
        ({}, "*", None),
        ({"subject": ((("commonName", "*"),),)}, "*", "*"),
    ],
)
def test_the_first_known_name_is_the_caller(
    certificate: dict[str, Any], known: str, name: str | None
) -> None:
    caller = caller_of(certificate, {known: SCOPES})
    assert (None if caller is None else caller.name) == name
    assert caller is None or (caller.how, caller.scopes) == ("certificate", SCOPES)


def test_a_certificate_of_the_name_star_is_not_the_rule_for_others() -> None:
    known = {"*": frozenset[str](), "a.test": SCOPES}
    caller = caller_of({"subject": ((("commonName", "*"),),)}, known)
    assert caller is not None
    assert caller.scopes == frozenset()
