"""The law of batches with workers that Ray places; run by test_law_ray.py, where there is only the
loopback. A part of the models, each with a worker on a cluster that the service starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.laws.test_law import (
    Law,
    open_law,
    test_every_request_is_answered_as_when_it_is_alone,
    test_models_with_rows_ran_in_batches_and_the_others_did_not,
)

__all__ = (
    "test_every_request_is_answered_as_when_it_is_alone",
    "test_models_with_rows_ran_in_batches_and_the_others_did_not",
)

pytestmark = pytest.mark.timeout(400)

RAY: Final[dict[str, Any]] = {
    "executor": "ray",
    "concurrency": 1,
    "ray": {"num_cpus": 0.01, "address": None},
}


@pytest.fixture(scope="module", params=["batches", "padded-rows"])
def law(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Law]:
    folder = tmp_path_factory.mktemp("law")
    with open_law("models", RAY, request.param, folder, few=True, sample=False) as opened:
        yield opened
