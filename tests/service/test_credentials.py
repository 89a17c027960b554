"""What is read of files of keys and of an issuer, and when callers are verified again."""

from __future__ import annotations

from pathlib import Path

from penstock.config.schema import SecurityConfig
from penstock.security.keys import line_of, new_key
from penstock.service.credentials import Credentials


def test_the_same_bytes_are_no_change(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(line_of("ann", new_key(), ()) + "\n")
    known = Credentials(SecurityConfig(keys=str(file)))
    (source,) = known._sources
    former = source.value
    assert not source.read_again(0.0)
    assert source.value is former
    file.write_text(line_of("ann", new_key(), ()) + "\n")
    assert source.read_again(0.0)
    assert source.value is not former
