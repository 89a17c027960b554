"""Parameters outside of the body: where they come from, their conversion, their errors."""

from __future__ import annotations

import datetime
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from penstock import Array, Cookie, Header, Path, Query
from penstock.errors import HookError, InvalidInput, Undecodable
from penstock.typed.parameters import FIELDS, PATH, QUERY
from penstock.typed.signature import Signature


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Filter(BaseModel):
    model_config = ConfigDict(extra="forbid")
    limit: int = Field(10, le=100)
    tags: list[str] = []


class Common(BaseModel):
    x_trace: str = ""
    x_num: int = 0


@dataclass
class Place:
    x: float


def signature(function: Callable[..., Any], path: tuple[str, ...] = (), **more: Any) -> Signature:
    return Signature(function, **{"batched": False, "method": "GET", **more}, placeholders=path)


def ask(
    function: Callable[..., Any],
    query: str = "",
    *,
    path: dict[str, str] | None = None,
    fields: list[tuple[str, str]] | None = None,
    body: bytes = b"",
    **more: Any,
) -> Any:
    found = signature(function, tuple(path or ()), **more)
    feed = {
        PATH: list((path or {}).values()),
        QUERY: query.encode(),
        FIELDS: [[name.encode(), value.encode("latin-1")] for name, value in fields or []],
    }
    return found.call(function, [found.read(feed, body, "application/json")])


def details(**more: Any) -> list[tuple[list[Any], str]]:
    with pytest.raises(InvalidInput) as caught:
        ask(**more)
    return [(each["loc"], each["type"]) for each in caught.value.details]


def of(kind: Any, default: Any = ...) -> Callable[..., Any]:
    def give(x):  # type: ignore[no-untyped-def]
        return x

    give.__annotations__["x"] = kind
    if default is not ...:
        give.__defaults__ = (default,)
    return give


@pytest.mark.parametrize(
    ("kind", "query", "value"),
    [
        (int, "x=5", 5),
        (int, "x=%2B5", 5),
        (float, "x=1e3", 1000.0),
        (bool, "x=true", True),
        (bool, "x=0", False),
        (bool, "x=on", True),
        (str, "x=5", "5"),
        (str, "x=a+b%20c%2B", "a b c+"),
        (str, "x=", ""),
        (str, "x", ""),
        (str, "x=a=b", "a=b"),
        (str, "x=%C3%A9", "é"),
        (str, "&x=1&", "1"),
        (str | None, "x=null", "null"),
        (int | None, "x=7", 7),
        (Any, "x=7", "7"),
        (datetime.date, "x=2024-02-29", datetime.date(2024, 2, 29)),
        (datetime.datetime, "x=2024-02-29T01:02:03", datetime.datetime(2024, 2, 29, 1, 2, 3)),
        (datetime.timedelta, "x=PT5S", datetime.timedelta(seconds=5)),
        (uuid.UUID, f"x={uuid.UUID(int=7)}", uuid.UUID(int=7)),
        (Color, "x=blue", Color.BLUE),
        (Level, "x=2", Level.HIGH),
        (Literal[1, 2], "x=2", 2),
        (Literal["1", "2"], "x=2", "2"),
        (StrictInt, "x=2", 2),
        (list[int], "x=1&x=2", [1, 2]),
        (list[int], "x=1", [1]),
        (list[Level], "x=1&x=2", [Level.LOW, Level.HIGH]),
        (set[str], "x=a&x=a", {"a"}),
        (tuple[int, str], "x=1&x=2", (1, "2")),
        (list[str] | None, "x=1", ["1"]),
    ],
)
def test_a_text_of_the_query_is_converted_to_the_parameter_s_type(
    kind: Any, query: str, value: Any
) -> None:
    found = ask(of(kind), query)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("kind", "query", "sort"),
    [
        (int, "x=1.5", "int_parsing"),
        (int, "x=", "int_parsing"),
        (int, "x=" + "9" * 5000, "int_parsing_size"),
        (int | None, "x=null", "int_parsing"),
        (float, "x=a", "float_parsing"),
        (bool, "x=2", "bool_parsing"),
        (Color, "x=green", "enum"),
        (Literal[1], "x=3", "literal_error"),
        (uuid.UUID, "x=1", "uuid_parsing"),
        (int, "x=1&x=2", "sent_twice"),
        (str, "x=1&x=1", "sent_twice"),
        (int, "", "missing"),
        (int, "X=1", "missing"),
        (list[int], "", "missing"),
    ],
)
def test_an_invalid_parameter_is_named_with_its_place(kind: Any, query: str, sort: str) -> None:
    assert details(function=of(kind), query=query)[0] == (["query", "x"], sort)


