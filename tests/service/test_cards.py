"""Which card a worker process sees."""

from __future__ import annotations

import pytest

from penstock.service.placement import VARIABLE, show_only


def test_a_process_sees_the_card_that_it_is_shown() -> None:
    environment: dict[str, str] = {}
    assert show_only("2", environment, {"numpy", "onnxruntime"})
    assert environment == {VARIABLE: "2"}


def test_cards_count_among_those_that_the_service_may_use() -> None:
    environment = {VARIABLE: "4, 7,GPU-8932f937"}
    assert show_only("1", environment, ())
    assert environment == {VARIABLE: "7"}
    environment = {VARIABLE: "4,7,GPU-8932f937"}
    assert show_only("2", environment, ())
    assert environment == {VARIABLE: "GPU-8932f937"}


@pytest.mark.parametrize("visible", ["", "4", "4,5"])
def test_a_card_that_may_not_be_used_is_not_shown(visible: str) -> None:
    environment = {VARIABLE: visible}
    assert not show_only("2", environment, ())
    assert environment == {VARIABLE: visible}


@pytest.mark.parametrize("library", ["torch", "paddle", "tensorflow", "cupy", "jax"])
def test_a_library_that_may_have_counted_the_cards_is_not_confused(library: str) -> None:
    environment: dict[str, str] = {}
    assert not show_only("2", environment, {library})
    assert environment == {}
