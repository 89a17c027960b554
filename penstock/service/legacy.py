"""What services that were written for the original expect of numpy, where newer ones differ.

Only the processes of such a service are changed, as a whole: threads and libraries included.
"""

from __future__ import annotations

import sys
from contextvars import Context
from typing import Any, Final

import numpy as np

_fromstring: Final = np.fromstring


def restore_numpy() -> str:
    """Have ``numpy.fromstring`` read bytes, which numpy 2.3 took away, and scalars within lists
    print as numbers, as they did before numpy 2.

    Returns:
        What was done, for the log.
    """
    setattr(np, "fromstring", fromstring)  # noqa: B010 - a plain assignment is a type error
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        np.set_printoptions(legacy="1.25")
        # From 2.2 on that holds for this thread alone; what a new one finds is the default.
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
