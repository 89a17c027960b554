"""OpenAI's protocol: what a request asks for; answers, whole or in chunks; the list of models.

Rankings, which it lacks, are those of Jina and Cohere, as vLLM serves them.

A worker makes parts of an answer, each a dict of plain values with the keys below; ``ChatAnswer``
and ``CompletionAnswer`` make chunks of them, or one whole answer. Source: OpenAI's API reference,
and what its clients and vLLM's benchmark read.

Guarantees for an answer in chunks:
    - the chunks have one id and one time;
    - the role is in the first chunk, and there is no chunk before the first part with content;
    - ``finish_reason`` is null in every chunk but the last, which has nothing else;
    - tokens are in a chunk of their own, without choices, if the request asks for them and the
      function tells them;
    - ``[DONE]`` follows a complete answer only.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import orjson

from penstock.errors import InvalidInput
from penstock.protocols import media
from penstock.protocols.heads import Headers
from penstock.protocols.pieces import OF_EVENTS
from penstock.request import Feed

PREFIX: Final = "/v1"
"""Of all paths."""

TEXT: Final = "@text"
"""Key of a part's content: of a chat the delta as a JSON object without role and tool calls, of a
completion the text as JSON. Empty for none."""
CALLS: Final = "@calls"
"""Key of a part's tool calls, as dicts."""
FINISH: Final = "@finish"
"""Key of the reason why the answer ends."""
USAGE: Final = "@usage"
"""Key of the numbers of tokens."""
LOGPROBS: Final = "@logprobs"
"""Key of the log probabilities of a part's tokens."""

SCORES: Final = "@scores"
"""Key of the scores of documents, in the order of the request."""
COUNT: Final = "@count"
"""Key of the number of texts or documents of a request, in the op's input."""
BASE64: Final = "@base64"
"""Key of whether embeddings are sent as base64, in the op's input."""

STOP: Final = "@stop"
"""Key of the stop texts of a request, in the op's input."""

_MOST_STOPS: Final = 64
_LONGEST_STOP: Final = 1000
"""Characters of a stop text. The search for its beginning at the end of a piece takes as many
steps: with 100,000 a long answer took its worker 6 s."""
_AT_ONCE: Final = 500
"""Ranked documents that are encoded at once."""
_NO_REASON: Final = b',"finish_reason":null}'
_DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for, apart from its function's parameters.

    Attributes:
        model: the name of a model; None if the request names none.
        stream: whether the answer comes in chunks.
        usage: whether the chunks end with the numbers of tokens.
        body: the whole request.
    """

    model: str | None
    stream: bool
    usage: bool
    body: Mapping[str, Any]


def asked(body: bytes, kind: str) -> Asked:
    """Read a request's body.

    Args:
        body: the decompressed body.
        kind: its media type.

    Raises:
        InvalidInput: a member is invalid.
        Undecodable: the body is no JSON.
        UnknownMediaType: it is of another type.
        TooLarge: see ``media.check_json``.
    """
    value = media.decode(body, kind, exact=False, texts=True)
    if not isinstance(value, dict):
        raise _invalid("the body is not an object", "object_type")
    model, stream, options = (value.get(name) for name in ("model", "stream", "stream_options"))
    if not isinstance(model, str | None):
        raise _invalid("Input should be a valid string", "string_type", "model")
    if not isinstance(stream, bool | None):
        raise _invalid("Input should be a valid boolean", "bool_type", "stream")
    if not isinstance(options, dict | None):
        raise _invalid("Input should be an object", "object_type", "stream_options")
    number = value.get("n")
    if number not in (None, 1):
        text = "an answer has one choice: send several requests"
        raise _invalid(text, "unsupported_value", "n")
    usage = options is not None and options.get("include_usage") is True
    return Asked(model, bool(stream), usage, value)


def of_texts(body: Mapping[str, Any]) -> Feed:
    """What a request for a chat or a completion says about its answer's end.

    Raises:
        InvalidInput: a member is invalid.
    """
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop
    if stops is None or stops == []:
        return {}
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise _invalid("Input should be a text, or a list of texts", "string_type", "stop")
    if len(stops) > _MOST_STOPS:
        raise _invalid(f"there may be {_MOST_STOPS} texts", "too_long", "stop")
    if max(map(len, stops)) > _LONGEST_STOP:
        raise _invalid(f"a text may have {_LONGEST_STOP} characters", "string_too_long", "stop")
    return {STOP: stops}


def of_chat(body: Mapping[str, Any]) -> Feed:
    """The same of a request for a chat.

    Raises:
        InvalidInput: a member is invalid.
    """
    if body.get("messages") == []:
        raise _invalid("there is no message", "too_short", "messages")
    return of_texts(body)


def of_completion(body: Mapping[str, Any]) -> Feed:
    """The same of a request for a completion.

    Raises:
        InvalidInput: a member is invalid.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        if prompt and not isinstance(prompt[0], str):
            raise _invalid("send a text, not tokens", "string_type", "prompt")
        if len(prompt) != 1:
            text = "an answer continues one text: send a request for each"
            raise _invalid(text, "unsupported_value", "prompt")
    return of_texts(body)


