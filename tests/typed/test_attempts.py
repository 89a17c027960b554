"""Unions that contain themselves: the attempts to validate a body are bounded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import ormsgpack
import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    Discriminator,
    Field,
    RootModel,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from typing_extensions import TypeAliasType, TypedDict

from penstock.errors import InvalidInput
from penstock.protocols import media
from penstock.typed.attempts import Attempts
from penstock.typed.signature import Schema


class And(BaseModel):
    op: Literal["and"] = "and"
    left: And | Or | float
    right: And | Or | float


class Or(BaseModel):
    op: Literal["or"] = "or"
    left: And | Or | float
    right: And | Or | float


class Leaf(BaseModel):
    op: Literal["leaf"]
    x: int


class Few(BaseModel):
    children: list[Few | Many | Leaf]


class Many(BaseModel):
    children: list[Few | Many | Leaf]


class Node(BaseModel):
    value: int = 0
    left: Node | None = None
    children: list[Node] = []


class TaggedAnd(BaseModel):
    op: Literal["and"]
    left: Tagged


class TaggedOr(BaseModel):
    op: Literal["or"]
    left: list[Tagged]


Tagged = Annotated[TaggedAnd | TaggedOr, Field(discriminator="op")]


class ByFunction(BaseModel):
    x: Annotated[
        Annotated[ByFunction, Tag("a")] | Annotated[Node, Tag("b")], Discriminator(lambda _: "a")
    ]


class Call(BaseModel):
    arguments: list[Expression]


class Binary(BaseModel):
    left: Expression
    right: Expression


class Expression(BaseModel):
    call: Call | None = None
    binary: Binary | None = None


class Not(BaseModel):
    negated: Named = Field(alias="not")


class All(BaseModel):
    all: list[Named]


class Any_(BaseModel):
    any: list[Named]


Named = Not | All | Any_
Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | float | bool | None")


class Root(RootModel["list[Root] | dict[str, Root] | int"]):
    pass


class Wide(TypedDict):
    x: Wide | Wider


class Wider(TypedDict):
    x: Wide | Wider


@dataclass
class One:
    x: One | Other | None = None


@dataclass
class Other:
    x: One | Other | None = None


class Pair(NamedTuple):
    x: Pair | Twins | None


class Twins(NamedTuple):
    x: Pair | Twins | None


class InOrder(BaseModel):
    x: Annotated[InOrder | Or | And, Field(union_mode="left_to_right")]


class Alias(BaseModel):
    x: Alias | Aliases | None = Field(None, alias="z")


class Aliases(BaseModel):
    y: Alias | Aliases | None = Field(None, validation_alias=AliasChoices("w", "z"))


class Arrays(BaseModel):
    x: tuple[Arrays, ...] | list[Arrays]


for each in (And, Few, Many, Node, TaggedAnd, TaggedOr, ByFunction, Call, Not, All, Any_, Aliases):
    each.model_rebuild()

MULTIPLYING: list[Any] = [
    And, And | Or, list[Or], dict[str, And | None], Few | Many, Wide, One, Pair, InOrder, Alias,
    Arrays,
]  # fmt: skip
LINEAR: list[Any] = [
    Node, Node | Leaf, list[Node | Leaf], Tagged, ByFunction, Expression, Named, Json, Root,
    dict[str, int | float | None], list[Leaf | None], float,
]  # fmt: skip


@pytest.mark.parametrize("kind", MULTIPLYING, ids=str)
def test_a_union_that_contains_itself_multiplies_attempts(kind: Any) -> None:
    found = Attempts.of(TypeAdapter(kind).core_schema)
    assert found.multiply
    assert found.at[0] < found.at[20] < found.at[40]


@pytest.mark.parametrize("kind", LINEAR, ids=str)
def test_one_member_discriminators_and_different_shapes_or_names_do_not(kind: Any) -> None:
    assert not Attempts.of(TypeAdapter(kind).core_schema).multiply


class Counted(BaseModel):
    count: ClassVar[int] = 0

    @model_validator(mode="before")
    @classmethod
    def counted(cls, value: Any) -> Any:
        Counted.count += 1
        return value


class Left(Counted):
    op: Literal["left"]
    below: list[Left | Right | Leaf] = []
    one: Left | Right | None = None


class Right(Counted):
    op: Literal["right"]
    below: list[Left | Right | Leaf] = []
    one: Left | Right | None = None


Left.model_rebuild()


def tree(depth: int, width: int) -> Any:
    if not depth:
        return {"op": "neither"}
    return {
        "op": "right",
        "below": [tree(depth - 1, width)] * width,
        "one": tree(depth - 1, 1) if depth > 1 else None,
    }


@pytest.mark.parametrize(("depth", "width"), [(1, 1), (2, 3), (3, 2), (4, 2), (6, 1)])
def test_the_attempts_of_a_level_are_never_more_than_computed(depth: int, width: int) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(Left | Right)
    attempts = Attempts.of(adapter.core_schema)
    body = tree(depth, width)
    Counted.count = 0
    with pytest.raises(ValidationError):
        adapter.validate_json(json.dumps(body))

    def computed(value: Any, level: int) -> int:
        if isinstance(value, dict):
            below = sum(computed(each, level + 1) for each in value.values())
            return attempts.at[level] + below
        return sum(computed(each, level + 1) for each in value) if type(value) is list else 0

    assert 0 < Counted.count <= computed(body, 0)


def chain(depth: int, leaf: Any = 1.0) -> Any:
    return {"op": "or", "left": chain(depth - 1, leaf), "right": 2} if depth else leaf


def form(part: bytes) -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="tree"\r\nContent-Type: application/json'
    return head + b"\r\n\r\n" + part + b"\r\n--b--\r\n"


class Body(BaseModel):
    tree: And | Or


WAYS = {
    "json": (lambda value: json.dumps(value).encode(), media.JSON),
    "brackets": (lambda value: json.dumps({"[{": "]\\\"}", **value}).encode(), media.JSON),
    "not a number": (lambda value: json.dumps(value).replace(" 2", " NaN").encode(), media.JSON),
    "msgpack": (ormsgpack.packb, media.MSGPACK),
    "form": (
        lambda value: form(json.dumps(value["tree"]).encode()),
        f"{media.FORM}; boundary=b",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_deep_bodies_are_refused_and_others_are_read(way: str) -> None:
    encode, kind = WAYS[way]
    schema = Schema(Body, "f")
    assert isinstance(schema.read(encode({"tree": chain(8)}), kind).tree, Or)
    for body in (chain(30), chain(30, "x"), chain(13, {"op": "and"}), chain(11, [1] * 1000)):
        with pytest.raises(InvalidInput, match="no discriminator") as refused:
            schema.read(encode({"tree": body}), kind)
        assert refused.value.details[0]["type"] == "too_many_attempts"


def test_the_attack_has_a_few_hundred_bytes() -> None:
    body = json.dumps(chain(20), separators=(",", ":")).encode()
    assert len(body) < 603
    with pytest.raises(InvalidInput, match="too deeply"):
        Schema(And | Or, "f").read(body, media.JSON)


def test_members_that_are_named_twice_are_counted_twice() -> None:
    one = json.dumps(chain(8, "x"))
    body = "{" + ", ".join([f'"a": {one}'] * 100) + "}"
    with pytest.raises(InvalidInput, match="too deeply"):
        Schema(dict[str, And], "f").read(body.encode(), media.JSON)


@pytest.mark.parametrize("kind", [Node, Tagged], ids=str)
def test_deep_bodies_of_other_recursive_types_are_read(kind: Any) -> None:
    body: Any = {"op": "or", "left": []} if kind is Tagged else {}
    for _ in range(50):
        body = {"op": "and", "left": body} if kind is Tagged else {"left": body}
    assert Schema(kind, "f").read(json.dumps(body).encode(), media.JSON).left


def test_invalid_json_has_its_usual_error() -> None:
    with pytest.raises(Exception, match="no JSON"):
        Schema(And | Or, "f").read(b'{"left": "' + b"[" * 50, media.JSON)
