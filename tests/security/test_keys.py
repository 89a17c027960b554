"""API keys, and the file with their digests."""

import pytest

from penstock.caller import Caller
from penstock.security.keys import Keys, line_of, new_key


def test_a_key_is_found_by_its_line_and_no_other_is() -> None:
    first, second = new_key(), new_key()
    text = "\n".join(
        ["# keys", "", line_of("ann", first, ["admin", "ocr.use"]), line_of("ann", second, [])]
    )
    keys = Keys(text)
    assert first not in text
    assert len(keys) == 2
    admin = Caller(name="ann", how="key", scopes=frozenset(("admin", "ocr.use")))
    assert keys.find(first.encode()) == admin
    assert keys.find(second.encode()) == Caller(name="ann", how="key")
    for other in (new_key(), first[:-1], first + "a", ""):
        assert keys.find(other.encode()) is None


def test_keys_differ_and_have_256_random_bits() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    assert {len(key) for key in made} == {len("psk_") + 43}


@pytest.mark.parametrize(
    "line",
    [
        "ann",
        "jwt:ann sha256:{0}",
        "ann psk_secret",
        "ann sha256:12",
        "ann md5:" + "0" * 64,
        'ann sha256:{0} "a',
    ],
)
def test_a_line_that_is_none_of_a_key_is_named_by_its_number_only(line: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2 is not") as caught:
        Keys("# keys\n" + line.format("0" * 64))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "scopes"), [("a b", []), ("jwt:a", []), ("#a", []), ("", []), ("a", ["b c"])]
)
def test_what_a_line_cannot_have_is_refused(name: str, scopes: list[str]) -> None:
    with pytest.raises(ValueError, match=r"the (name|scope)"):
        line_of(name, new_key(), scopes)
