"""Annotations to schemas: decoding and validation of bodies."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NewType, Optional, TypeVar, Union

import numpy as np
import ormsgpack
import pytest
from fastapi import BackgroundTasks, Body, Depends, Query, Request, Security, UploadFile
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.security import APIKeyHeader
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    computed_field,
    create_model,
    field_validator,
)
from pydantic.alias_generators import to_camel
from typing_extensions import TypeAliasType, TypedDict

from penstock.errors import HookError, InvalidInput, TooLarge, Undecodable, UnknownMediaType
from penstock.protocols import media
from penstock.typed.arrays import Array
from penstock.typed.signature import Schema, Signature


class Flower(BaseModel):
    length: float
    width: float = 1.0


@dataclass
class Point:
    x: int


class Named(TypedDict):
    name: str


def of_model(flower: Flower) -> float:
    return flower.length


def of_dataclass(point: Point) -> Point:
    return point


def of_dict(named: Named) -> str:
    return named["name"]


def plain(x: float, y: float = 2.0) -> float:
    return x + y


def of_file(picture: bytes, title: str = "") -> int:
    return len(picture)


def batch_of_models(flowers: list[Flower]) -> list[float]:
    return [each.length for each in flowers]


def batch_of_members(x: list[int], y: list[int]) -> list[int]:
    return [a + b for a, b in zip(x, y, strict=True)]


@pytest.mark.parametrize(
    ("function", "body", "expected"),
    [
        (of_model, b'{"length": 4}', 4.0),
        (of_dataclass, b'{"x": 3}', Point(3)),
        (of_dict, b'{"name": "iris"}', "iris"),
        (plain, b'{"x": 1}', 3.0),
        (plain, b'{"x": 1, "y": 1}', 2.0),
        (of_file, b'{"picture": "AAAA"}', 3),
    ],
)
def test_a_body_is_decoded_to_arguments(function: Any, body: bytes, expected: object) -> None:
    signature = Signature(function, batched=False)
    value = signature.request.read(body, media.JSON, signature.raw)
    assert signature.call(function, [value]) == expected


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    kind: T


@dataclass
class Crate(Generic[T]):
    kind: T


Pet = TypeAliasType("Pet", Cat | Dog)
Maybe = TypeAliasType("Maybe", Union[T, None], type_params=(T,))  # noqa: UP007
Known = TypeAliasType("Known", Annotated[Pet, Field(description="a pet")])
New = NewType("New", Cat)


@pytest.mark.parametrize(
    "kind",
    [
        Cat | Dog,
        Union[Cat, Dog],  # noqa: UP007
        Optional[Cat],  # noqa: UP045
        Cat | None,
        Annotated[Cat, Field(description="a cat")],
        Annotated[Cat | Dog, Field(discriminator="kind")],
        Annotated[Union[Cat, Dog, None], Field(discriminator="kind")],  # noqa: UP007
        Pet,
        Maybe[Cat],  # type: ignore[misc]
        Known,
        Annotated[Known | None, Field(description="maybe")],
        New,
        Box[str],
        Crate[str],
        Named | Box[str],
    ],
    ids=str,
)
@pytest.mark.parametrize("batched", [False, True])
def test_a_model_is_the_body_in_every_spelling(kind: Any, batched: bool) -> None:
    def take(pet: Any) -> Any:
        return [each.kind for each in pet] if batched else pet.kind

    take.__annotations__["pet"] = list[kind] if batched else kind
    signature = Signature(take, batched=batched)
    assert signature.whole
    for body, media_type in (
        (b'{"kind": "cat", "more": 1}', media.JSON),
        (ormsgpack.packb({"kind": "cat", "more": 1}), media.MSGPACK),
    ):
        value = signature.request.read(body, media_type)
        assert signature.call(take, [value]) == (["cat"] if batched else "cat")


@pytest.mark.parametrize(
    "kind",
    [Cat | int, Optional[int], list[Cat], dict[str, Cat], Union[Cat, list[Cat]]],  # noqa: UP007, UP045
)
def test_a_parameter_that_is_no_model_is_a_member(kind: Any) -> None:
    def take(pet: Any) -> None:
        raise AssertionError

    take.__annotations__["pet"] = kind
    assert not Signature(take, batched=False).whole


def maybe(flower: Flower | None) -> Any:
    return flower


def usual(flower: Flower = Flower(length=3)) -> Any:  # noqa: B008 - it is copied
    return flower


def made(flower: Flower = Field(default_factory=lambda: Flower(length=4))) -> Any:  # noqa: B008
    return flower


def test_an_optional_body_may_be_null_and_one_with_a_default_may_be_empty() -> None:
    signature = Signature(maybe, batched=False)
    assert signature.request.read(b"null", media.JSON) is None
    assert not signature.request.optional
    with pytest.raises(Undecodable, match="the body is empty"):
        signature.request.read(b"", media.JSON)
    for function, length in ((usual, 3), (made, 4)):
        signature = Signature(function, batched=False)
        assert signature.request.optional
        for kind in ("", media.JSON, media.MSGPACK):
            value = signature.request.read(b"", kind)
            assert value == Flower(length=length)
            value.length += 1  # of this request only


class Aliased(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)
    petal_length: float
    is_known: bool = Field(default=True, serialization_alias="known")
    name: str = Field(default="", validation_alias=AliasChoices("label", AliasPath("names", 0)))

    @computed_field(alias="petalArea")  # type: ignore[prop-decorator]
    @property
    def area(self) -> float:
        return self.petal_length**2


@dataclass
class AliasedClass:
    petal_length: Annotated[float, Field(alias="petalLength")]


class AliasedDict(TypedDict):
    petal_length: Annotated[float, Field(alias="petalLength")]


def echo(flower: Aliased) -> Aliased:
    return flower


def of_aliased_class(flower: AliasedClass) -> AliasedClass:
    return flower


def of_aliased_dict(flower: AliasedDict) -> AliasedDict:
    return flower


def named_dict(flower: Flower) -> Aliased:
    return {"petal_length": flower.length}  # type: ignore[return-value]


def aliased_dict(flower: Flower) -> Aliased:
    return {"petalLength": flower.length}  # type: ignore[return-value]


def dict_as_sent(flower: Flower) -> Aliased:
    return {"petalLength": flower.length, "known": False}  # type: ignore[return-value]


@dataclass
class SentClass:
    count: Annotated[int, Field(serialization_alias="number")] = 1


def class_as_sent(flower: Flower) -> SentClass:
    return {"number": 2}  # type: ignore[return-value]


class Swapped(BaseModel):
    a: int = Field(serialization_alias="b")
    b: int = Field(serialization_alias="a")


def swapped(flower: Flower) -> Swapped:
    return {"a": 1, "b": 2}  # type: ignore[return-value]


def any_model(flower: Flower) -> Any:
    return Aliased(petalLength=flower.length)


def nested_models(flower: Flower) -> dict[str, list[Aliased]]:
    return {"all": [Aliased(petalLength=flower.length)]}


WHOLE = {"petalLength": 2.0, "known": True, "name": "", "petalArea": 4.0}


@pytest.mark.parametrize(
    ("function", "body", "expected"),
    [
        (echo, {"petalLength": 2}, WHOLE),
        (echo, {"petalLength": 2, "label": "a"}, {**WHOLE, "name": "a"}),
        (echo, {"petalLength": 2, "names": ["b"]}, {**WHOLE, "name": "b"}),
        (of_aliased_class, {"petalLength": 2}, {"petalLength": 2.0}),
        (of_aliased_dict, {"petalLength": 2}, {"petalLength": 2.0}),
        (named_dict, {"length": 2}, WHOLE),
        (aliased_dict, {"length": 2}, WHOLE),
        (dict_as_sent, {"length": 2}, {**WHOLE, "known": False}),
        (class_as_sent, {"length": 2}, {"number": 2}),
        (swapped, {"length": 2}, {"b": 1, "a": 2}),
        (any_model, {"length": 2}, WHOLE),
        (nested_models, {"length": 2}, {"all": [WHOLE]}),
    ],
)
def test_bodies_and_answers_have_the_aliases_that_their_schemas_say(
    function: Any, body: Any, expected: Any
) -> None:
    signature = Signature(function, batched=False)
    response = signature.response
    for kind in (media.JSON, media.MSGPACK):
        value = signature.request.read(media.encode(body, kind), kind)
        answer = response.check(signature.call(function, [value]))
        assert media.decode(response.write(answer, kind), kind) == expected
    assert response.plain(answer) == expected
    described = response.describe(refs="{model}").get("properties", expected)
    assert list(described) == list(expected)


def of_aliases(
    picture: Annotated[bytes, Field(alias="thePicture")],
    tags: list[str] = Field(default=[], validation_alias=AliasChoices("tag", "tags")),  # noqa: B008
) -> int:
    return len(picture) + len(tags)


def test_forms_and_files_use_the_aliases_of_members() -> None:
    signature = Signature(of_aliases, batched=False)
    assert signature.files == ("thePicture",)
    body = (
        b'--b\r\nContent-Disposition: form-data; name="thePicture"; filename="a"\r\n\r\nxyz'
        b'\r\n--b\r\nContent-Disposition: form-data; name="tag"\r\n\r\none\r\n--b--'
    )
    value = signature.request.read(body, "multipart/form-data; boundary=b", signature.raw)
    assert signature.call(of_aliases, [value]) == 4
    value = signature.request.read(b"xyz", "image/png", signature.raw)
    assert signature.call(of_aliases, [value]) == 3


def defaults_in_types(
    x: Annotated[int, Field(default=3)],
    tags: Annotated[list[str], Field(default_factory=list)],
    copy: Annotated[str | None, Field(default=None)],
) -> Any:
    tags.append("seen")
    return [x, tags, copy]


def model_with_default(flower: Annotated[Flower, Field(default=Flower(length=2))]) -> Any:
    return flower.length


def test_a_default_in_an_annotated_is_one() -> None:
    signature = Signature(defaults_in_types, batched=False)
    for _ in range(2):
        value = signature.request.read(b"{}", media.JSON)
        assert signature.call(defaults_in_types, [value]) == [3, ["seen"], None]
    assert "required" not in signature.request.describe(refs="{model}")
    signature = Signature(model_with_default, batched=False)
    assert signature.request.read(b"", media.JSON) == Flower(length=2)


def tagged(
    x: list[int],
    tags: list[list[str]] = [],  # noqa: B006 - it is copied
    by: list[float] = [2.0],  # noqa: B006
    seen: list[dict[str, int]] = {},  # type: ignore[assignment]  # noqa: B006
) -> list[Any]:
    for each in tags:
        each.append("seen")
    for index, counts in enumerate(seen):
        counts["n"] = index
    return list(zip(tags, by, seen, strict=True))


def test_the_defaults_of_a_batch_are_those_of_one_request_and_never_shared() -> None:
    signature = Signature(tagged, batched=True)
    for _ in range(2):
        values = [signature.request.read(b'{"x": 1}', media.JSON) for _ in range(2)]
        found = signature.call(tagged, values)
        assert found == [(["seen"], 2.0, {"n": 0}), (["seen"], 2.0, {"n": 1})]
    properties = signature.request.describe(refs="{model}")["properties"]
    assert properties["by"]["default"] == 2.0


def of_two(x: list[float] = [1.0, 2.0]) -> list[float]:  # noqa: B006
    return x


def test_msgpack_forms_and_files_are_decoded_to_the_same_arguments() -> None:
    signature = Signature(of_file, batched=False)
    form = (
        b'--b\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\nxyz\r\n--b--'
    )
    for body, kind in (
        (ormsgpack.packb({"picture": b"xyz"}), media.MSGPACK),
        (form, "multipart/form-data; boundary=b"),
        (b"xyz", "image/jpeg"),
    ):
        assert signature.request.read(body, kind, signature.raw).picture == b"xyz"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "bodies", "expected"),
    [
        (batch_of_models, [b'{"length": 1}', b'{"length": 2}'], [1.0, 2.0]),
        (batch_of_members, [b'{"x": 1, "y": 2}', b'{"x": 3, "y": 4}'], [3, 7]),
    ],
)
def test_a_batch_is_passed_as_lists(function: Any, bodies: list[bytes], expected: object) -> None:
    signature = Signature(function, batched=True)
    values = [signature.request.read(body, media.JSON) for body in bodies]
    assert signature.call(function, values) == expected


@pytest.mark.parametrize(
    ("body", "places"),
    [
        (b'{"x": "no"}', [["body", "x"]]),
        (b'{"y": []}', [["body", "x"], ["body", "y"]]),
        (b'{"x": 1, "z": 1}', [["body", "z"]]),
        (b"[]", [["body"]]),
        (b"null", [["body"]]),
    ],
)
def test_validation_errors_have_their_locations(body: bytes, places: list[list[str]]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Signature(plain, batched=False).request.read(body, media.JSON)
    assert [each["loc"] for each in caught.value.details] == places


@pytest.mark.parametrize(
    ("body", "kind", "error"),
    [
        (b"{", media.JSON, Undecodable),
        (b"\xc1", media.MSGPACK, Undecodable),
        (b"--b--", "multipart/form-data", Undecodable),
        (b"", "text/csv", UnknownMediaType),
        (b" " * (media.MOST_STRUCTURED + 1), media.JSON, TooLarge),
    ],
)
def test_invalid_bodies_are_refused(body: bytes, kind: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Signature(plain, batched=False).request.read(body, kind)


def several(pictures: list[bytes], title: str = "") -> int:
    return len(pictures)


def _form(*names: str) -> bytes:
    head = '--b\r\nContent-Disposition: form-data; name="%s"; filename="a"\r\n\r\nxyz\r\n'
    return b"".join((head % name).encode() for name in names) + b"--b--"


@pytest.mark.parametrize(("count", "names"), [(1, ["pictures"]), (3, ["pictures"] * 3)])
def test_a_field_of_a_form_can_be_repeated_for_a_list(count: int, names: list[str]) -> None:
    read = Signature(several, batched=False).request.read
    assert read(_form(*names), "multipart/form-data; boundary=b").pictures == [b"xyz"] * count


class StrictNumbers(BaseModel):
    model_config = ConfigDict(strict=True)
    count: int
    share: float
    on: bool
    text: str
    ids: set[int] = set()


def of_strict(body: StrictNumbers) -> Any:
    return body


def of_kinds(
    level: Literal[1, 2],
    ids: set[int],
    names: frozenset[str] = frozenset(),
    points: Sequence[float] = (),
    taken: Iterable[int] = (),
    exact: list[StrictInt] = [],  # noqa: B006
) -> Any:
    return [level, ids, names, points, list(taken), exact]


def _fields(**fields: str) -> bytes:
    head = '--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    return "".join(head % each for each in fields.items()).encode() + b"--b--"


def test_texts_of_a_form_are_numbers_or_lists_where_the_types_allow_nothing_else() -> None:
    kind = "multipart/form-data; boundary=b"
    signature = Signature(of_strict, batched=False)
    value = signature.request.read(_fields(count="3", share="1.5", on="true", text="7"), kind)
    assert value == StrictNumbers(count=3, share=1.5, on=True, text="7")
    for wrong in ({"count": "x"}, {"count": "007"}, {"share": "NaN"}, {"ids": "1"}):
        body = _fields(**{"count": "3", "share": "1", "on": "false", "text": "", **wrong})
        with pytest.raises(InvalidInput):
            signature.request.read(body, kind)
    signature = Signature(of_kinds, batched=False)
    fields = {"level": "2", "ids": "3", "names": "a", "points": "1.5", "taken": "4", "exact": "5"}
    found = signature.call(of_kinds, [signature.request.read(_fields(**fields), kind)])
    assert found == [2, {3}, {"a"}, [1.5], [4], [5]]


def of_iterable(x: Iterable[int]) -> Iterable[int]:
    return (each + 1 for each in x)


def test_an_iterable_is_checked_before_the_function_runs() -> None:
    signature = Signature(of_iterable, batched=False)
    with pytest.raises(InvalidInput):
        signature.request.read(b'{"x": ["text"]}', media.JSON)
    value = signature.request.read(b'{"x": [1, 2]}', media.JSON)
    answer = signature.response.check(signature.call(of_iterable, [value]))
    for kind in (media.JSON, media.MSGPACK):
        assert media.decode(signature.response.write(answer, kind), kind) == [2, 3]


def test_a_repeated_field_for_a_single_value_is_named_in_the_error() -> None:
    signature = Signature(of_file, batched=False)
    with pytest.raises(InvalidInput) as caught:
        signature.request.read(_form("picture", "picture"), "multipart/form-data; boundary=b")
    (detail,) = caught.value.details
    assert detail["loc"] == ["body", "picture"]
    assert str(caught.value) == "picture: the field was sent 2 times, but has one value"


class Positive(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def positive(cls, value: int) -> int:
        if value < 0:
            raise ValueError("must be positive")
        if value == 0:
            raise AssertionError("must not be zero")
        return value


def of_positive(body: Positive) -> int:
    return body.x


@pytest.mark.parametrize(
    ("body", "text"), [(b'{"x": -1}', "must be positive"), (b'{"x": 0}', "must not be zero")]
)
def test_a_validators_message_is_returned_without_additions(body: bytes, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Signature(of_positive, batched=False).request.read(body, media.JSON)
    assert caught.value.details[0]["msg"] == text


@pytest.mark.parametrize(
    ("function", "body", "hint"),
    [
        (of_file, b"\xff\xd8\xff", "-H 'Content-Type: image/jpeg', or in a form: -F picture=@"),
        (of_file, b"\x89PNG\r\n", "-H 'Content-Type: image/png'"),
        (of_file, b"\x00" * (media.MOST_STRUCTURED + 1), "-H 'Content-Type: application/octet"),
        (plain, b"x=1&y=2", "send JSON, such as -d '{\"x\": 1}', or a form: -F x=1"),
    ],
)
def test_a_body_with_curls_default_type_gets_a_hint_how_to_send_it(
    function: Any, body: bytes, hint: str
) -> None:
    signature = Signature(function, batched=False)
    with pytest.raises(Undecodable) as caught:
        signature.request.read(body, "application/x-www-form-urlencoded", signature.raw)
    assert hint in str(caught.value)


def test_an_empty_body_has_its_own_error() -> None:
    with pytest.raises(Undecodable, match="the body is empty: parameters are members of the body"):
        Signature(plain, batched=False).request.read(b"", "")


def test_a_result_is_validated_and_encoded_as_json_and_msgpack() -> None:
    response = Signature(of_model, batched=False).response
    assert response.write(response.check(1), media.JSON) == b"1.0"
    assert ormsgpack.unpackb(response.write(response.check(1), media.MSGPACK)) == 1.0
    with pytest.raises(ValidationError):
        response.check("text")


def no_type(x) -> int:  # type: ignore[no-untyped-def]
    return 1


def nothing() -> int:
    return 1


def variadic(*x: int) -> int:
    return 1


def unknown(x: NotThere) -> int:  # type: ignore[name-defined]  # noqa: F821
    return 1


def no_schema(x: object()) -> int:  # type: ignore[valid-type]
    return 1


class Bag(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    thread: threading.Thread


def of_upload(file: UploadFile) -> int:
    return 1


def of_uploads(files: list[UploadFile | None]) -> int:
    return 1


def of_request(request: Request) -> int:
    return 1


def of_background_tasks(tasks: BackgroundTasks) -> int:
    return 1


def of_security(key: str = Security(APIKeyHeader(name="x-key"))) -> int:
    return 1


def gives_stream(x: int) -> StreamingResponse:
    return StreamingResponse([str(x)])


def gives_file(x: int) -> FileResponse:
    return FileResponse(str(x))


def gives_json(x: int) -> JSONResponse:
    return JSONResponse(x)


def of_thread(thread: threading.Thread) -> int:
    return 1


def of_bag(bag: Bag) -> int:
    return 1


def gives_bag(x: int) -> Bag:
    raise AssertionError


def of_query(x: int = Query(1)) -> int:
    return 1


def of_dependency(x: int = Depends(of_query)) -> int:
    return 1


def of_variable(x: list[T]) -> int:
    return 1


def of_position(x: int, /) -> int:
    return 1


def of_annotated_query(x: Annotated[int, Query()]) -> int:
    return 1


def of_annotated_dependency(x: list[Annotated[int, Depends(of_query)]]) -> int:
    return 1


def of_embedded(flower: Annotated[Flower, Body(embed=True)]) -> int:
    return 1


def of_embedded_default(flower: Flower = Body(embed=True)) -> int:  # noqa: B008
    return 1


Upload = TypeAliasType("Upload", UploadFile)


def of_upload_alias(file: Upload) -> int:
    return 1


@pytest.mark.parametrize(
    ("function", "batched", "words"),
    [
        (of_variable, False, "parameter x has the type variable ~T, .*: write the type"),
        (of_position, False, "the parameter x is positional only: remove the /"),
        (of_annotated_query, False, "Query is fastapi's: write from penstock import Query"),
        (
            of_annotated_dependency,
            False,
            "Depends is fastapi's: here parameters come from the request",
        ),
        (of_embedded, False, r"Body\(embed=True\) is FastAPI's: here a single model is the body"),
        (of_embedded_default, False, r"Body\(embed=True\) is FastAPI's"),
        (of_upload_alias, False, "of_upload_alias: UploadFile is fastapi's: write bytes"),
        (of_upload, False, "of_upload: UploadFile is fastapi's: write bytes"),
        (of_uploads, False, "of_uploads: UploadFile is fastapi's: write bytes"),
        (of_request, False, "of_request: Request is starlette's: write a parameter for each part"),
        (of_background_tasks, False, "BackgroundTasks is fastapi's: .* a thread that"),
        (gives_stream, False, "StreamingResponse is starlette's: yield the pieces"),
        (gives_file, False, "FileResponse is starlette's: write File of penstock"),
        (gives_json, False, "JSONResponse is starlette's: write the type of the value"),
        (of_security, False, "Security is fastapi's: write Caller of penstock"),
        (of_thread, False, "of_thread: a body cannot hold a threading.Thread: write"),
        (of_bag, False, "of_bag: a body cannot hold a threading.Thread: write"),
        (gives_bag, False, "gives_bag's result: a body cannot hold a threading.Thread: write"),
        (of_query, False, "Query is fastapi's: write from penstock import Query"),
        (of_dependency, False, "Depends is fastapi's: here parameters come from the request"),
        (no_type, False, "parameter x has no type"),
        (nothing, False, "has no parameter"),
        (variadic, False, "name its parameters"),
        (unknown, False, "annotation cannot be read"),
        (no_schema, False, "no schema"),
        (of_model, True, "write list"),
        (lambda flowers: [], True, "has no type"),
        (of_two, True, r"the default of x is that of one request, .* not \[1.0, 2.0\]"),
    ],
)
def test_a_function_without_a_schema_is_an_error(function: Any, batched: bool, words: str) -> None:
    with pytest.raises(HookError, match=words):
        Signature(function, batched=batched)


@pytest.mark.parametrize(
    ("shape", "value", "expected"),
    [
        ((None, 3), [[1, 2, 3]], [[1, 2, 3]]),
        (("n",), [], []),
        (None, 5, 5),
        ((2,), "[1, 2]", [1, 2]),
        ((2,), np.array([1, 2], "int64"), [1, 2]),
    ],
)
def test_an_array_accepts_lists_texts_and_arrays(shape: Any, value: Any, expected: Any) -> None:
    found = _array("float32", shape)(value)
    assert found.dtype == np.float32
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "shape", "value", "words"),
    [
        ("float32", (None, 3), [[1, 2]], r"shape \(any, 3\) is wanted, got \(1, 2\)"),
        ("float32", (None, 3), [1], "is wanted"),
        ("float32", None, [[1], [1, 2]], "no array of float32"),
        ("float32", None, ["a"], "no array of float32"),
        ("float32", None, [1e300], "too large"),
        ("float32", None, [0.0, -3.5e38], "too large"),
        ("float16", None, [7e4], "too large"),
        ("int8", None, [1.5], "no such integers"),
        ("int8", None, [300], "no such integers"),
        ("bool", None, [2], "numbers"),
        ("float32", None, b"no npy", "npy"),
    ],
)
def test_an_array_refuses_values_of_another_type_or_shape(
    dtype: str, shape: Any, value: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        _array(dtype, shape)(value)


def _array(dtype: str, shape: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Annotated[np.ndarray, Array(dtype, shape)]).validate_python


def test_the_schema_describes_the_body() -> None:
    def scale(x: Annotated[np.ndarray, Array("float32", (None, 3))], by: float = 2) -> float:
        return by

    schema = Signature(scale, batched=False).request.describe(refs="#/{model}")
    assert schema["required"] == ["x"]
    assert schema["properties"]["by"]["default"] == 2
    row = schema["properties"]["x"]["items"]
    number = row.pop("items")
    assert row == {"type": "array", "minItems": 3, "maxItems": 3}
    words = {"enum": ["NaN", "Infinity", "-Infinity"]}
    assert number["anyOf"] == [{"type": "number"}, {"type": "null"}, words]


def many(x: list[float], y: dict[str, int] | None = None, z: tuple[int, ...] = ()) -> int:
    return len(x)


@pytest.mark.parametrize(
    "body",
    [
        b'{"x": [' + b"[]," * 100_000 + b"[]]}",
        b'{"x": [], "y": {' + b'"a":[],' * 50_000 + b'"b":1}}',
        b"{" + b",".join(b'"%06x":1' % each for each in range(50_000)) + b"}",
        b'{"x": [], "z": [' + b'"",' * 100_000 + b'""]}',
    ],
    ids=["list", "dict", "members", "tuple"],
)
def test_the_error_for_a_large_body_with_many_faults_is_short(body: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        Signature(many, batched=False).request.read(body, media.JSON)
    assert len(caught.value.details) <= 2
    assert len(str(caught.value)) < 300


class Awkward(BaseModel):
    type: list[int]
    default: dict[str, Any] = {"type": "list"}
    metadata: Flower


def of_awkward(body: Awkward) -> int:
    return len(body.type)


def test_a_large_body_is_decoded_for_any_names_and_defaults_of_members() -> None:
    body = b'{"type": [%s1], "metadata": {"length": 1}}' % (b"1," * 50_000)
    found = Signature(of_awkward, batched=False).request.read(body, media.JSON)
    assert (len(found.type), found.default) == (50_001, {"type": "list"})
    assert found.metadata == Flower(length=1)


def test_a_large_valid_body_is_decoded() -> None:
    body = b'{"x": [' + b"1," * 100_000 + b"1]}"
    assert len(Signature(many, batched=False).request.read(body, media.JSON).x) == 100_001


def test_an_unknown_dtype_of_an_array_is_an_error_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="such as 'float32', not 'floot32'"):
        Array("floot32")


def test_objects_of_wide_types_count_for_their_members() -> None:
    wide: Any = create_model("Wide", **{f"f{number}": (int, 0) for number in range(50)})
    schema = Schema(list[wide], "f")
    assert len(schema.read(b"[" + b"{}," * 20_000 + b"{}]", media.JSON)) == 20_001
    for body, kind in (
        (b"[" + b"{}," * 30_000 + b"{}]", media.JSON),
        (b"\xdd" + (30_000).to_bytes(4, "big") + b"\x80" * 30_000, media.MSGPACK),
    ):
        with pytest.raises(TooLarge, match="too many arrays"):
            schema.read(body, kind)


def test_the_faults_of_many_objects_of_wide_types_are_not_all_made() -> None:
    wide: Any = create_model("Wide", **{f"f{number}": (int, ...) for number in range(50)})
    with pytest.raises(InvalidInput) as refused:
        Schema(tuple[wide, ...], "f").read(b"[" + b"{}," * 20_000 + b"{}]", media.JSON)
    assert len(refused.value.details) == 50


def test_long_numbers_and_foreign_charsets_are_refused() -> None:
    class Wanted(BaseModel):
        x: int

    schema = Schema(Wanted, "f")
    with pytest.raises(Undecodable, match="more than 1000 characters"):
        schema.read(b'{"x": %b}' % (b"1" * 1001), media.JSON)
    with pytest.raises(UnknownMediaType, match="charset 'latin-1'"):
        schema.read(b'{"x": 1}', "application/json; charset=latin-1")
    assert schema.read(b'{"x": 1}', "application/json; charset=utf-8").x == 1
