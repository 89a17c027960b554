"""An App with models for OpenAI's routes, for the tests with real clients."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from penstock import App
from penstock.openai import ChatMessage, ChatReply, ToolCall, Usage

app = App("assistant", **({"security": {"keys_env": "KEYS"}} if "KEYS" in os.environ else {}))
EXECUTOR = os.environ.get("EXECUTOR", "thread")
FOLDER = Path(os.environ.get("FOLDER", "/nonexistent"))


@app.chat("words", workers=4, executor=EXECUTOR)
def words(messages: list[ChatMessage], max_tokens: int = 100) -> Iterator[str | ChatReply]:
    """Says the last message again, word by word."""
    found = messages[-1].text.split()
    for word in found[:max_tokens]:
        if word == "fail":
            raise ValueError("a secret")
        yield f"{word} "
    if len(found) > max_tokens:
        yield ChatReply(finish_reason="length")
    yield ChatReply(usage=Usage(prompt_tokens=1, completion_tokens=len(found)))


@app.chat("tools")
async def tools(
    messages: list[ChatMessage], tools: list[dict[str, Any]] | None = None
) -> AsyncIterator[ChatReply]:
    """Calls the first tool, and says what it answered."""
    if messages[-1].role == "tool":
        yield ChatReply(content=f"It says: {messages[-1].text}")
        return
    name = (tools or [{}])[0].get("function", {}).get("name", "none")
    first = {"name": name, "arguments": '{"ci'}
    yield ChatReply(tool_calls=[ToolCall.model_validate({"id": "call_1", "function": first})])
    rest = {"arguments": 'ty": "Rome"}'}
    yield ChatReply(tool_calls=[ToolCall.model_validate({"function": rest})])


@app.chat("endless", workers=2)
def endless(messages: list[ChatMessage]) -> Iterator[str]:
    """Never ends; its file tells when it was closed."""
    pause = threading.Event()
    try:
        while True:
            yield "on and "
            pause.wait(0.001)
    finally:
        (FOLDER / "closed").touch()


@app.completion("words")
def complete(prompt: str, max_tokens: int = 16) -> Iterator[str]:
    """Says the letters of the prompt in upper case."""
    for letter in prompt[:max_tokens]:
        yield letter.upper()


@app.embeddings("words", executor=EXECUTOR)
def embed(input: list[str]) -> list[list[float]]:
    """Counts characters and words."""
    return [[len(each), len(each.split()) / 3] for each in input]


@app.rerank("words", executor=EXECUTOR)
def rerank(query: str, documents: list[str]) -> list[float]:
    """Counts the words in common."""
    return [len({*query.split()} & {*each.split()}) for each in documents]


if __name__ == "__main__":
    app.run()
