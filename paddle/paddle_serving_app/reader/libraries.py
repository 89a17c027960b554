"""Imports optional libraries, when a reader that needs one is constructed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def opencv(user: str) -> ModuleType:
    """Import OpenCV for the reader named ``user``.

    Raises:
        ImportError: OpenCV is not installed; the message names the package.
    """
    try:
        return import_module("cv2")
    except ImportError as error:
        raise _missing(user, "OpenCV", "opencv-python-headless") from error


def pillow(user: str) -> ModuleType:
    """Import Pillow's module ``PIL.Image`` for the reader named ``user``.

    Raises:
        ImportError: Pillow is not installed; the message names the package.
    """
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise _missing(user, "Pillow", "pillow") from error


def pyclipper(user: str) -> ModuleType:
    """Import pyclipper for the reader named ``user``.

    Raises:
        ImportError: pyclipper is not installed; the message names the package.
    """
    try:
        return import_module("pyclipper")
    except ImportError as error:
        raise _missing(user, "pyclipper", "pyclipper") from error


def _missing(user: str, library: str, package: str) -> ImportError:
    return ImportError(
        f"{user} needs {library}: install {package}, or penstock-paddle[readers]", name=package
    )
