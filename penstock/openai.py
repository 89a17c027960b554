"""The public names for functions behind OpenAI's routes."""

from penstock.typed.openai import (
    ChatMessage,
    ChatReply,
    ChatRequest,
    CompletionReply,
    CompletionRequest,
    EmbeddingsReply,
    EmbeddingsRequest,
    FunctionCall,
    RerankReply,
    RerankRequest,
    ToolCall,
    Usage,
)

__all__ = [
    "ChatMessage",
    "ChatReply",
    "ChatRequest",
    "CompletionReply",
    "CompletionRequest",
    "EmbeddingsReply",
    "EmbeddingsRequest",
    "FunctionCall",
    "RerankReply",
    "RerankRequest",
    "ToolCall",
    "Usage",
]
