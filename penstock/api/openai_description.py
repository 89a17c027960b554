"""The OpenAPI description of OpenAI's routes."""

from __future__ import annotations

from typing import Any, Final

from penstock.api.descriptions import engine_errors, errors
from penstock.api.openai_calls import CHAT, COMPLETION, EMBEDDINGS, RERANK
from penstock.api.operation import Answer, Contents
from penstock.protocols.media import JSON
from penstock.protocols.pieces import EVENTS
from penstock.typed.openai import (
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    RerankRequest,
)
from penstock.typed.signature import Schema

_REFS: Final = "#/$defs/{model}"

_TEXT: Final = {"type": "string"}
_NULLABLE: Final = {"type": ["string", "null"]}
_NUMBER: Final = {"type": "integer"}
_OBJECT: Final = {"type": ["object", "null"]}

ERROR: Final[dict[str, Any]] = {
    "title": "OpenAIError",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {**_TEXT, "description": "A text for people."},
                "type": {**_TEXT, "description": "The kind of error."},
                "param": {**_NULLABLE, "description": "The member that is wrong."},
                "code": {**_NULLABLE, "description": "A code for programs."},
            },
        }
    },
}
_USAGE: Final = {
    "type": ["object", "null"],
    "description": "The numbers of tokens, if the function tells them.",
}
_MODEL: Final[dict[str, Any]] = {
    "title": "Model",
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": _TEXT,
        "object": {"const": "model"},
        "created": _NUMBER,
        "owned_by": _TEXT,
        "root": _TEXT,
        "parent": _NULLABLE,
    },
}
MODEL: Final[Contents] = {JSON: _MODEL}
MODELS: Final[Contents] = {
    JSON: {
        "title": "ModelList",
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}},
    }
}


def _completion(title: str, kind: str, name: str, content: dict[str, Any]) -> Contents:
    """The answers of a chat or a completion.

    Args:
        title: of the schema.
        kind: the member ``object``.
        name: the member of a choice with the content.
        content: its schema.
    """
    choice = {
        "type": "object",
        "required": ["index", name, "finish_reason"],
        "properties": {
            "index": _NUMBER,
            name: content,
            "logprobs": _OBJECT,
            "finish_reason": _TEXT,
        },
    }
    whole = {
        "title": title,
        "type": "object",
        "required": ["id", "object", "created", "model", "choices"],
        "properties": {
            "id": _TEXT,
            "object": {"const": kind},
            "created": _NUMBER,
            "model": _TEXT,
            "choices": {"type": "array", "items": choice},
            "usage": _USAGE,
        },
    }
    text = "With `stream`: events, each with a chunk as JSON in `data`; `[DONE]` is the last one."
    return {JSON: whole, EVENTS: {"description": text}}


_MESSAGE: Final = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"const": "assistant"},
        "content": _NULLABLE,
        "tool_calls": {"type": "array", "items": {"type": "object"}},
    },
}
_EMBEDDINGS: Final[Contents] = {
    JSON: {
        "title": "EmbeddingList",
        "type": "object",
        "required": ["object", "data", "model", "usage"],
        "properties": {
            "object": {"const": "list"},
            "data": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["object", "index", "embedding"],
                    "properties": {
                        "object": {"const": "embedding"},
                        "index": _NUMBER,
                        "embedding": {
                            "anyOf": [{"type": "array", "items": {"type": "number"}}, _TEXT],
                            "description": "Numbers, or with `encoding_format` base64 their bytes"
                            " as float32, little-endian.",
                        },
                    },
                },
            },
            "model": _TEXT,
            "usage": {"type": "object"},
        },
    }
}
_RANKING: Final[Contents] = {
    JSON: {
        "title": "Ranking",
        "type": "object",
        "required": ["id", "model", "usage", "results"],
        "properties": {
            "id": _TEXT,
            "model": _TEXT,
            "usage": {"type": "object"},
            "results": {
                "type": "array",
                "description": "The best documents first.",
                "items": {
                    "type": "object",
                    "required": ["index", "relevance_score"],
                    "properties": {
                        "index": _NUMBER,
                        "relevance_score": {"type": "number"},
                        "document": {"type": "object"},
                    },
                },
            },
        },
    }
}
_ANSWERS: Final = {
    CHAT.path: _completion("ChatCompletion", "chat.completion", "message", _MESSAGE),
    COMPLETION.path: _completion("Completion", "text_completion", "text", _TEXT),
    EMBEDDINGS.path: _EMBEDDINGS,
    RERANK.path: _RANKING,
}
_REQUESTS: Final = {
    CHAT.path: ChatRequest,
    COMPLETION.path: CompletionRequest,
    EMBEDDINGS.path: EmbeddingsRequest,
    RERANK.path: RerankRequest,
}
_EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    CHAT.path: {"messages": [{"role": "user", "content": "Hello"}]},
    COMPLETION.path: {"prompt": "Once upon a time"},
    EMBEDDINGS.path: {"input": ["Hello"]},
    RERANK.path: {"query": "Hello", "documents": ["Hello", "Goodbye"]},
}


def of(path: str, model: str) -> tuple[Contents, Contents, dict[str, Any]]:
    """The request bodies of a route, the bodies of its answers, and an example request.

    Args:
        path: of the route.
        model: the name of one of its models.
    """
    schema = Schema(_REQUESTS[path], path).describe(refs=_REFS)
    return {JSON: schema}, _ANSWERS[path], {"model": model, **_EXAMPLES[path]}


def answers(contents: Contents) -> dict[int, Answer]:
    """All answers of a route that runs a graph, in OpenAI's form of errors."""
    found = engine_errors(form=ERROR)
    del found[422]
    return {200: Answer(text="The result.", contents=contents), **found}


def of_models(contents: Contents) -> dict[int, Answer]:
    """All answers of a route about models."""
    found = errors(415, form=ERROR)
    found[404] = Answer(text="There is no such model.", contents={JSON: ERROR})
    return {200: Answer(text="The result.", contents=contents), **found}
