"""The same networks in the form of every library, with fixed weights."""

from importlib.util import find_spec


def is_installed(library: str) -> bool:
    """Whether the module can be imported, without importing it."""
    spec = find_spec(library)
    # The folder paddle/ of a checkout is found as well, and nothing can be loaded from it.
    return spec is not None and spec.origin is not None
