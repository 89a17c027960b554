"""The schemas of a typed function's requests and answers, from its annotations.

One parameter that is a model (pydantic's, a dataclass, a TypedDict), a union of models, or either
of them or None, is the body itself; any other parameters are members of the body, which is an
object:

    def predict(flower: Flower) -> Species            {"petal_length": 4.7, ...}
    def add(x: float, y: float = 1.0) -> float        {"x": 1.5, "y": 2}

A route may take parameters from its path, query, header fields and cookies instead: see
``penstock.typed.parameters``.

A parameter that is annotated ``Caller`` gets who calls, and is not sent by it.

With ``batch``, the parameters are lists with an element for each request, and so is the result:

    def predict(flowers: list[Flower]) -> list[Species]
"""

from __future__ import annotations

import inspect
from collections import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    TypeAdapter,
    create_model,
)
from pydantic.json_schema import JsonSchemaMode
from pydantic_core import (
    CoreConfig,
    ErrorDetails,
    PydanticSerializationError,
    SchemaSerializer,
    SchemaValidator,
    ValidationError,
    to_json,
    to_jsonable_python,
)

from penstock.errors import HookError, InvalidInput, Undecodable
from penstock.ops.callers import caller_parameter
from penstock.ops.functions import called_by, given_by, is_generator, name_of
from penstock.ops.seats import Done
from penstock.protocols import json_numbers, media
from penstock.request import Feed
from penstock.typed.annotations import (
    element_of,
    field_of,
    free_variable,
    has_own_config,
    models_of,
    unnamed,
    unwrapped,
)
from penstock.typed.arrays import AS_FILES, IMAGE
from penstock.typed.attempts import Attempts
from penstock.typed.base64_bytes import DescribeBase64, with_base64
from penstock.typed.core_schemas import eager, failing_fast, named_as_sent
from penstock.typed.files import alias_of, file_members, file_of, takes_file
from penstock.typed.foreign import (
    embedded,
    foreign_class,
    foreign_default,
    foreign_marker,
    metadata_of,
    without_schema,
)
from penstock.typed.form_fields import Validator, read_fields
from penstock.typed.parameters import Parameters, Place, Source, source_of, top_of
from penstock.typed.response import answer_type

_BASE64 = ConfigDict(ser_json_bytes="base64")  # of bytes in values without a type
_PLAIN = ConfigDict(**_BASE64, extra="forbid")

_TAKES_NAMES = "by_name" in inspect.signature(TypeAdapter.validate_python).parameters
_ANY_NAME: Final[dict[str, Any]] = {"by_alias": True, "by_name": True} if _TAKES_NAMES else {}
"""Options of a validator that accepts members under names and aliases; since pydantic 2.11."""

BODILESS_METHODS: Final = frozenset(("GET", "DELETE"))
"""The methods whose requests have no body."""

_LARGE = 256 << 10
"""Bytes of a body, times the members of an object, above which only the first fault of a list or
dict is reported."""

_MOST_FAULTS = 100
"""Maximum locations in an error answer."""

_PREFIXES = {"value_error": "Value error, ", "assertion_error": "Assertion failed, "}
"""Prefixes that pydantic adds to the text of a validator."""


