"""msgpack has whatever JSON has: answers, and requests of strict types."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import ormsgpack
import pytest
from pydantic import AnyUrl, BaseModel, ConfigDict, HttpUrl, SecretStr
from pydantic_core import core_schema

from penstock.errors import InvalidInput
from penstock.protocols import media
from penstock.typed.arrays import Array
from penstock.typed.signature import Schema

NOW = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)


class Colour(Enum):
    RED = "red"


class Own:
    """A class that is written as JSON by its own rule."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(
            cls,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda _: "own", return_schema=core_schema.str_schema(), when_used="json"
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string"}


class All(BaseModel):
    amount: Decimal = Decimal("1.10")
    took: datetime.timedelta = datetime.timedelta(seconds=90)
    place: Path = Path("/tmp/x")
    key: uuid.UUID = uuid.UUID(int=7)
    url: HttpUrl = HttpUrl("http://example.org/")
    any_url: AnyUrl = AnyUrl("s3://bucket/key")
    secret: SecretStr = SecretStr("hidden")
    number: complex = 1 + 2j
    address: IPv4Address = IPv4Address("127.0.0.1")
    when: datetime.datetime = NOW
    day: datetime.date = NOW.date()
    colour: Colour = Colour.RED
    several: set[int] = {1}
    parts: dict[str, list[Decimal]] = {"a": [Decimal("2.5")]}


def test_a_msgpack_answer_has_what_a_json_answer_has() -> None:
    schema = Schema(All, "it", of_answers=True)
    in_json = orjson.loads(schema.write(All(), media.JSON))
    in_msgpack = ormsgpack.unpackb(schema.write(All(), media.MSGPACK))
    for found in (in_json, in_msgpack):  # one has Z, the other +00:00
        assert datetime.datetime.fromisoformat(found.pop("when")) == NOW
    assert in_msgpack == in_json
    assert in_json["secret"] == "**********"
    assert in_json["number"] == "1+2j"


@pytest.mark.parametrize("value", [Decimal("0.1"), 3 + 4j, datetime.timedelta(days=2)])
def test_values_without_a_type_are_sent_alike(value: Any) -> None:
    schema = Schema(Any, "it", of_answers=True)
    answer = {"x": [value], "y": np.ones(2)}
    in_json = orjson.loads(schema.write(schema.check(answer), media.JSON))
    assert ormsgpack.unpackb(schema.write(schema.check(answer), media.MSGPACK)) == in_json


def test_a_type_with_a_rule_for_json_only_is_sent_alike() -> None:
    class Holder(BaseModel):
        own: Own
        data: bytes = b"abc"

    schema = Schema(Holder, "it", of_answers=True)
    in_json = orjson.loads(schema.write(Holder(own=Own()), media.JSON))
    assert in_json == {"own": "own", "data": "YWJj"}
    assert ormsgpack.unpackb(schema.write(Holder(own=Own()), media.MSGPACK)) == in_json
    with pytest.raises(TypeError, match="Own"):
        Schema(Any, "it", of_answers=True).write({"x": Own()}, media.MSGPACK)


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    when: datetime.datetime
    day: datetime.date = NOW.date()
    key: uuid.UUID = uuid.UUID(int=7)
    pair: tuple[int, int] = (1, 2)
    x: float = 1.0
    data: bytes = b""


@pytest.mark.parametrize(
    "model", [Strict, type("Lax", (Strict,), {"model_config": {"strict": False}})]
)
def test_models_accept_the_dates_of_msgpack(model: Any) -> None:
    schema = Schema(model, "it")
    given = {
        "when": NOW,
        "day": NOW.date(),
        "key": uuid.UUID(int=9),
        "pair": (3, 4),
        "x": float("inf"),
        "data": b"\xff\x00",
    }
    expected = model.model_construct(**given)
    for option in (None, ormsgpack.OPT_DATETIME_AS_TIMESTAMP_EXT):
        found = schema.read(ormsgpack.packb(given, option=option), media.MSGPACK)
        assert dict(found) == dict(expected)
    for wrong in ({"when": "x"}, {"when": NOW, "x": "a"}, {"when": NOW, "pair": [1, 2.5]}):
        with pytest.raises(InvalidInput):
            schema.read(ormsgpack.packb(wrong), media.MSGPACK)


def test_strict_types_stay_strict_in_msgpack() -> None:
    schema = Schema(Strict, "it")
    for wrong in ({"when": 5}, {"when": NOW, "x": "1.5"}, {"when": NOW, "pair": ["1", 2]}):
        with pytest.raises(InvalidInput):
            schema.read(ormsgpack.packb(wrong), media.MSGPACK)


def test_arrays_stay_arrays_in_msgpack() -> None:
    schema = Schema(Annotated[np.ndarray, Array("float32")], "it", of_answers=True)
    array = np.array([1.5, np.inf, np.nan], np.float32)
    found = ormsgpack.unpackb(schema.write(schema.check(array), media.MSGPACK))
    np.testing.assert_array_equal(np.array(found, np.float32), array)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[int, float], {1: 1.5, -2: 2.5}),
        (dict[bytes, int], {b"\xff": 1}),
        (Any, {1: {2.5: None}}),
    ],
)
def test_an_answer_with_keys_that_are_no_texts_is_taken_as_a_request(kind: Any, value: Any) -> None:
    body = Schema(dict[str, kind], "it", of_answers=True).write({"x": value}, media.MSGPACK)
    assert Schema(dict[str, kind], "it").read(body, media.MSGPACK) == {"x": value}


def test_members_have_texts_as_names() -> None:
    body = ormsgpack.packb({1: 2}, option=ormsgpack.OPT_NON_STR_KEYS)
    for kind in (Strict, dict[str, int]):
        with pytest.raises(InvalidInput):
            Schema(kind, "it").read(body, media.MSGPACK)
