"""The CPUs that an op's workers run on, and the CUDA devices that they can see."""

from __future__ import annotations

import os

import pytest

from penstock import Op
from penstock.config.resolve import OpOptions
from penstock.errors import ConfigError
from penstock.service.affinity import VARIABLE, available, cpu_list, cpu_problems, show_only
from tests.service.in_process import blueprint_of, root


def options(*cpus: set[int]) -> OpOptions:
    return OpOptions(name="a", cpus=tuple(map(frozenset, cpus)))


def test_available_cpus_are_accepted() -> None:
    assert cpu_problems(options(), frozenset()) == []
    assert cpu_problems(options({0, 1}, {3}), frozenset({0, 1, 2, 3})) == []


def test_unavailable_cpus_are_refused_with_the_available_ones() -> None:
    assert cpu_problems(options({0, 4}, {5, 7}), frozenset({0, 1, 2, 3, 6})) == [
        "op.a.cpu_affinity: CPUs 4-5,7 cannot be used: this process may run on 0-3,6"
    ]
    assert cpu_problems(options({9}), frozenset({1})) == [
        "op.a.cpu_affinity: CPU 9 cannot be used: this process may run on 1"
    ]


def test_a_service_with_unavailable_cpus_does_not_start() -> None:
    assert available() == os.sched_getaffinity(0)
    with pytest.raises(ConfigError, match=r"op\.work\.cpu_affinity: CPU 8191 cannot be used"):
        blueprint_of(Op("work", input_ops=[root()]), {"op": {"work": {"cpu_affinity": "8191"}}})


def test_consecutive_cpus_are_written_as_ranges() -> None:
    assert cpu_list([0]) == "0"
    assert cpu_list([0, 1, 3, 5, 6, 7]) == "0-1,3,5-7"


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
