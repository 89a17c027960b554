"""Code that the import packages of this distribution share.

These packages have the names of the original's packages. If both distributions were installed,
their files would be mixed in the same folders, so that an import could load either.
"""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NoReturn

ORIGINAL_VERSION: Final = "0.9.0"
"""The release of the original whose names the packages have; their ``__version__``."""

DEFAULTS: Final[Mapping[str, object]] = {
    "host": "0.0.0.0",  # noqa: S104 (clients on other machines rely on it)
    "missing_device": "cpu",
}
"""The original's defaults of configuration keys, where Penstock's differ."""

_ORIGINALS: Final = (
    "paddle-serving-server",
    "paddle-serving-server-gpu",
    "paddle-serving-client",
    "paddle-serving-app",
)


def refuse_originals() -> None:
    """Check that none of the original's distributions is installed.

    Raises:
        ImportError: one is installed.
    """
    for name in _ORIGINALS:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        raise ImportError(
            f"penstock-paddle and {name} {found} have packages of the same names: uninstall both,"
            f" then install one of them"
        )


def refuse_name(module: str, name: str, known: dict[str, str]) -> NoReturn:
    """Raise the error of a module's ``__getattr__``.

    Args:
        module: the module's name.
        name: the missing attribute.
        known: names that the original's module had, and what to do instead.

    Raises:
        ImportError: ``name`` is in ``known``.
        AttributeError: otherwise; ``from module import name`` turns it into an ImportError.
    """
    instead = known.get(name)
    if instead is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise ImportError(f"{module}.{name} is not available in penstock-paddle: {instead}")
