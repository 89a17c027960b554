"""Models in Paddle's forms."""

from tests.runtimes.conftest import networks  # noqa: F401 (a fixture)
