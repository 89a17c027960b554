"""What the import packages of this distribution share.

They have the names of another project's packages. Installed beside those, the files of both would
be mixed, so that an import may find either.
"""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NoReturn

DEFAULTS: Final[Mapping[str, object]] = {
    "host": "0.0.0.0",  # noqa: S104 (clients on other machines rely on it)
    "missing_device": "cpu",
}
"""Configuration keys whose default was another one in the original."""

_ORIGINALS: Final = (
    "paddle-serving-server",
    "paddle-serving-server-gpu",
    "paddle-serving-client",
    "paddle-serving-app",
)


def refuse_originals() -> None:
    """Check that none of the original's distributions is installed.

    Raises:
        ImportError: one is.
    """
    for name in _ORIGINALS:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        raise ImportError(
            f"penstock-paddle and {name} {found} have packages of the same names: uninstall both,"
            f" then install the one that is wanted"
        )


def refuse_name(module: str, name: str, known: dict[str, str]) -> NoReturn:
    """What the ``__getattr__`` of a module says of a name that it does not have.

    Args:
        module: its name.
        name: that was asked for.
        known: names that the original's module had, and what to do instead.

    Raises:
        AttributeError: always; ``from module import name`` makes an ImportError of it.
    """
    instead = known.get(name)
    if instead is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise ImportError(f"{module}.{name} is not available in penstock-paddle: {instead}")