def _is_strict(schema: Any) -> bool:
    """Whether a part of a core schema is strict."""
    if isinstance(schema, (list, tuple)):
        return any(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return False
    return schema.get("strict") is True or any(map(_is_strict, schema.values()))


def _in_msgpack(value: Any) -> Any:
    """Convert a value that msgpack lacks, such as a Decimal, as pydantic does for JSON."""
    try:
        return json_numbers.plain_parts(value)
    except TypeError as error:
        try:
            return to_jsonable_python(value)
        except PydanticSerializationError:
            raise error from None


class Schema:
    """Reads, validates and writes the values of one type.

    Args:
        annotation: the type's annotation.
        name: its name in messages.
        of_answers: describe values as written, not as read.
        default: the value of an empty body; without one such a body is refused.

    Attributes:
        optional: whether there is a default.
        has_images: whether values may have an ``Image``.
        files: media types of files that an answer may be as a whole, the default first.
        responds: whether answers may be a ``Response``.

    Raises:
        HookError: the type cannot be decoded from a body.
    """

    __slots__ = (
        "_attempts", "_config", "_core", "_default", "_file", "_first_faults", "_names",
        "_of_answers", "_serializer", "_validator", "_width", "_with_infinities", "annotation",
        "files", "has_images", "optional", "responds",
    )  # fmt: skip

    def __init__(
        self,
        annotation: Any,
        name: str,
        *,
        of_answers: bool = False,
        default: Any = inspect.Parameter.empty,
    ) -> None:
        problem = foreign_class(annotation)
        if problem is not None:
            raise HookError(f"{name}: {problem}")
        self.annotation = annotation
        self.responds = False
        self._of_answers = of_answers
        self._file = file_of(annotation) if of_answers else None
        self.files: tuple[str, ...] = () if self._file is None else self._file.media_types
        self._first_faults: SchemaValidator | None = None
        self._default = field_of(annotation, default)
        self.optional = not self._default.is_required()
        config: ConfigDict | None = _BASE64 if models_of(annotation) else _PLAIN
        if has_own_config(annotation):
            config = None
        self._config = CoreConfig() if config is None else CoreConfig(ser_json_bytes="base64")
        self._with_infinities: SchemaSerializer | None = None
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=config)
            self._validator: Validator = adapter.validator
            self._serializer = adapter.serializer
            core, has_iterables = eager(adapter.core_schema)
            self._core, has_bytes = with_base64(core, of_answers=of_answers)
            has_aliases = False
            if of_answers:
                self._core, has_aliases = named_as_sent(self._core)
            if has_iterables or has_bytes or has_aliases:
                # What pydantic has compiled for a model would be taken as it is.
                self._validator = SchemaValidator(self._core, None, False)
                self._serializer = SchemaSerializer(self._core, self._config, False)
            self.has_images = IMAGE in repr(self.describe(refs="{model}"))
            self._names = _ANY_NAME if of_answers and self._has_aliases() else {}
        except PydanticUserError as error:
            raise _no_schema(name, [annotation], error) from error
        self._attempts, self._width = None, 0
        if not of_answers:
            attempts = Attempts.of(self._core)
            self._width = attempts.width
            self._attempts = attempts if attempts.multiply else None

    def __repr__(self) -> str:
        return f"<Schema {self.annotation!r}>"

    def _has_aliases(self) -> bool:
        names, aliases = (
            DescribeBase64(by_alias=each).generate(self._core) for each in (False, True)
        )
        return names != aliases

    def check_packages(self, name: str) -> None:
        """Check that the packages with which values are decoded are installed.

        Args:
            name: of the function, or the route, in the message.

        Raises:
            HookError: the type has an ``Image``, and Pillow is missing.
        """
        if self.has_images and find_spec("PIL") is None:
            raise HookError(
                f"{name}: an Image needs the package Pillow: pip install 'penstock-serving[images]'"
            )

    def read(self, body: bytes, kind: str, raw: str | None = None) -> Any:
        """Decode and validate a body.

        Args:
            body: the decompressed body.
            kind: its media type.
            raw: the member whose value is a body that is not JSON, msgpack or a form, such as an
                image; None if such bodies are refused.

        Raises:
            InvalidInput: the value is invalid; the text names the places.
            Undecodable: the body does not match its media type, or the type is unknown.
        """
        if not body and self.optional and (media.is_json(kind) or media.is_msgpack(kind)):
            return self._default.get_default(call_default_factory=True, validated_data={})
        # The validator directly: the options of the adapter's methods cost as much as a small body.
        validator = self._brief() if len(body) * self._width > _LARGE else self._validator
        try:
            if media.is_json(kind):
                if kind != media.JSON:
                    media.check_kind(body, kind, raw)
                media.check_json(body, self._width)
                if json_numbers.has_too_large_float(body):
                    raise Undecodable("the body has a number beyond the range of float64")
                if self._attempts is not None:
                    self._attempts.check_json(body)
                return validator.validate_json(body)
            if media.essence(kind) == media.FORM:
                fields = media.read_form(body, kind, self._width)
                return read_fields(validator, *fields, self._attempts)
            value = media.decode(body, kind, raw, dates=True, width=self._width)
            if not media.is_msgpack(kind):
                return read_fields(validator, value, set(), self._attempts)
            if self._attempts is not None:
                self._attempts.check(value)
            return self._from_msgpack(validator, value)
        except ValidationError as error:
            if not body:
                raise Undecodable("the body is empty: parameters are members of the body") from None
            raise invalid(error, "body") from None

    def _from_msgpack(self, validator: Validator, value: Any) -> Any:
        """Validate a value of msgpack, where UUIDs, dates and the like are texts, and tuples lists.

        Strict types take them as such from JSON only.
        """
        try:
            return validator.validate_python(value)
        except ValidationError:
            if not _is_strict(self._core):
                raise
        body = to_json(value, bytes_mode="base64", inf_nan_mode="constants")
        return validator.validate_json(body)

    def _brief(self) -> Validator:
        """The same checks, of which a list or a dict names its first fault only.

        A few megabytes can have a million faults, which take gigabytes to be named.
        """
        if self._first_faults is None:
            schema = failing_fast(self._core)
            # What pydantic has compiled for a model would be taken as it is.
            self._first_faults = SchemaValidator(schema, None, False)
        return self._first_faults

    def check(self, value: Any) -> Any:
        """Validate a value, with pydantic's conversions; dicts of an answer may have members under
        their names or their aliases.

        Raises:
            ValidationError: the value is invalid.
        """
        return self._validator.validate_python(value, **self._names)

    def read_texts(self, value: dict[str, Any], repeated: set[str], place: str) -> Any:
        """Validate parameters that are texts, as the fields of a form.

        Args:
            value: by their names; it is changed.
            repeated: the parameters that were sent several times, which are lists.
            place: where they are.

        Raises:
            InvalidInput: a value is invalid; the text names the places.
        """
        if not value and self.optional:
            return self._default.get_default(call_default_factory=True, validated_data={})
        try:
            return read_fields(self._validator, value, repeated, self._attempts, place)
        except ValidationError as error:
            raise invalid(error, place) from None

    def accept(self, value: Any, place: str = "body") -> Any:
        """Validate a plain value that a caller sent in another protocol.

        Args:
            value: a dict or another plain value.
            place: what the value is, for errors.

        Raises:
            InvalidInput: the value is invalid; the text names the places.
        """
        if self._attempts is not None:
            self._attempts.check(value)
        try:
            return self._validator.validate_python(value)
        except ValidationError as error:
            raise invalid(error, place) from None

    def write(self, value: Any, kind: str) -> bytes:
        """Encode a validated value as a body; members have their aliases, as ``describe`` says.

        Args:
            value: the result of ``check``.
            kind: ``media.JSON``, ``media.MSGPACK``, or one of ``files``.
        """
        if kind == media.OCTETS and isinstance(value, bytes):
            return value
        if kind == media.JSON:
            return self._json(value)
        if self._file is not None and kind in self.files:
            return self._file.file(value, kind)
        serializer = self._serializer
        try:
            plain = serializer.to_python(value, by_alias=True, context=AS_FILES)
            return media.encode(plain, kind, _in_msgpack)
        except TypeError:  # a type that is converted for JSON only
            return media.encode(self._for_json(value), kind)

    def _json(self, value: Any) -> bytes:
        serializer = self._serializer
        body = serializer.to_json(value, by_alias=True, fallback=json_numbers.plain)
        # Pydantic writes infinities as null, too.
        if b"null" in body:
            plain = self._for_json(value)
            if json_numbers.has_infinities(plain):
                return json_numbers.dumps(plain)
        return body

    def _for_json(self, value: Any) -> Any:
        """Convert to what JSON has, and NaN and infinities, which stay floats."""
        if self._with_infinities is None:
            options = CoreConfig(**self._config, ser_json_inf_nan="constants")
            self._with_infinities = SchemaSerializer(self._core, options, False)
        return self._with_infinities.to_python(
            value, mode="json", by_alias=True, fallback=json_numbers.plain
        )

    def plain(self, value: Any) -> Any:
        """Convert a validated value to dicts, lists, numbers, texts and arrays.

        Members of an answer have their aliases; those of a request their names, for ops.
        """
        return self._serializer.to_python(value, by_alias=self._of_answers)

    def describe(self, *, refs: str) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12).

        Args:
            refs: template of references, such as ``#/components/schemas/{model}``.
        """
        mode: JsonSchemaMode = "serialization" if self._of_answers else "validation"
        return DescribeBase64(ref_template=refs).generate(self._core, mode)


def _no_schema(name: str, annotations: Iterable[Any], error: Exception) -> HookError:
    problem = next(filter(None, map(without_schema, annotations)), None)
    if problem is None:
        problem = f"no schema can be made of its types: {str(error).splitlines()[0]}"
    return HookError(f"{name}: {problem}")


def invalid(error: ValidationError, *where: str) -> InvalidInput | Undecodable:
    """Convert pydantic's error about a caller's value."""
    if error.error_count() > _MOST_FAULTS:
        text = f"{error.error_count()} places do not fit, too many to be listed"
        return InvalidInput([{"loc": [*where], "msg": text, "type": "too_many_errors"}])
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return Undecodable(f"the body is no JSON: {found[0]['msg']}")
    details = [
        {"loc": [*where, *each["loc"]], "msg": _message(each), "type": each["type"]}
        for each in found
    ]
    return InvalidInput(details)


def _message(found: ErrorDetails) -> str:
    """Return the text of one fault; a user's validator's text without pydantic's prefix."""
    prefix = _PREFIXES.get(found["type"])
    return found["msg"] if prefix is None else found["msg"].removeprefix(prefix)