def test_an_item_of_a_list_is_named_with_its_index() -> None:
    assert details(function=of(list[int]), query="x=1&x=a")[0] == (["query", "x", 1], "int_parsing")


def test_an_unknown_parameter_is_refused_as_an_unknown_member_is() -> None:
    assert details(function=of(int), query="x=1&y=2") == [(["query", "y"], "extra_forbidden")]


@pytest.mark.parametrize("query", ["x=%zz", "x=%f", "x=100%", "x=%ff", "%ff=1"])
def test_a_malformed_query_is_undecodable(query: str) -> None:
    with pytest.raises(Undecodable):
        ask(of(str), query)


def test_defaults_aliases_and_constraints() -> None:
    def function(
        d: Annotated[list[str], Query(default_factory=list)],
        a: int = 3,
        b: Annotated[int, Query(ge=1, alias="B-b")] = 4,
        c: int = Query(5, le=9),  # type: ignore[assignment]
        e: Annotated[str, Query(), Field(min_length=2)] = "ee",
        copy: int = 0,  # a name that pydantic reserves
    ) -> list[Any]:
        return [a, b, c, d, e, copy]

    assert ask(function) == [3, 4, 5, [], "ee", 0]
    assert ask(function, "B-b=7&c=8&d=x&copy=2") == [3, 7, 8, ["x"], "ee", 2]
    found = details(function=function, query="B-b=0&c=10&e=e&b=1")
    assert [where for where, _ in found] == [["query", each] for each in ("B-b", "c", "e", "b")]


def test_each_place_is_read_and_all_faults_are_named_at_once() -> None:
    def function(
        id: int,
        name: str,
        limit: Annotated[int, Query()] = 1,
        user_agent: Annotated[str, Header()] = "?",
        token: Annotated[str, Header(alias="X-Token")] = "",
        words: Annotated[list[str], Header()] = [],  # noqa: B006
        session: Annotated[int, Cookie()] = 0,
    ) -> list[Any]:
        return [id, name, limit, user_agent, token, words, session]

    asked: dict[str, Any] = {"function": function, "path": {"id": "5"}, "method": "PUT"}
    fields = [
        ("user-agent", "mine"),
        ("x-token", "é"),
        ("words", 'a, "b, c"'),
        ("words", "d"),
        ("cookie", "a=1;session=7"),
        ("cookie", 'other="x"'),
        ("unknown", "x"),
    ]
    found = ask(query="limit=2", fields=fields, body=b'{"name": "n"}', **asked)
    assert found == [5, "n", 2, "mine", "é", ["a", '"b, c"', "d"], 7]
    asked["path"] = {"id": "x"}
    fields = [("x-token", "a"), ("x-token", "b"), ("cookie", "session=1; session=2")]
    assert details(query="limit=", fields=fields, body=b"{}", **asked) == [
        (["path", "id"], "int_parsing"),
        (["query", "limit"], "int_parsing"),
        (["header", "X-Token"], "sent_twice"),
        (["cookie", "session"], "sent_twice"),
        (["body", "name"], "missing"),
    ]


def test_the_members_of_a_model_may_be_the_parameters() -> None:
    def of_query(f: Annotated[Filter, Query()], h: Annotated[Common, Header()]) -> list[Any]:
        return [f.limit, f.tags, h.x_trace, h.x_num]

    fields = [("x-trace", "t"), ("x-num", "3")]
    assert ask(of_query, "limit=5&tags=a&tags=b", fields=fields) == [5, ["a", "b"], "t", 3]
    assert ask(of_query) == [10, [], "", 0]
    assert details(function=of_query, query="limit=101&more=1", fields=[("x-num", "x")]) == [
        (["query", "limit"], "less_than_equal"),
        (["query", "more"], "extra_forbidden"),
        (["header", "x-num"], "int_parsing"),
    ]
    assert ask(of(Filter), "limit=5").limit == 5
    assert ask(of(Place), "x=5") == Place(5.0)
    assert ask(of(Filter | None, None)) is None


def test_a_batched_function_gets_lists() -> None:
    def function(
        id: list[int], limit: Annotated[list[int], Query(ge=1)], tag: list[list[str]], y: list[int]
    ) -> list[list[Any]]:
        return [[*each] for each in zip(id, limit, tag, y, strict=True)]

    function.__defaults__ = ([["t"]], 7)
    found = signature(function, ("id",), batched=True)
    feeds = [
        {PATH: [each], QUERY: query}
        for each, query in (("1", b"limit=2"), ("3", b"limit=4&y=8&tag=u"))
    ]
    values = [found.read(feed, b"", "") for feed in feeds]
    assert found.call(function, values) == [[1, 2, ["t"], 7], [3, 4, ["u"], 8]]
    with pytest.raises(InvalidInput, match="limit: Input should be greater"):
        found.read({PATH: ["1"], QUERY: b"limit=0"}, b"", "")


