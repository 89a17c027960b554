"""The limit of failed attempts of an address."""

import pytest

from penstock.security.attempts import Attempts


def test_an_address_may_fail_as_often_as_the_limit_says_and_later_again() -> None:
    attempts = Attempts(60)
    for _ in range(60):
        assert attempts.wait("10.0.0.1", 0.0) == 0
        attempts.failed("10.0.0.1", 0.0)
    assert attempts.wait("10.0.0.1", 0.0) == pytest.approx(1.0)
    assert attempts.wait("10.0.0.2", 0.0) == 0
    assert attempts.wait("10.0.0.1", 1.0) == 0
    attempts.failed("10.0.0.1", 1.0)
    assert attempts.wait("10.0.0.1", 1.5) == pytest.approx(0.5)


def test_addresses_of_one_ipv6_network_count_together() -> None:
    attempts = Attempts(1)
    attempts.failed("2001:db8::1", 0.0)
    assert attempts.wait("2001:db8::2", 0.0) > 0
    assert attempts.wait("2001:db8:0:1::1", 0.0) == 0
    attempts.failed("::ffff:10.0.0.1", 0.0)
    assert attempts.wait("::ffff:10.0.0.2", 0.0) == 0


def test_a_bounded_number_of_addresses_is_remembered() -> None:
    attempts = Attempts(1)
    for number in range(5000):
        attempts.failed(f"10.0.{number // 256}.{number % 256}", 0.0)
    assert len(attempts._left) == 4096