class Signature:
    """The request and answer types of a function.

    Args:
        function: a typed function.
        batched: parameters and result are lists with an element for each request.
        skip: number of leading parameters that are not the caller's, such as ``self``.
        response: the schema of answers; by default that of the function's result.
        name: its name in messages; the function's by default.
        method: the HTTP method. Parameters of ``BODILESS_METHODS`` methods are those of the query.
        placeholders: of the route's path.

    Attributes:
        request, response: the schemas of one request's body and its answer.
        has_body: whether a parameter is of the body.
        only_body: whether all of them are: then ``request`` reads a request.
        parameters: those outside of the body; None if there are none.
        caller: the parameter that gets who calls; None if there is none.
        streams: whether the function is a generator: ``response`` is then that of each piece.
        files: parameters, or members, whose values may be the bytes of files.
        raw: the member whose value is a body that is not JSON, msgpack or a form; None if such
            bodies are refused.

    Raises:
        HookError: a parameter has no type, or is not a list although the function is batched; or it
            cannot be sent where it comes from.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        batched: bool,
        skip: int = 0,
        response: Schema | None = None,
        name: str | None = None,
        method: str = "POST",
        placeholders: Sequence[str] = (),
    ) -> None:
        self.name = name_of(function) if name is None else name
        self.batched = batched
        self.streams = is_generator(function)
        hints = _hints(function, self.name)
        given = given_by(function)
        self.caller = caller_parameter(function, batched=batched)
        if self.caller is not None:
            given.add(self.caller.name)
        parameters = [
            each for each in _parameters(function, self.name)[skip:] if each.name not in given
        ]
        self._check_object(function, parameters, hints)
        taken: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
        places: dict[str, list[str]] = {}
        for each in parameters:
            place, kind, default = self._placed(each, hints, method, placeholders)
            taken[each.name], defaults[each.name] = kind, default
            places.setdefault(place, []).append(each.name)
        missing = [each for each in placeholders if each not in places.get("path", ())]
        if missing:
            raise HookError(f"{self.name} has no parameter {missing[0]}, which is in the path")
        if not taken and (batched or method not in BODILESS_METHODS):
            where = "the body" if method not in BODILESS_METHODS else "the query"
            raise HookError(f"{self.name} has no parameter: add one for {where}")
        in_body = places.pop("body", [])
        self.parameters = None
        if places:
            order = placeholders
            self.parameters = Parameters(
                self._place(place, {name: taken[name] for name in names}, defaults, order)
                for place, names in places.items()
            )
        self.has_body = bool(in_body)
        self.only_body = self.has_body and self.parameters is None
        self.names = in_body
        kinds = [taken[name] for name in in_body]
        self.whole = len(kinds) == 1 and bool(models_of(kinds[0]))
        kind_of = {each.name: each.kind for each in parameters}
        self._by_position = (
            self.whole
            and not places
            and self.caller is None
            and kind_of[in_body[0]] is not inspect.Parameter.KEYWORD_ONLY
        )
        self._members = {name: _member_name(name, self.names) for name in self.names}
        if self.whole and embedded(kinds[0], defaults[in_body[0]]):
            raise HookError(
                f"{self.name}: Body(embed=True) is FastAPI's: here a single model is the body"
                " itself: make it a member of a model, or add a parameter"
            )
        if self.whole:
            self.request = Schema(kinds[0], self.name, default=defaults[in_body[0]])
        else:
            body = {name: taken[name] for name in in_body}
            members = _members(self.name, body, defaults, self._members)
            self.request = Schema(
                members,
                self.name,
                default=inspect.Parameter.empty if in_body else members(),
            )
        self.response = response or response_of(function, batched=batched)
        self.files = file_members(self.request.annotation)
        self.raw = next(iter(self.files), None)

    def __repr__(self) -> str:
        outside = [] if self.parameters is None else self.parameters.names
        return f"<Signature {self.name}({', '.join([*outside, *self.names])})>"

    def _check_object(
        self,
        function: Callable[..., Any],
        parameters: Sequence[inspect.Parameter],
        hints: Mapping[str, Any],
    ) -> None:
        first = parameters[0].name if parameters else ""
        kind, _, method = getattr(called_by(function), "__qualname__", "").rpartition(".")
        if first in ("self", "cls") and first not in hints and kind[-1:] not in ("", ">"):
            raise HookError(
                f"{kind}.{method} is a method without its object: give the class, or the method of"
                f" an object, as in app.route(...)({kind.rpartition('.')[2]}().{method})"
            )

    def _placed(
        self,
        parameter: inspect.Parameter,
        hints: Mapping[str, Any],
        method: str,
        placeholders: Sequence[str],
    ) -> tuple[str, Any, Any]:
        """The place of a parameter, its type and its default, for one request."""
        name = parameter.name
        where = f"{self.name}: the parameter {name}"
        source, kind, default = source_of(self._type_of(parameter, hints), parameter.default)
        if self.batched:
            kind = _element(kind, self.name, name)
        if source is None:
            source, kind, _ = source_of(kind, None)
        if any(isinstance(each, Source) for each in metadata_of(kind)):
            raise HookError(f"{where} has a source inside of its type: put it around the type")
        place = "query" if method in BODILESS_METHODS else "body"
        if source is not None:
            place = source.place
            kind = Annotated[kind, source.field]
        if (name in placeholders) != (place == "path"):
            if source is not None:
                raise HookError(
                    f"{where} is in the path: it cannot come from elsewhere"
                    if name in placeholders
                    else f"{where} is in no placeholder of the path: write {{{name}}} there"
                )
            place = "path"
        if self.batched:
            default = _of_one(self.name, name, kind, default)
        if place != "body":
            if takes_file(kind):
                raise HookError(
                    f"{where} may be a file, which is sent in the body, not the {place}"
                )
            field = field_of(kind, default)
            if place == "path" and (not field.is_required() or alias_of(field)):
                raise HookError(f"{where} is in the path: it has no default and no alias")
            if place == "header" and "_" in name and not alias_of(field) and not models_of(kind):
                kind = Annotated[kind, Field(alias=name.replace("_", "-"))]
        return place, kind, default

    def _place(
        self,
        place: str,
        taken: Mapping[str, Any],
        defaults: Mapping[str, Any],
        order: Sequence[str],
    ) -> Place:
        """The parameters of one place."""
        names = list(taken)
        members = {name: _member_name(name, names) for name in names}
        called = f"{self.name}_{place}"
        if place != "path" and len(names) == 1 and models_of(taken[names[0]]):
            schema = Schema(taken[names[0]], called, default=defaults[names[0]])
            return Place(place, self.name, schema, whole=names[0], members={})
        schema = Schema(_members(called, taken, defaults, members), called)
        return Place(place, self.name, schema, whole=None, members=members, order=order)

    def _type_of(self, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise HookError(
                f"{self.name}: name its parameters, instead of {parameter}; a decorator keeps those"
                " of its function with functools.wraps"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise HookError(
                f"{self.name}: the parameter {parameter.name} is positional only: remove the /"
                " after it"
            )
        if parameter.name not in hints:
            raise HookError(
                f"{self.name}: the parameter {parameter.name} has no type: write"
                f" {parameter.name}: float, or another type"
            )
        kind = hints[parameter.name]
        free = free_variable(kind)
        if free is not None:
            raise HookError(
                f"{self.name}: the type of the parameter {parameter.name} has the type variable"
                f" {free}, which stands for any type here: write the type"
            )
        problem = foreign_default(parameter.default) or foreign_marker(kind)
        if problem is not None:
            raise HookError(f"{self.name}: {problem}")
        return kind

    def read(self, feed: Feed, body: bytes, kind: str) -> Any:
        """Decode and validate a request that came over HTTP.

        Args:
            feed: has what ``parameters`` need.
            body: the decompressed body.
            kind: its media type.

        Raises:
            InvalidInput: a value is invalid; the text names the places.
            Undecodable: the body does not match its media type, or the type is unknown; or the
                query is malformed.
        """
        if not self.has_body and not body:
            kind = media.JSON  # of nothing
        if self.parameters is None:
            return self.request.read(body, kind, self.raw)
        return self.parameters.read(feed, lambda: self.request.read(body, kind, self.raw))

    def accept(self, value: Feed) -> Any:
        """Validate a dict of all parameters, and members of the body, of another protocol.

        Raises:
            InvalidInput: a value is invalid; the text names the places.
        """
        if self.parameters is None:
            return self.request.accept(value)
        return self.parameters.accept(value, self.request.accept)

    def describe(self, *, refs: str) -> dict[str, Any]:
        """Return the JSON Schema of all parameters, as an object; see ``Schema.describe``."""
        body = self.request.describe(refs=refs)
        if self.parameters is None:
            return body
        properties: dict[str, Any] = {}
        required: list[str] = []
        for schema in [
            *(each.schema.describe(refs=refs) for each in self.parameters.places.values()),
            body,
        ]:
            top = top_of(schema)
            properties |= top.get("properties", {})
            required += top.get("required", ())
        return {"type": "object", "properties": properties, "required": required}

    def arguments(self, value: Any) -> dict[str, Any]:
        """Return the arguments of one call, from what ``read`` returned."""
        outside = self.parameters is not None
        body = value[1] if outside else value
        if self.whole:
            found = {self.names[0]: body}
        else:
            found = {name: getattr(body, member) for name, member in self._members.items()}
        return {**value[0], **found} if outside else found

    def call(
        self, function: Callable[..., Any], values: Sequence[Any], callers: Sequence[Any] = ()
    ) -> Any:
        """Call the function for these requests; exactly one if it is not batched.

        Args:
            function: takes the arguments.
            values: as returned by ``read``.
            callers: who made the requests, if the function asks.

        Returns:
            The function's result: a list if it is batched; or a coroutine.
        """
        if self.caller is not None:
            caller = list(callers) if self.batched else callers[0]
            function = partial(function, **{self.caller.name: caller})
        if not self.batched:
            (value,) = values
            return function(value) if self._by_position else function(**self.arguments(value))
        if self._by_position:
            return function(list(values))
        if self.parameters is not None:
            calls = [self.arguments(each) for each in values]
            names = (*self.parameters.names, *self.names)
            return function(**{name: [each[name] for each in calls] for name in names})
        if self.whole:
            return function(**{self.names[0]: list(values)})
        members = self._members.items()
        return function(**{name: [getattr(each, at) for each in values] for name, at in members})


def response_of(function: Callable[..., Any], *, batched: bool) -> Schema:
    """Return the schema of a function's result for one request; any value without an annotation.

    Raises:
        HookError: see Signature.
    """
    name = name_of(function)
    answer = _hints(function, name).get("return", Any)
    if is_generator(function):
        answer = _yielded(answer, name)
    elif get_origin(answer) in _OF_GENERATORS and get_origin(answer) is not abc.Iterable:
        raise HookError(f"{name} returns an iterator, and is no generator: write yield from it")
    if batched and answer is not Any:
        answer = _element(answer, name, "its result")
    answer, responds = answer_type(answer)
    if responds and is_generator(function):
        raise HookError(f"{name} yields pieces of one answer, which cannot be a Response or a File")
    found = Schema(answer, f"{name}'s result", of_answers=True)
    found.responds = responds
    if is_generator(function):  # of pieces that are files, only bytes are sent as they are
        found.files = (media.OCTETS,) if answer is bytes else ()
    return found


def response_of_step(step: Callable[..., Any], name: str) -> Schema:
    """Return the schema of the pieces of a class with seats, from the annotation of ``step``:
    ``list[str | Done | Exception | None]`` has pieces that are texts. Any value without one.

    Raises:
        HookError: it is no such list.
    """
    given = _hints(step, name).get("return", Any)
    each = Any if given is Any else element_of(given)
    if each is None:
        raise HookError(
            f"{name} returns a list with a result for each running request: write -> list[str |"
            f" Done | None], or with other pieces, not {getattr(given, '__name__', given)}"
        )
    kinds = get_args(each) if get_origin(unnamed(each)) in (Union, UnionType) else [each]
    pieces = [kind for kind in kinds if not _is_end(kind)]
    if not pieces:
        raise HookError(f"{name} has no type of pieces: write -> list[str | Done | None]")
    piece = pieces[0] if len(pieces) == 1 else Union[tuple(pieces)]  # noqa: UP007
    piece, responds = answer_type(piece)
    if responds:
        raise HookError(f"{name} makes pieces of answers, which cannot be a Response or a File")
    found = Schema(piece, f"{name}'s result", of_answers=True)
    found.files = (media.OCTETS,) if piece is bytes else ()
    return found


def _is_end(kind: Any) -> bool:
    """Whether a type in the annotation of ``step`` is no piece: an end, an error, or nothing."""
    kind = unwrapped(kind)
    kind = get_origin(kind) or kind
    return isinstance(kind, type) and issubclass(kind, (Done, BaseException, NoneType))


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(called_by(function), include_extras=True)
    except NameError as error:
        raise HookError(
            f"{name}: an annotation cannot be read: {error}: classes in annotations are defined at"
            " the top of the module, above the function"
        ) from error


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise HookError(
            f"{name}: its parameters cannot be read ({error}): write a function around it"
        ) from error


def _member_name(name: str, others: Sequence[str]) -> str:
    """The name of a parameter's member in a model: another one if pydantic reserves the name."""
    if not (name.startswith(("_", "model_")) or hasattr(BaseModel, name)):
        return name
    found = f"parameter{name}"
    while found in others:
        found += "_"
    return found


