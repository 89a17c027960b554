"""Parameters of a typed function outside of the body: in the path, the query, header fields and
cookies.

    @app.get("/items/{id}")
    def item(id: int, words: list[str] = [], agent: Annotated[str, Header(alias="user-agent")] = "")

They arrive as texts, which are converted as the fields of a form are (``form_fields``). A query has
only known parameters, as a body has only known members; header fields and cookies that no parameter
asks for are left alone.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, TypedDict, Unpack, get_args, get_origin
from urllib.parse import unquote_to_bytes, urlencode

from pydantic import Field
from pydantic.fields import FieldInfo

from penstock.errors import HookError, InvalidInput, Undecodable
from penstock.request import Feed
from penstock.typed.annotations import unnamed

PATH: Final = "@path"
"""Key, in the op's input, of the list of the placeholders' values."""
QUERY: Final = "@query"
"""Key of the raw query."""
FIELDS: Final = "@fields"
"""Key of the header fields that the parameters need: lists of a name and a value, as bytes."""

_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ELEMENT: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')
"""An element of a list in a header field: commas in quotation marks do not separate."""
_COOKIE: Final = b"cookie"


class Constraints(TypedDict, total=False):
    """What a parameter may have beside its type; the same as in pydantic's ``Field``."""

    default_factory: Callable[[], Any]
    title: str
    description: str
    examples: list[Any]
    deprecated: bool
    gt: float
    ge: float
    lt: float
    le: float
    multiple_of: float
    min_length: int
    max_length: int
    pattern: str
    strict: bool


class Source:
    """Says where a parameter comes from: ``Annotated[int, Query(ge=0)]``, or as its default.

    Args:
        default: the parameter's default.
        alias: the name with which callers send it; by default the parameter's.
        constraints: see Constraints.
    """

    place: ClassVar[str]

    def __init__(
        self, default: Any = ..., *, alias: str | None = None, **constraints: Unpack[Constraints]
    ) -> None:
        more: dict[str, Any] = dict(constraints)
        if default is not ...:
            more["default"] = default
        if alias is not None:
            more["alias"] = alias
        self.field: FieldInfo = Field(**more)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Path(Source):
    """A placeholder of the route's path; parameters with the name of one are, without it, too."""

    place = "path"


class Query(Source):
    """A parameter of the query, such as ``?limit=10``. A list is sent as several: ``?tag=a&tag=b``.

    A single parameter that is a model has the query's parameters as members.
    """

    place = "query"


class Header(Source):
    """A header field. Its name has hyphens where the parameter's has underscores.

    A list is sent in several fields, or in one with commas.
    """

    place = "header"


class Cookie(Source):
    """A cookie."""

    place = "cookie"


_PLACES: Final = ("path", "query", "header", "cookie")


def source_of(kind: Any, default: Any) -> tuple[Source | None, Any, Any]:
    """Take the source from a parameter's type or default.

    Returns:
        the source or None, the type and the default without it.
    """
    if isinstance(default, Source):
        return default, kind, inspect.Parameter.empty
    kind = unnamed(kind)
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        found = next((each for each in more if isinstance(each, Source)), None)
        if found is None and isinstance(more[0], type) and issubclass(more[0], Source):
            raise HookError(f"write {more[0].__name__}() with brackets")
        if found is not None:
            more.remove(found)
            return found, Annotated[inner, *more] if more else inner, default
    return None, kind, default


