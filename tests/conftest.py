"""For every test: SIGINT and SIGQUIT end programs, however the test run was started, processes
start without a search for plugins of pydantic, and the log of a service is text, though no test is
a terminal. Examples of property tests have no deadline: on a busy machine any may take long. Marks
must stand in the files of their tests.
"""

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

# The search reads the metadata of all installed packages, of which a development environment has
# many, in every process that the tests start. None of them is such a plugin.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
os.environ.setdefault("PENSTOCK_LOG_FORMAT", "text")

# A shell starts a background job with these two signals ignored, which child processes inherit. The
# tests' services must receive them.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number,
            signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL,
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The Makefile finds the files of these marks by their text."""
    for mark in ("real", "alone"):
        for path in {item.path for item in items if item.get_closest_marker(mark)}:
            if f"pytest.mark.{mark}" not in path.read_text():
                raise pytest.UsageError(f"{path}: no test here says pytest.mark.{mark}")