def _members(
    name: str, taken: Mapping[str, Any], defaults: Mapping[str, Any], members: Mapping[str, str]
) -> type[BaseModel]:
    """Make a model whose members are the parameters; in bodies they have the parameters' names, or
    their aliases.
    """
    fields: dict[str, Any] = {}
    for each, kind in taken.items():
        field, default, member = field_of(kind, defaults[each]), defaults[each], members[each]
        if default is inspect.Parameter.empty:  # maybe in an Annotated
            default = field.default_factory and Field(default_factory=field.default_factory)
            default = default or (... if field.is_required() else field.default)
        if member != each and not alias_of(field):
            kind = Annotated[kind, Field(alias=each)]
        fields[member] = (kind, default)
    words = [word.capitalize() for word in name.split("_")]
    try:
        return create_model(f"{''.join(words)}Request", __config__=_PLAIN, **fields)
    except (PydanticUserError, NameError) as error:
        raise _no_schema(name, taken.values(), error) from error


def _yielded(kind: Any, function: str) -> Any:
    """Return the T of ``Iterator[T]`` and its like."""
    if kind is Any:
        return Any
    if get_origin(kind) not in _OF_GENERATORS or not get_args(kind):
        raise HookError(
            f"{function} is a generator: write -> Iterator[...] with the type of what it yields, or"
            f" AsyncIterator[...], not {getattr(kind, '__name__', kind)}"
        )
    return get_args(kind)[0]


_OF_GENERATORS: Final = (
    abc.Iterator,
    abc.Iterable,
    abc.Generator,
    abc.AsyncIterator,
    abc.AsyncIterable,
    abc.AsyncGenerator,
)


def _element(kind: Any, function: str, what: str) -> Any:
    """Return the T of ``list[T]``."""
    found = element_of(kind)
    if found is None:
        raise HookError(
            f"{function}: with batch, {what} is a list with an element for each request:"
            f" write list[...], not {getattr(kind, '__name__', kind)}"
        )
    return found


def _of_one(function: str, name: str, kind: Any, default: Any) -> Any:
    """Return the default of one request; that of a function of batches may be a list of one.

    Raises:
        HookError: it is a list that is neither.
    """
    if not isinstance(default, list):
        return default
    schema = Schema(kind, function)
    for each in [default, *default][:2]:
        try:
            schema.check(each)
        except ValidationError:
            continue
        if each is default or len(default) == 1:
            return each
    raise HookError(
        f"{function}: with batch, the default of {name} is that of one request, or a list with"
        f" only that, not {default!r}"
    )
