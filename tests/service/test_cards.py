"""The CUDA devices that a worker process can see."""

from __future__ import annotations

import pytest

from penstock.service.affinity import VARIABLE, show_only


def test_a_process_sees_its_own_card_only() -> None:
    environment: dict[str, str] = {}
    assert show_only("2", environment, {"numpy", "onnxruntime"})
    assert environment == {VARIABLE: "2"}


def test_cards_are_numbered_within_the_service_s_visible_ones() -> None:
    environment = {VARIABLE: "4, 7,GPU-8932f937"}
    assert show_only("1", environment, ())
    assert environment == {VARIABLE: "7"}
    environment = {VARIABLE: "4,7,GPU-8932f937"}
    assert show_only("2", environment, ())
    assert environment == {VARIABLE: "GPU-8932f937"}


@pytest.mark.parametrize("visible", ["", "4", "4,5"])
def test_a_card_outside_the_visible_ones_is_refused(visible: str) -> None:
    environment = {VARIABLE: visible}
    assert not show_only("2", environment, ())
    assert environment == {VARIABLE: visible}


@pytest.mark.parametrize("library", ["torch", "paddle", "tensorflow", "cupy", "jax"])
def test_a_card_is_not_set_after_a_cuda_library_was_imported(library: str) -> None:
    environment: dict[str, str] = {}
    assert not show_only("2", environment, {library})
    assert environment == {}