def parameters(body: Mapping[str, Any], names: frozenset[str] | None) -> dict[str, Any]:
    """The members of a body for a function, in one form.

    A member that is null is as one that is absent, ``stop`` and ``input`` are lists also if a
    single text was sent, ``prompt`` is a text also if a list of one was sent, and the limit of
    tokens has both of its names.

    Args:
        body: the request.
        names: of the function's parameters; None for all members.
    """
    found = {name: value for name, value in body.items() if value is not None}
    for name in ("stop", "input"):
        if isinstance(found.get(name), str):
            found[name] = [found[name]]
    prompt = found.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        found["prompt"] = prompt[0]
    limit = found.get("max_completion_tokens", found.get("max_tokens"))
    if limit is not None:
        found.setdefault("max_tokens", limit)
        found.setdefault("max_completion_tokens", limit)
    if names is None:
        return found
    return {name: value for name, value in found.items() if name in names}


def _invalid(text: str, kind: str, *place: str) -> InvalidInput:
    return InvalidInput([{"loc": ["body", *place], "msg": text, "type": kind}])


class Answer:
    """One answer of a chat or a completion: its chunks in their order, or the whole of it.

    Args:
        key: distinguishes it from other answers.
        created: Unix time in seconds.
        model: the name of its model.
        usage: whether chunks end with the numbers of tokens.

    Attributes:
        idle, filler, headers: see ``Format``.
    """

    __slots__ = ("_begun", "_end", "_finish", "_head", "_id", "_lead", "_tail", "_tokens", "_usage",
                 "created", "model")  # fmt: skip

    idle = OF_EVENTS.idle
    filler = OF_EVENTS.filler
    headers: Headers = OF_EVENTS.headers
    member: ClassVar[bytes]
    """The member of a choice with its content."""
    prefix: ClassVar[str]
    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, key: str, created: int, model: str, *, usage: bool = False) -> None:
        self._id = f"{self.prefix}-{key}"
        self.created = created
        self.model = model
        self._usage = usage
        self._finish: str | None = None
        self._tokens: Mapping[str, Any] | None = None
        self._begun = False
        common = orjson.dumps(self._common(self.chunk_kind))
        self._head = b'data: %b,"choices":[{"index":0,' % common[:-1]
        self._tail = b'],"usage":null}\n\n' if usage else b"]}\n\n"
        self._lead = b'%b"%b":' % (self._head, self.member)
        self._end = b',"logprobs":null%b%b' % (_NO_REASON, self._tail)

    def chunk(self, part: Feed) -> bytes:
        """The event with a part; empty if it has nothing to be sent now."""
        if self._begun and len(part) == 1 and part.get(TEXT):  # of nearly every part
            return b"%b%b%b" % (self._lead, part[TEXT], self._end)
        self._note(part)
        content = self._content(part)
        if not content:
            return b""
        self._begun = True
        logprobs = part.get(LOGPROBS)
        end = self._end
        if logprobs is not None:
            end = b',"logprobs":%b%b%b' % (orjson.dumps(logprobs), _NO_REASON, self._tail)
        return self._head + content + end

    def last(self, *, empty: bool = False) -> bytes:
        """The events at the end of a complete answer."""
        begin = b""
        if not self._begun:
            begin = self.chunk({TEXT: self._nothing})
        end = b'%b,"logprobs":null,"finish_reason":%b}' % (
            self._empty,
            orjson.dumps(self._reason()),
        )
        found = [begin, self._head, end, self._tail]
        if self._usage and self._tokens is not None:
            more = {**self._common(self.chunk_kind), "choices": [], "usage": self._tokens}
            found.append(b"data: %b\n\n" % orjson.dumps(more))
        found.append(_DONE)
        return b"".join(found)

    def error(self, body: bytes) -> bytes:
        """The event of an error that ends an answer which has begun."""
        return b"data: %b\n\n" % body

    def events(self, parts: Iterable[Feed]) -> bytes:
        """All events of a complete answer."""
        return b"".join([*map(self.chunk, parts), self.last()])

    def whole(self, parts: Sequence[Feed]) -> bytes:
        """The body of an answer without chunks."""
        for each in parts:
            self._note(each)
        choice = {"index": 0, **self._joined(parts)}
        choice["logprobs"] = _joined_logprobs(parts)
        choice["finish_reason"] = self._reason()
        found = {**self._common(self.whole_kind), "choices": [choice], "usage": self._tokens}
        return orjson.dumps(found)

    def _common(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self.created, "model": self.model}

    def _note(self, part: Feed) -> None:
        """Keep what a part tells about the end."""
        if FINISH in part:
            self._finish = part[FINISH]
        if USAGE in part:
            self._tokens = part[USAGE]

    def _reason(self) -> str:
        return self._finish or "stop"

    _nothing: ClassVar[bytes]
    """The content of an answer without any."""
    _empty: ClassVar[bytes]
    """The member of a choice without content."""

    def _content(self, part: Feed) -> bytes:
        """The member of a choice with a part's content; empty for none."""
        raise NotImplementedError

    def _joined(self, parts: Iterable[Feed]) -> dict[str, Any]:
        """The member of a choice with the content of all parts."""
        raise NotImplementedError


