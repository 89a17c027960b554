"""What is decided about the door from the configuration."""

from __future__ import annotations

import pytest

from penstock.config.schema import ServiceConfig
from penstock.service.door import exposure


@pytest.mark.parametrize(
    ("public", "admits", "is_open"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_a_service_is_open_to_strangers_that_reach_it_and_are_not_asked(
    public: bool, admits: bool, is_open: bool
) -> None:
    why = exposure(ServiceConfig(host="0.0.0.0"), public=public, admits=admits)
    assert (why is not None) is is_open
    assert why is None or "0.0.0.0" in why
