"""OpenAI's client and LangChain, unchanged, with models of one's own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.security.keys import line_of, new_key
from tests.services.process import running

pytestmark = pytest.mark.peers

HERE = Path(__file__).parent / "openai"
PYTHON = HERE / ".venv" / "bin" / "python"
SCRIPT = Path(__file__).parents[1] / "services" / "openai_models.py"


@pytest.fixture(scope="module", params=["thread", "process"])
def answers(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    if not PYTHON.exists():
        pytest.skip("OpenAI's client is not installed: make peers")
    key = new_key()
    environment = {"EXECUTOR": request.param, "KEYS": line_of("ann", key, ())}
    with running(SCRIPT, environment=environment) as server:
        done = subprocess.run(
            [PYTHON, HERE / "client.py", server.http_url, key],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)


def test_models_are_listed(answers: dict[str, Any]) -> None:
    assert answers["models"] == ["words", "tools", "endless"]
    assert answers["model"]["id"] == answers["model"]["root"] == "words"


def test_chats_are_answered_whole_and_in_chunks(answers: dict[str, Any]) -> None:
    found = answers["chats"]
    assert found["whole"]["choices"][0]["message"]["content"] == "one two "
    assert found["whole"]["usage"]["total_tokens"] == 3
    *texts, last, tokens = found["chunks"]
    assert [each["choices"][0]["delta"]["content"] for each in texts] == ["one ", "two "]
    assert texts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert last["choices"][0] == {
        "delta": {},
        "index": 0,
        "finish_reason": "stop",
        "logprobs": None,
    }
    assert (tokens["choices"], tokens["usage"]["completion_tokens"]) == ([], 2)
    assert len({each["id"] for each in found["chunks"]}) == 1
    assert found["limited"] == "length"
    assert found["helper"] == ["chunk", "content.done", "one two "]


def test_tools_are_called(answers: dict[str, Any]) -> None:
    found = answers["tools"]
    assert found["call"] == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    deltas = [each["choices"][0]["delta"] for each in found["chunks"]]
    assert [each["tool_calls"][0]["index"] for each in deltas[:-1]] == [0, 0]
    assert found["chunks"][-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert found["answer"] == "It says: sunny"


def test_completions(answers: dict[str, Any]) -> None:
    assert answers["completion"] == "AB"
    assert answers["completion, chunks"] == ["A", "B", ""]


def test_embeddings_are_read_as_floats_and_as_base64(answers: dict[str, Any]) -> None:
    found = answers["embeddings"]
    assert found["default"] == [pytest.approx([3.0, 2 / 3]), pytest.approx([1.0, 1 / 3])]
    assert found["float"] == pytest.approx([3.0, 2 / 3])
    assert found["usage"] == 0
    assert found["tokens"]["class"] == "BadRequestError"
    assert "check_embedding_ctx_length=False" in found["tokens"]["message"]


@pytest.mark.parametrize(
    ("case", "kind", "code", "param"),
    [
        ("no model", "NotFoundError", "model_not_found", "model"),
        ("no key", "AuthenticationError", "invalid_api_key", None),
        ("wrong", "BadRequestError", "invalid_value", "max_tokens"),
        ("several", "BadRequestError", "unsupported_value", "n"),
        ("function", "InternalServerError", "hook_failed", None),
        ("before", "InternalServerError", "hook_failed", None),
        ("in the middle", "APIError", "hook_failed", None),
    ],
)
def test_errors_are_those_of_the_client(
    answers: dict[str, Any], case: str, kind: str, code: str, param: str | None
) -> None:
    found = answers["errors"][case]
    assert (found["class"], found["code"], found["param"]) == (kind, code, param)
    assert "secret" not in found["message"]


def test_the_asynchronous_client(answers: dict[str, Any]) -> None:
    found = answers["asynchronous"]
    assert found["whole"] == "one two "
    assert found["texts"] == ["a ", "b ", None]
    assert found["in the middle"]["code"] == "hook_failed"


def test_langchain_calls_models_and_tools(answers: dict[str, Any]) -> None:
    found = answers["langchain"]
    calls = [["weather", {"city": "Rome"}]]
    assert found["whole"] == found["asynchronous"] == "one two "
    assert found["tokens"] == 3
    assert "".join(found["pieces"]) == "one two three "
    assert found["tokens of pieces"] == 3
    assert found["calls"] == found["calls of pieces"] == calls
    assert found["answer"] == "It says: sunny in Rome"
    assert found["embeddings"] == [pytest.approx([3.0, 2 / 3]), pytest.approx([1.0, 1 / 3])]
    assert found["embedding"] == pytest.approx([3.0, 2 / 3])
    assert found["batch"] == ["a ", "b ", "c "]