class Parameters:
    """The parameters of one function that are outside of the body.

    Args:
        places: those of each place.

    Attributes:
        names: of all.
        places: by their names.
        fields: the names of the header fields that they need, in lower case.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self.places = {each.name: each for each in places}
        self.names = [name for each in self.places.values() for name in each.names]
        self.fields = frozenset(self._fields())

    def _fields(self) -> Iterator[bytes]:
        for place in self.places.values():
            if place.name == "header":
                yield from (name.encode() for name in place.by_wire)
            if place.name == "cookie":
                yield _COOKIE

    def read(self, feed: Feed, rest: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
        """Read a request that came over HTTP.

        Args:
            feed: has ``PATH``, ``QUERY`` and ``FIELDS``, as far as there are such parameters.
            rest: reads the body.

        Returns:
            the arguments, and what ``rest`` returned.

        Raises:
            InvalidInput: a value is invalid; the text names all of them.
            Undecodable: the query or the body cannot be read.
        """
        return self._all(lambda place: place.read(feed), rest)

    def accept(
        self, feed: Feed, rest: Callable[[dict[str, Any]], Any]
    ) -> tuple[dict[str, Any], Any]:
        """Read a dict with all parameters, and the members of the body, of another protocol.

        Raises:
            InvalidInput: a value is invalid.
        """
        parts, others = self.parts(feed)
        return self._all(lambda place: place.accept(parts[place.name]), lambda: rest(others))

    def _all(
        self, read: Callable[[Place], dict[str, Any]], rest: Callable[[], Any]
    ) -> tuple[dict[str, Any], Any]:
        arguments: dict[str, Any] = {}
        details: list[dict[str, Any]] = []
        for place in self.places.values():
            try:
                arguments |= read(place)
            except InvalidInput as error:
                details += error.details
        value = None
        try:
            value = rest()
        except InvalidInput as error:
            details += error.details
        if details:
            raise InvalidInput(details)
        return arguments, value

    def parts(self, given: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Split a dict of all: those of each place by their described names, and the rest."""
        rest = dict(given)
        parts: dict[str, dict[str, Any]] = {}
        for place in self.places.values():
            found = parts[place.name] = {}
            for name, described in place.spellings.items():
                if name in rest:
                    found[described] = rest.pop(name)
        return parts, rest

    def feed(self, given: Mapping[str, Any]) -> tuple[Feed, dict[str, Any]]:
        """Return a request's parts, as of ``read``, from plain values; and the rest: the body."""
        parts, rest = self.parts(given)
        found: Feed = {}
        fields: list[list[bytes]] = []
        for name, values in parts.items():
            place = self.places[name]
            pairs = [
                (place.wire[key], text) for key, each in values.items() for text in _texts(each)
            ]
            if name == "path":
                found[PATH] = [dict(pairs).get(each, "") for each in place.order]
            elif name == "query":
                found[QUERY] = urlencode(pairs).encode()
            elif name == "header":
                fields += [[key.lower().encode(), text.encode()] for key, text in pairs]
            else:
                sent = "; ".join(f"{key}={text}" for key, text in pairs)
                fields.append([_COOKIE, sent.encode()])
        if self.fields:
            found[FIELDS] = fields
        return found, rest


