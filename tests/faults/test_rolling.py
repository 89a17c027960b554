"""Replicas behind a proxy are restarted in turn, and no caller notices; `make rolling`."""

import pytest

from tests.faults.rolling import run

pytestmark = [pytest.mark.faults, pytest.mark.long]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("proxy", ["nginx", "haproxy"])
def test_no_request_is_lost_while_replicas_restart_in_turn(proxy: str) -> None:
    result = run(proxy, 2000)
    assert result.failures == []
    assert result.statuses == [0] * result.restarts
    assert result.restarts >= 3
