"""The OpenAPI description of the Open Inference Protocol's routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from penstock.api.descriptions import BYTES, engine_errors
from penstock.api.operation import Answer, Contents
from penstock.protocols.media import JSON
from penstock.protocols.oip import DTYPES, datatype_of
from penstock.protocols.pieces import OF_GENERATE
from penstock.tensor import Signature, TensorSpec

_ERROR: Final = {
    "title": "InferenceError",
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
_SHAPE: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 16}
_DATATYPE: Final = {"type": "string", "enum": [*DTYPES]}
_DATA: Final = {
    "type": "array",
    "description": "Numbers or texts, flat or nested like the shape. Of floats, NaN is null, and"
    ' infinities are "Infinity" and "-Infinity".',
}
_PARAMETERS: Final = {"type": "object"}
_NATURAL: Final = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_OF_REQUEST: Final = {
    "type": "object",
    "properties": {
        "binary_data_output": {"type": "boolean"},
        "priority": {
            **_NATURAL,
            "description": "1 is the highest; 0 is the default. It counts where the service lets"
            " requests name a priority.",
        },
        "timeout": {
            **_NATURAL,
            "description": "Microseconds until the answer is no longer needed; 0 is no limit of"
            " the caller.",
        },
    },
}

_REQUEST: Final[dict[str, Any]] = {
    "title": "InferRequest",
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": _OF_REQUEST,
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
_CONFIGURED: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "data_type", "dims"],
        "properties": {
            "name": {"type": "string"},
            "data_type": {"type": "string"},
            "dims": {"type": "array", "items": {"type": "integer", "minimum": -1}},
            "optional": {"const": True, "description": "A request may leave it out."},
        },
    },
}
CONFIG: Final[Contents] = {
    JSON: {
        "title": "ModelConfig",
        "type": "object",
        "required": ["name", "platform", "backend", "max_batch_size", "input", "output"],
        "properties": {
            "name": {"type": "string"},
            "platform": {"type": "string"},
            "backend": {"type": "string"},
            "max_batch_size": {"const": 0, "description": "The shapes have all dimensions."},
            "input": _CONFIGURED,
            "output": _CONFIGURED,
            "model_transaction_policy": {
                "type": "object",
                "required": ["decoupled"],
                "properties": {
                    "decoupled": {
                        "type": "boolean",
                        "description": "Whether a request may have several responses.",
                    }
                },
            },
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


def example(signature: Signature) -> dict[str, Any]:
    """A request of zeros and empty texts, with one row if the number varies."""
    inputs = []
    for spec in signature.inputs:
        shape = [1 if size is None else size for size in spec.shape or (1,)]
        datatype = datatype_of(spec)
        zero: Any = {"BOOL": False, "BYTES": ""}.get(datatype, 0)
        data = [zero] * min(prod(shape), _LONGEST)
        inputs.append({"name": spec.alias, "shape": shape, "datatype": datatype, "data": data})
    return {"inputs": inputs}


def request_of(signature: Signature) -> Contents:
    """The request bodies of a model."""
    items = [
        {
            "type": "object",
            "required": ["name", "shape", "datatype", "data"],
            "properties": {
                "name": {"const": spec.alias},
                "shape": _shape_of(spec),
                "datatype": {"const": datatype_of(spec)},
                "parameters": _PARAMETERS,
                "data": {"type": "array", "items": _ELEMENTS.get(spec.dtype.kind, _NUMBER)},
            },
        }
        for spec in signature.inputs
    ]
    inputs = {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    schema = {
        **_REQUEST,
        "title": "",
        "properties": {**_REQUEST["properties"], "inputs": inputs},
    }
    return {JSON: schema, BYTES: {}}


_NUMBER: Final = {"type": ["number", "null", "string"]}
"""A float; null is NaN, and infinities are texts."""
_ELEMENTS: Final = {
    "b": {"type": "boolean"},
    "i": {"type": "integer"},
    "u": {"type": "integer", "minimum": 0},
    **{kind: {"type": "string"} for kind in "OSU"},
}
_LONGEST: Final = 1_000
"""Most elements of an example."""


def _shape_of(spec: TensorSpec) -> dict[str, Any]:
    if spec.shape is None or spec.shape_is_hint:
        return _SHAPE
    sizes = [
        {"type": "integer", "minimum": 0} if size is None else {"const": size}
        for size in spec.shape
    ]
    count = len(sizes)
    return {"type": "array", "prefixItems": sizes, "minItems": count, "maxItems": count}


def members_example(signature: Signature) -> dict[str, Any]:
    """A request of zeros and empty texts by the inputs' names."""
    return {
        each["name"]: each["data"][0] if len(each["data"]) == 1 else each["data"]
        for each in example(signature)["inputs"]
    }


def members_of(signature: Signature) -> Contents:
    """The request bodies with a member for each input of a model."""
    properties = {}
    for spec in signature.inputs:
        element = _ELEMENTS.get(spec.dtype.kind, _NUMBER)
        properties[spec.alias] = {"anyOf": [element, {"type": "array", "items": element}]}
    required = [each.alias for each in signature.inputs if not each.optional]
    return {JSON: {**_MEMBERS, "title": "", "required": required, "properties": properties}}


_MEMBERS: Final[dict[str, Any]] = {
    "title": "GenerateRequest",
    "type": "object",
    "description": "A member for each input: its element, or a flat list of its elements, whose"
    " number fits the shape. Members of `parameters` are the same. Other texts, numbers, true and"
    " false are ignored.",
}


@dataclass(frozen=True, slots=True)
class Bodies:
    """The request bodies of a route.

    Attributes:
        any: of all models.
        of: of one model.
        example: a body for one model.
    """

    any: Contents
    of: Callable[[Signature], Contents]
    example: Callable[[Signature], Any]


INFER: Final = Bodies(REQUEST, request_of, example)
GENERATE: Final = Bodies({JSON: _MEMBERS}, members_of, members_example)
_GENERATED: Final = {
    "title": "GenerateResponse",
    "type": "object",
    "required": ["model_name", "model_version"],
    "properties": {
        "id": {"type": "string"},
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
    },
    "description": "It has a member for each output: its only element, or a flat list.",
}
GENERATED: Final[Contents] = {JSON: _GENERATED}
EVENT: Final[Contents] = {
    OF_GENERATE.kind: {
        "description": "Events, each with a GenerateResponse as JSON in `data`.",
    }
}


def answers(contents: Contents) -> dict[int, Answer]:
    """All answers of a route with these contents on success."""
    failures: dict[int, Answer] = {
        status: Answer(text=each.text, contents={JSON: _ERROR}, headers=each.headers)
        for status, each in engine_errors().items()
    }
    return {**failures, 200: Answer(text="The answer.", contents=contents)}
