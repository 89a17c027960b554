"""What a description of the interface tells of the Open Inference Protocol's routes."""

from __future__ import annotations

from typing import Final

from penstock.api.calls import Answer, Contents
from penstock.api.descriptions import BYTES, engine_errors
from penstock.protocols.media import JSON
from penstock.protocols.oip import DTYPES

_ERROR: Final = {
    "title": "InferenceError",
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
_SHAPE: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 16}
_DATATYPE: Final = {"type": "string", "enum": [*DTYPES]}
_DATA: Final = {"type": "array", "description": "Numbers or texts, flat or nested as the shape is."}
_PARAMETERS: Final = {"type": "object"}

_REQUEST: Final = {
    "title": "InferRequest",
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": _PARAMETERS,
        "inputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "shape", "datatype", "data"],
                "properties": {
                    "name": {"type": "string"},
                    "shape": _SHAPE,
                    "datatype": _DATATYPE,
                    "parameters": _PARAMETERS,
                    "data": _DATA,
                },
            },
        },
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "parameters": _PARAMETERS},
            },
        },
    },
}
_RESPONSE: Final = {
    "title": "InferResponse",
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "datatype", "shape"],
                "properties": {
                    "name": {"type": "string"},
                    "datatype": _DATATYPE,
                    "shape": _SHAPE,
                    "parameters": _PARAMETERS,
                    "data": _DATA,
                },
            },
        },
    },
}
_TENSORS: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": {"type": "string"},
            "datatype": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": -1}},
        },
    },
}

REQUEST: Final[Contents] = {JSON: _REQUEST, BYTES: {}}
RESPONSE: Final[Contents] = {JSON: _RESPONSE, BYTES: {}}
SERVER: Final[Contents] = {
    JSON: {
        "title": "Server",
        "type": "object",
        "required": ["name", "version", "extensions"],
        "properties": {
            "name": {"type": "string"},
            "version": {"type": "string"},
            "extensions": {"type": "array", "items": {"type": "string"}},
        },
    }
}
MODEL: Final[Contents] = {
    JSON: {
        "title": "ModelMetadata",
        "type": "object",
        "required": ["name", "versions", "platform", "inputs", "outputs"],
        "properties": {
            "name": {"type": "string"},
            "versions": {"type": "array", "items": {"type": "string"}},
            "platform": {"type": "string"},
            "inputs": _TENSORS,
            "outputs": _TENSORS,
        },
    }
}
TRUTH: Final[Contents] = {JSON: {"type": "object"}}
STATISTICS: Final[Contents] = {
    JSON: {
        "title": "ModelStatistics",
        "type": "object",
        "required": ["model_stats"],
        "properties": {"model_stats": {"type": "array", "items": {"type": "object"}}},
    }
}


def answers(contents: Contents) -> dict[int, Answer]:
    """Every answer of a route whose good one has these contents."""
    failures: dict[int, Answer] = {
        status: Answer(text=each.text, contents={JSON: _ERROR}, headers=each.headers)
        for status, each in engine_errors().items()
    }
    return {**failures, 200: Answer(text="The answer.", contents=contents)}
