"""The forms of the test networks, and the libraries that open them."""

from __future__ import annotations

import pytest

from tests.models import is_installed

LIBRARIES = {"onnx": "onnxruntime", "paddle": "paddle", "torch": "torch", "openvino": "openvino"}
"""By the runtime's name, the module to import."""

FORMS = {
    "onnx": ("onnx",),
    "paddle": ("paddle_json", "paddle_pdmodel", "paddle_combined", "paddle_separate"),
    "torch": ("torch_script", "torch_exported"),
    "openvino": ("openvino",),
}
"""By the runtime's name, the folders that ``python -m tests.models`` writes."""


def needs(runtime: str) -> pytest.MarkDecorator:
    library = LIBRARIES[runtime]
    missing = not is_installed(library)
    return pytest.mark.skipif(missing, reason=f"{library} is not installed")


def every_form() -> list:
    return [
        pytest.param(runtime, form, marks=needs(runtime), id=form)
        for runtime, forms in FORMS.items()
        for form in forms
    ]


def one_form_each() -> list:
    """Of every library the first form."""
    return [
        pytest.param(runtime, forms[0], marks=needs(runtime), id=forms[0])
        for runtime, forms in FORMS.items()
    ]
