"""Restores behaviour of older numpy versions for services that were written for the original.

It applies to the whole process of such a service, including threads and libraries.
"""

from __future__ import annotations

import sys
from contextvars import Context
from typing import Any, Final

import numpy as np

_fromstring: Final = np.fromstring


def restore_numpy() -> str:
    """Make ``numpy.fromstring`` read bytes, as before numpy 2.3, and print scalars in lists as
    numbers, as before numpy 2.

    Returns:
        a text for the log.
    """
    setattr(np, "fromstring", fromstring)  # noqa: B010 - a plain assignment is a type error
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        np.set_printoptions(legacy="1.25")
        # From 2.2 on the print options apply to this thread only; new threads use the default.
        module = sys.modules.get("numpy._core.printoptions")
        if module is not None:
            options = module.format_options
            Context().run(options.get)["legacy"] = options.get()["legacy"]
    shown = Context().run(str, [np.float32(0.5)])
    where = "" if shown == "[0.5]" else f" (but as {shown} in threads of numpy {np.__version__})"
    return (
        f"numpy.fromstring reads bytes here, and scalars print as in numpy 1{where}, as services"
        " written for Paddle Serving expect"
    )


def fromstring(
    string: Any, dtype: Any = float, count: int = -1, *, sep: str = "", **more: Any
) -> Any:
    """``numpy.fromstring`` with its binary mode, which is what it does without ``sep``."""
    if sep or more:
        return _fromstring(string, dtype, count, sep=sep, **more)
    data = string.encode() if isinstance(string, str) else string
    return np.frombuffer(data, dtype, count).copy()