class Place:
    """The parameters of one place, such as the query.

    Args:
        name: one of ``path``, ``query``, ``header`` and ``cookie``.
        function: the function's name, for messages.
        schema: of an object with the parameters as members.
        whole: the parameter that is this object; None: the members are parameters.
        members: the parameters, each with its attribute of the object.
        order: the placeholders of the path.

    Attributes:
        names: the parameters.
        wire: for each described name, the one that callers send.
        by_wire: the described names by those, for header fields in lower case.
        spellings: the described names by these and by the parameters' names.

    Raises:
        HookError: a parameter's type cannot be sent there.
    """

    def __init__(
        self,
        name: str,
        function: str,
        schema: Any,
        *,
        whole: str | None,
        members: Mapping[str, str],
        order: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.schema = schema
        self.order = order
        self._whole = whole
        self._members = dict(members)
        self.names = [*members] if whole is None else [whole]
        described = schema.describe(refs="{model}")
        defs = described.get("$defs", {})
        self.described = top_of(described).get("properties", {})
        self._lists = set()
        for key, each in self.described.items():
            form = _form(each, defs)
            if form == "list" and name in ("query", "header"):
                self._lists.add(key)
            elif form != "text":
                raise HookError(
                    f"{function}: {key} cannot be sent in the {name}, as its type is {_A[form]}:"
                    f" send it in the body"
                )
        self.wire = {key: key for key in self.described}
        if name == "header" and whole is not None:
            self.wire = {key: key.replace("_", "-") for key in self.described}
        self.by_wire = {
            wire.lower() if name == "header" else wire: key for key, wire in self.wire.items()
        }
        self.spellings = {key: key for key in self.described}
        if whole is None:
            for parameter, key in zip(members, self.described, strict=True):
                self.spellings.setdefault(parameter, key)

    def read(self, feed: Feed) -> dict[str, Any]:
        """Read the arguments from a request.

        Raises:
            InvalidInput: a value is invalid.
            Undecodable: the query cannot be read.
        """
        value: dict[str, Any] = {}
        repeated: set[str] = set()
        for name, text in self._pairs(feed):
            if name not in value:
                value[name] = text
            elif name in repeated:
                value[name].append(text)
            else:
                value[name] = [value[name], text]
                repeated.add(name)
        if self.name == "header":
            for name in self._lists & value.keys():
                texts = value[name] if name in repeated else [value[name]]
                value[name] = [part for text in texts for part in _elements(text)]
        try:
            return self._arguments(self.schema.read_texts(value, repeated, self.name))
        except InvalidInput as error:
            for each in error.details:
                place, *names = each["loc"]
                each["loc"] = [place, *(self.wire.get(name, name) for name in names)]
            raise InvalidInput(error.details) from None

    def accept(self, value: dict[str, Any]) -> dict[str, Any]:
        """Check plain values.

        Raises:
            InvalidInput: a value is invalid.
        """
        return self._arguments(self.schema.accept(value, self.name))

    def _arguments(self, value: Any) -> dict[str, Any]:
        if self._whole is not None:
            return {self._whole: value}
        return {name: getattr(value, member) for name, member in self._members.items()}

    def _pairs(self, feed: Feed) -> Iterable[tuple[str, str]]:
        if self.name == "path":
            return zip(self.order, feed[PATH], strict=True)
        if self.name == "query":
            return query_pairs(feed[QUERY])
        if self.name == "cookie":
            return self._cookies(feed[FIELDS])
        known = self.by_wire
        fields = [(name.decode(), value) for name, value in feed[FIELDS]]
        return [(known[name], _text(value)) for name, value in fields if name in known]

    def _cookies(self, fields: list[list[bytes]]) -> Iterator[tuple[str, str]]:
        for field, value in fields:  # several in HTTP/2
            if field != _COOKIE:
                continue
            for part in _text(value).split(";"):
                name, equals, text = part.strip().partition("=")
                if equals and name in self.by_wire:
                    quoted = len(text) > 1 and text[0] == text[-1] == '"'
                    yield self.by_wire[name], text[1:-1] if quoted else text


def query_pairs(query: bytes) -> list[tuple[str, str]]:
    """Decode the parameters of a query, in their order.

    Raises:
        Undecodable: it has a bad percent-encoding, or is not UTF-8.
    """
    if _BAD_ESCAPE.search(query):
        raise Undecodable("bad percent escape in the query: write % as %25")
    pairs = []
    for part in query.replace(b"+", b" ").split(b"&"):
        if part:
            name, _, value = part.partition(b"=")
            try:
                pairs.append((unquote_to_bytes(name).decode(), unquote_to_bytes(value).decode()))
            except UnicodeDecodeError:
                raise Undecodable("the query is not UTF-8") from None
    return pairs


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")  # as of old


def _elements(text: str) -> list[str]:
    return [each.strip() for each in _ELEMENT.findall(text) if each.strip()]


def _texts(value: Any) -> list[str]:
    """A plain value as it is sent; a list as several."""
    if value is None:
        return []
    if isinstance(value, list):
        return [text for each in value for text in _texts(each)]
    return [value if isinstance(value, str) else json.dumps(value)]


_A: Final = {"list": "a list", "object": "an object"}


def top_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of an object: a definition, if it refers to itself or may be null."""
    kinds = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    found: Mapping[str, Any] = kinds[0] if len(kinds) == 1 else schema
    name = found.get("$ref", "").rpartition("/")[2]
    return schema["$defs"][name] if name else found


def _behind(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema to which a schema refers; else itself."""
    found: Mapping[str, Any] = defs.get(schema.get("$ref", ""), schema)
    return found


def _form(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """How a value is sent: ``text``, ``list`` of texts, or ``object``, which cannot be sent."""
    schema = _behind(schema, defs)
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    forms = {_form(each, defs) for each in inner}
    if schema.get("type") == "object" or "object" in forms:
        return "object"
    if schema.get("type") == "array":
        items = [*schema.get("prefixItems", ()), schema.get("items", {})]
        flat = all(_form(each, defs) == "text" for each in items if isinstance(each, Mapping))
        return "list" if flat else "object"
    return "list" if "list" in forms else "text"