def test_a_function_without_a_body_takes_none() -> None:
    def function(id: int) -> int:
        return id

    for method in ("GET", "DELETE", "POST"):
        asked: dict[str, Any] = {"function": function, "path": {"id": "5"}, "method": method}
        assert ask(**asked) == ask(body=b"{}", **asked) == 5
        assert details(body=b'{"id": 1}', **asked) == [(["body", "id"], "extra_forbidden")]
    assert ask(lambda: 1) == 1
    assert details(function=lambda: 1, query="", body=b'{"x": 1}')[0][0] == ["body", "x"]


def test_a_dict_of_another_protocol_has_all_parameters() -> None:
    def function(id: int, f: Filter, x_token: Annotated[str, Header()] = "") -> list[Any]:
        return [id, f.limit, x_token]

    found = signature(function, ("id",), method="POST")
    for token in ("x_token", "x-token"):
        value = found.accept({"id": "5", "limit": 7, token: "t"})
        assert found.call(function, [value]) == [5, 7, "t"]
    with pytest.raises(InvalidInput) as caught:
        found.accept({"limit": "x"})
    assert [each["loc"] for each in caught.value.details] == [["path", "id"], ["body", "limit"]]


def test_plain_values_become_a_request_that_reads_the_same() -> None:
    def function(
        id: str,
        f: Filter,
        on: Annotated[bool, Query()],
        n: Annotated[list[float], Query()],
        x_s: Annotated[list[str], Header()],
        c: Annotated[str, Cookie()],
        none: Annotated[int | None, Query()] = None,
    ) -> list[Any]:
        return [id, f.limit, on, n, x_s, c, none]

    found = signature(function, ("id",), method="POST")
    assert found.parameters is not None
    given = {
        "id": "a b",
        "limit": 3,
        "on": True,
        "n": [1.5, 2],
        "x_s": ["é", "f"],
        "c": "=",
        "none": None,
    }
    feed, rest = found.parameters.feed(given)
    assert rest == {"limit": 3}
    value = found.read(feed, b'{"limit": 3}', "")
    assert found.call(function, [value]) == ["a b", 3, True, [1.5, 2.0], ["é", "f"], "=", None]


def of_dict(x: dict[str, int]) -> None: ...
def of_models(x: list[Filter]) -> None: ...
def of_two(f: Filter, y: int) -> None: ...
def of_bytes(x: bytes) -> None: ...
def of_array(x: Annotated[np.ndarray, Array("float32", (None,))]) -> None: ...
def of_nested(x: list[list[int]]) -> None: ...
def of_inner(x: list[Annotated[int, Query()]]) -> None: ...
def of_class(x: Annotated[int, Query]) -> None: ...
def of_path(x: Annotated[int, Path()]) -> None: ...
def of_cookies(x: Annotated[list[str], Cookie()]) -> None: ...
def of_default(id: int = 1) -> None: ...
def of_alias(id: Annotated[int, Path(alias="x")]) -> None: ...
def of_other(id: Annotated[int, Query()]) -> None: ...
def of_list(id: list[int]) -> None: ...
def of_none() -> None: ...


@pytest.mark.parametrize(
    ("function", "path", "words"),
    [
        (of_dict, (), "of_dict: x cannot be sent in the query, as its type is an object"),
        (of_models, (), "x cannot be sent in the query, as its type is an object"),
        (of_two, (), "f cannot be sent in the query, as its type is an object"),
        (of_nested, (), "x cannot be sent in the query, as its type is an object"),
        (of_bytes, (), "may be a file, which is sent in the body, not the query"),
        (of_array, (), "may be a file"),
        (of_inner, (), "put it around the type"),
        (of_class, (), r"write Query\(\) with brackets"),
        (of_path, (), "in no placeholder of the path: write {x} there"),
        (of_cookies, (), "x cannot be sent in the cookie, as its type is a list"),
        (of_default, ("id",), "no default and no alias"),
        (of_alias, ("id",), "no default and no alias"),
        (of_other, ("id",), "it cannot come from elsewhere"),
        (of_list, ("id",), "id cannot be sent in the path, as its type is a list"),
        (of_none, ("id",), "has no parameter id, which is in the path"),
    ],
)
def test_a_parameter_that_cannot_be_sent_there_is_an_error(
    function: Any, path: tuple[str, ...], words: str
) -> None:
    with pytest.raises(HookError, match=words):
        signature(function, path)


def test_a_batched_function_without_parameters_is_an_error() -> None:
    with pytest.raises(HookError, match="add one for the query"):
        signature(of_none, batched=True)