class CompletionAnswer(Answer):
    """See ``Answer``."""

    __slots__ = ()
    prefix = "cmpl"
    whole_kind = chunk_kind = "text_completion"
    member = b"text"
    _nothing = b'""'
    _empty = b'"text":""'

    def _content(self, part: Feed) -> bytes:
        text = part.get(TEXT)
        return b'"text":%b' % text if text else b""

    def _joined(self, parts: Iterable[Feed]) -> dict[str, Any]:
        return {"text": "".join([orjson.loads(each[TEXT]) for each in parts if each.get(TEXT)])}


class ChatAnswer(Answer):
    """See ``Answer``."""

    __slots__ = ("_calls", "_last")
    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    member = b"delta"
    _nothing = b'{"content":""}'
    _empty = b'"delta":{}'

    def __init__(self, key: str, created: int, model: str, *, usage: bool = False) -> None:
        super().__init__(key, created, model, usage=usage)
        self._calls: dict[str, int] = {}
        self._last = -1

    def _reason(self) -> str:
        return self._finish or ("tool_calls" if self._calls else "stop")

    def _content(self, part: Feed) -> bytes:
        delta = part.get(TEXT) or b""
        calls = part.get(CALLS)
        if calls:
            more = orjson.dumps({"tool_calls": [self._numbered(each) for each in calls]})
            delta = b"%b,%b" % (delta[:-1], more[1:]) if delta else more
        if not delta:
            return b""
        if not self._begun:
            delta = b'{"role":"assistant",%b' % delta[1:]
        return b'"delta":' + delta

    def _numbered(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """A tool call, or a further part of its arguments, with its index.

        A part without an index that has a new id, or a name, begins a call; else it continues the
        last one. Clients join the texts of parts: those that continue a call have its arguments
        only.
        """
        function = {**call.get("function", {})}
        name = function.pop("name", None)
        key, index = call.get("id"), call.get("index")
        if index is None:
            index = self._last
            if key is not None:
                index = self._calls.get(key, self._next)
            elif name or index < 0:
                index = self._next
        self._last = index
        if index in self._calls.values():
            return {**_without(call, "id", "type"), "index": index, "function": function}
        key = key or f"call_{self._id.rpartition('-')[2][:24]}{index}"
        self._calls[key] = index
        function = {"name": name or "", **function}
        return {"type": "function", **call, "id": key, "index": index, "function": function}

    @property
    def _next(self) -> int:
        """The index of the next tool call."""
        return max(self._calls.values(), default=-1) + 1

    def _joined(self, parts: Iterable[Feed]) -> dict[str, Any]:
        texts: dict[str, list[str]] = {}
        message: dict[str, Any] = {"role": "assistant", "content": None}
        calls: dict[int, dict[str, Any]] = {}
        for part in parts:
            for name, value in orjson.loads(part.get(TEXT) or b"{}").items():
                if isinstance(value, str):
                    texts.setdefault(name, []).append(value)
                else:
                    message[name] = value
            for each in part.get(CALLS) or ():
                _join_call(calls, self._numbered(each))
        message.update({name: "".join(each) for name, each in texts.items()})
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        elif message["content"] is None:
            message["content"] = ""
        return {"message": message}


def _without(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name not in names}


def _join_call(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    """Add a tool call, or a further part of its arguments, to those that are known."""
    known = calls.setdefault(part.pop("index"), {})
    function = {"name": "", "arguments": "", **known.get("function", {})}
    for name, value in part.pop("function").items():
        function[name] = function[name] + value if name == "arguments" else value
    known.update(part, function=function)


def _joined_logprobs(parts: Iterable[Feed]) -> dict[str, Any] | None:
    """The log probabilities of all parts, whose lists are joined."""
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in (part.get(LOGPROBS) or {}).items():
            if not isinstance(value, list):
                found[name] = value
            elif isinstance(found.get(name), list):
                found[name] += value
            else:
                found[name] = [*value]
    return found or None


def of_embeddings(body: Mapping[str, Any]) -> Feed:
    """What a request for embeddings asks of the form of its answer, for ``embedded``.

    Raises:
        InvalidInput: a member is invalid.
    """
    form = body.get("encoding_format")
    if form not in (None, "float", "base64"):
        raise _invalid("Input should be 'float' or 'base64'", "literal_error", "encoding_format")
    given = body.get("input")
    if given == []:
        raise _invalid("there is no text", "too_short", "input")
    several = isinstance(given, list) and not isinstance(given[0], int)
    return {BASE64: form == "base64", COUNT: len(given) if several and given else 1}


def has_tokens(body: Mapping[str, Any]) -> bool:
    """Whether a request for embeddings has numbers of tokens instead of texts."""
    given = body.get("input")
    return isinstance(given, list) and any(isinstance(each, int | list) for each in given)


def embedded(vectors: np.ndarray, request: Feed) -> bytes:
    """Embeddings as JSON, a list of objects.

    Args:
        vectors: C-contiguous float32, a row for each text.
        request: has what ``of_embeddings`` returned.

    Raises:
        TypeError: they are no such array.
    """
    if vectors.ndim != 2 or len(vectors) != request[COUNT]:
        shape = [*vectors.shape]
        raise TypeError(f"it returned embeddings of the shape {shape} for {request[COUNT]} texts")
    if not np.isfinite(vectors).all():
        raise TypeError("it returned an embedding that is not finite")
    rows: Any = vectors
    if request[BASE64]:
        rows = [b64encode(each.tobytes()).decode() for each in vectors.astype("<f4")]
    data = [
        {"object": "embedding", "index": index, "embedding": each}
        for index, each in enumerate(rows)
    ]
    return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)


def embeddings(model: str, part: Feed) -> bytes:
    """The body of an answer with embeddings.

    Args:
        model: the name of the model.
        part: has the result of ``embedded``. Clients need the numbers of tokens: 0 if they are not
            known.
    """
    tokens = part.get(USAGE) or {"prompt_tokens": 0, "total_tokens": 0}
    usage = {name: tokens.get(name, 0) for name in ("prompt_tokens", "total_tokens")}
    end = orjson.dumps({"model": model, "usage": usage})
    return b'{"object":"list","data":%b,%b' % (part[TEXT], end[1:])


def of_rerank(body: Mapping[str, Any]) -> Feed:
    """What a request for a ranking asks of the form of its answer.

    Raises:
        InvalidInput: a member is invalid.
    """
    top = body.get("top_n")
    if top is not None and (type(top) is not int or top < 1):
        raise _invalid("Input should be a positive integer", "int_type", "top_n")
    if not isinstance(body.get("return_documents"), bool | None):
        raise _invalid("Input should be a valid boolean", "bool_type", "return_documents")
    documents = body.get("documents")
    return {COUNT: len(documents) if isinstance(documents, list) else 0}


def text_of(document: Any) -> Any:
    """The text of a document, which may be in an object."""
    return document.get("text") if isinstance(document, dict) else document


def ranking(key: str, model: str, body: Mapping[str, Any], part: Feed) -> bytes:
    """The body of an answer with a ranking: the best documents first.

    Args:
        key: distinguishes it from other answers.
        model: the name of the model.
        body: the request.
        part: has the scores. Clients need the numbers of tokens: 0 if they are not known.
    """
    scores, documents = part[SCORES], body["documents"]
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    order = order[: body.get("top_n") or len(order)]
    # In slices: a list of many dicts takes the garbage collector long, and its encoding holds the
    # GIL.
    slices: list[bytes] = []
    for start in range(0, len(order), _AT_ONCE):
        results: list[dict[str, Any]] = []
        for index in order[start : start + _AT_ONCE]:
            found = {"index": index, "relevance_score": scores[index]}
            if body.get("return_documents") is not False:
                given = documents[index]
                found["document"] = given if isinstance(given, dict) else {"text": given}
            results.append(found)
        slices.append(orjson.dumps(results)[1:-1])
    tokens = (part.get(USAGE) or {}).get("total_tokens", 0)
    usage = {"total_tokens": tokens}
    begin = orjson.dumps({"id": f"rerank-{key}", "model": model, "usage": usage})
    return b'%b,"results":[%b]}' % (begin[:-1], b",".join(slices))


def models(names: Iterable[str], created: int) -> bytes:
    """The body of the list of models."""
    return orjson.dumps({"object": "list", "data": [_model(each, created) for each in names]})


def one_model(name: str, created: int) -> bytes:
    """The body of one model."""
    return orjson.dumps(_model(name, created))


def _model(name: str, created: int) -> dict[str, Any]:
    # vLLM's benchmark reads the name of the tokenizer from ``root``.
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "penstock",
        "root": name,
        "parent": None,
    }
