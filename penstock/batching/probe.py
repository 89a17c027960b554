"""The probe: runs a model on small inputs to find its row axes, and compares batches with single
runs.

Each request of the probe runs alone, then in batches: together, in another order, beside a request
of far larger values and, where padding is on, padded. The batches are joined and split by the code
that serves requests, and each part must equal the answer of its request alone.

Inputs are generated from the model's signature, or are the user's examples. Generated integers are
0 or 1, which are valid indices; texts are short; floats are normally distributed. Axes of variable
size are tried in several sizes, since many models run on no size below a stride.

Pure: a generator that yields feeds, and is sent the results. ``executors/probing.py`` runs it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.batching.joining import Joined, Joining
from penstock.batching.padding import Padding
from penstock.batching.rows import Axis, Hints, Rows, is_offsets, rows_of_axes
from penstock.errors import RequestError
from penstock.request import Feed
from penstock.tensor import LOD_SUFFIX, TensorSpec

SIZES: Final = (32, 8, 64, 224, 1, 2, 16, 3, 4, 128, 320)
"""Sizes that are tried for axes of variable size; the first for which the model runs is used."""

TOLERANCES: Final = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4}
"""Largest difference of two answers that counts as equal, relative to the largest value of the
tensor, by dtype. Ten real models differed by at most 1.6e-6 in float32, by the order of sums."""

_HALF: Final = 2e-2  # float16, bfloat16
_LARGER: Final = 1000.0  # factor of the values of the very different neighbour
_MOST_PLACES: Final = 2**20  # product of the sizes of an input's axes of variable size
_TOO_LONG: Final = "takes longer than verify_seconds"
_SHOWN: Final = 200  # most characters of an error of the model


class TimeIsUp:
    """Sent in place of a result: no more runs."""


Answer: TypeAlias = "Feed | RequestError | TimeIsUp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The outcome of a probe.

    Attributes:
        rows: the row axes with which batches gave the answers of single runs; None: there are none.
        refuted: how an answer in a batch differed, as text; None if no batch ran.
        unable: why the probe could not tell, as text.
        pads: whether padded requests got their own answers, too.
        unpadded: how a padded answer differed, or why the probe could not tell.
    """

    rows: Rows | None = None
    refuted: str | None = None
    unable: str | None = None
    pads: bool = False
    unpadded: str | None = None


Probing: TypeAlias = Generator[Feed, Answer, Found]


class _Refuted(Exception):
    pass


class _Unable(Exception):
    pass


class _TimeUp(Exception):
    pass


def probe(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    hints: Hints,
    padding: Padding | None = None,
    examples: Sequence[Feed] = (),
) -> Probing:
    """Find the first of the possible row axes with which batches leave answers alone.

    Args:
        inputs: of the model.
        outputs: that are fetched.
        hints: what is known about them.
        padding: how requests of different sizes are padded; None if they are not.
        examples: inputs of requests, to be used instead of generated ones.
    """
    refuted = unable = unpadded = None
    for axes in hints.candidates:
        attempt = _Attempt(inputs, outputs, hints, axes, examples)
        try:
            yield from attempt.compare()
        except _Refuted as error:
            refuted = refuted or str(error)
            continue
        except _Unable as error:
            unable = unable or str(error)
            continue
        except _TimeUp:
            if attempt.rows is None:
                return Found(refuted=refuted, unable=f"it {_TOO_LONG}")
        if padding is not None:
            try:
                yield from attempt.compare_padded(padding)
            except (_Refuted, _Unable) as error:
                unpadded = str(error)
            except _TimeUp:
                unpadded = f"the probe {_TOO_LONG}"
        pads = padding is not None and unpadded is None
        return Found(rows=attempt.rows, pads=pads, unpadded=unpadded)
    return Found(refuted=refuted, unable=unable)


_Runs: TypeAlias = Generator[Feed, Answer, None]
_Member: TypeAlias = tuple[Feed, Feed]  # a request, and its answer when it runs alone


class _Attempt:
    """The probe with one choice of row axes.

    Attributes:
        rows: the row axes, once a first batch gave the answers of single runs.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        hints: Hints,
        axes: Mapping[str, Axis],
        examples: Sequence[Feed],
    ) -> None:
        self.rows: Rows | None = None
        self._inputs = [each for each in inputs if not is_offsets(each, inputs)]
        self._offsets = {each.name for each in inputs} - {each.name for each in self._inputs}
        self._outputs = outputs
        self._hints = hints
        self._axes = axes
        self._examples = examples
        self._size = 0
        self._alone: list[_Member] = []

    def compare(self) -> _Runs:
        """Run requests alone and in batches; sets ``rows``."""
        first = yield from self._first()
        feed = self._request(1, 2)
        second = feed, (yield from self._run(feed))
        self._alone = [first, second]
        try:
            # The main comparison comes first: in the time for it, others may not be possible.
            self.rows = yield from self._learn(self._alone)
            joining = Joining(rows=self.rows)
            yield from self._batch(joining, [second, first])
            if not self._examples:
                neighbour = self._request(2, 1, _LARGER)
                found = yield from self._try(neighbour)
                if found is not None:
                    yield from self._batch(joining, [second, (neighbour, found), first])
                # The maximum of integers that are 0 and 1, such as lengths, is 1 for nearly every
                # request, and their minimum 0.
                for value in (0, 1) if self._has_integers else ():
                    feed = self._request(2, 1, whole=value)
                    found = yield from self._try(feed)
                    if found is not None:
                        yield from self._batch(joining, [second, (feed, found), first])
        except _Refuted:
            again = yield first[0]
            if isinstance(again, dict) and _difference(first[1], again) is not None:
                text = "two runs on the same input give different answers"
                raise _Unable(text) from None
            raise

    def compare_padded(self, padding: Padding) -> _Runs:
        """Run a padded batch of two requests of different sizes."""
        assert self.rows is not None
        if any(self.rows.inputs.values()):
            raise _Unable("requests are padded only if axis 0 is the row axis of every input")
        joining = Joining(padding=padding, rows=self.rows)
        (small, answer), *_ = self._alone
        larger = None
        for feed in self._larger(joining, small):
            found = yield from self._try(feed)
            if found is not None:
                larger = feed, found
                break
        if larger is None:
            raise _Unable("the probe found no second size on which the model runs")
        for batch in ([(small, answer), larger], [larger, (small, answer)]):
            yield from self._batch(joining, batch, "padded")
        # A padding of zeros changes the maximum of negative numbers, and the minimum of positive.
        for sign in () if self._examples else (-1, 1):
            feed = self._request(0, 1, sign=sign)
            found = yield from self._try(feed)
            if found is not None:
                yield from self._batch(joining, [(feed, found), larger], "padded")

    def _first(self) -> Generator[Feed, Answer, _Member]:
        """The first request that runs, and its answer."""
        error = "there is no input"
        axes = 0 if self._examples else self._variable_axes
        sizes = [each for each in SIZES if each**axes <= _MOST_PLACES] if axes else SIZES[:1]
        for self._size in sizes:
            feed = self._request(0, 1)
            answer = yield feed
            if isinstance(answer, TimeIsUp):
                raise _TimeUp
            if not isinstance(answer, RequestError):
                return feed, answer
            error = str(answer)
        raise _Unable(f"the model fails on {self._what}: {error[:_SHOWN]}")

    @property
    def _what(self) -> str:
        return "the examples" if self._examples else "generated inputs"

    @property
    def _variable_axes(self) -> int:
        """The most axes of variable size that an input has besides its row axis."""
        return max(
            sum(
                size is None and axis != self._axes[spec.alias]
                for axis, size in enumerate(spec.shape or ())
            )
            for spec in self._inputs
        )

    @property
    def _has_integers(self) -> bool:
        """Whether an input with rows has integers."""
        return any(
            spec.dtype.kind in "iub" and self._axes[spec.alias] is not None for spec in self._inputs
        )

    def _run(self, feed: Feed) -> Generator[Feed, Answer, Feed]:
        answer = yield feed
        if isinstance(answer, TimeIsUp):
            raise _TimeUp
        if isinstance(answer, RequestError):
            raise _Unable(f"the model fails on {self._what}: {str(answer)[:_SHOWN]}")
        return answer

    def _try(self, feed: Feed) -> Generator[Feed, Answer, Feed | None]:
        answer = yield feed
        if isinstance(answer, TimeIsUp):
            raise _TimeUp
        return None if isinstance(answer, RequestError) else answer

    def _learn(self, members: Sequence[_Member]) -> Generator[Feed, Answer, Rows]:
        """The row axes of the outputs, from the shapes of single runs and of their batch, whose
        parts equal the single runs.
        """
        feeds = [feed for feed, _ in members]
        joining = Joining(rows=self._rows({}, []))
        if len(joining.groups(joining.layouts(feeds))) > 1:
            raise _Unable("its inputs for several requests cannot be joined")
        joined = joining.stack(feeds)
        answer = yield from self._in_batch(joined.feed, "on a batch")
        answers = [*[each for _, each in members], answer]
        counts = [*joined.rows, sum(joined.rows)]
        axes: dict[str, Axis] = {}
        shared: list[str] = []
        for spec in self._outputs:
            name = next((each for each in (spec.alias, spec.name) if each in answer), None)
            if name is None:
                raise _Refuted(f"output {spec.alias!r} is missing in the answer to a batch")
            values = [each[name] for each in answers]
            axis = self._hints.outputs.get(spec.alias, -1)
            if spec.alias in self._hints.shared:
                shared.append(spec.alias)
            elif axis is not None and axis >= 0:
                axes[spec.alias] = axis
            elif f"{name}{LOD_SUFFIX}" in answer:
                axes[spec.alias] = 0
            elif axis is not None and (found := _row_axis(values, counts)) is not None:
                axes[spec.alias] = found
            elif any(_differs(values[0], each) is not None for each in values[1:]):
                raise _Refuted(_no_rows(spec.alias, values, counts))
            else:
                shared.append(spec.alias)
        rows = self._rows(axes, shared)
        _compare(Joining(rows=rows), joined, answer, members, "in a batch")
        return rows

    def _rows(self, outputs: Mapping[str, Axis], shared: Sequence[str]) -> Rows:
        return rows_of_axes(self._inputs, self._outputs, self._axes, outputs, shared)

    def _batch(
        self, joining: Joining, members: Sequence[_Member], how: str = "in a batch"
    ) -> _Runs:
        """Run these requests as one batch, and compare each one's part with its own answer."""
        joined = joining.stack([feed for feed, _ in members])
        answer = yield from self._in_batch(joined.feed, how)
        _compare(joining, joined, answer, members, how)

    def _in_batch(self, feed: Feed, how: str) -> Generator[Feed, Answer, Feed]:
        answer = yield feed
        if isinstance(answer, TimeIsUp):
            raise _TimeUp
        if isinstance(answer, RequestError):
            raise _Refuted(f"the model fails {how}: {str(answer)[:_SHOWN]}")
        return answer

    def _request(
        self,
        index: int,
        count: int,
        factor: float = 1.0,
        larger: int = 0,
        sign: int = 0,
        whole: int | None = None,
    ) -> Feed:
        """A request: an example, or one with this number of rows.

        Args:
            index: of the request; others have other values.
            count: its rows.
            factor: of its floats, and of the pixels of pictures.
            larger: how much larger its axes of variable size are.
            sign: -1 or 1: all its floats are negative, or positive and its integers 1.
            whole: the value of all its integers; None: each is 0 or 1.
        """
        if self._examples:
            return dict(self._examples[index % len(self._examples)])
        feed: Feed = {}
        for at, spec in enumerate(self._inputs):
            axis = self._axes[spec.alias]
            if spec.shape is None and axis is not None:
                raise _Unable(f"input {spec.alias!r} has no shape to generate")
            extra = 0 if axis is None else larger
            shape = [
                count if each == axis else self._size + extra if size is None else size
                for each, size in enumerate(spec.shape or ())
            ]
            seed = [at, *([] if axis is None else [index])]
            is_lod = spec.is_lod or spec.name + LOD_SUFFIX in self._offsets
            if is_lod and axis == 0:
                ends = np.cumsum([0, *[2 + (index + each) % 2 for each in range(count)]])
                feed[spec.alias + LOD_SUFFIX] = ends
                shape[0] = int(ends[-1])
            scale = 1.0 if axis is None else factor
            value = np.asarray(_generated(spec, tuple(shape), seed, scale))
            if sign and axis is not None:
                value = _signed(value, sign)
            if whole is not None and axis is not None and value.dtype.kind in "iub":
                value = np.full_like(value, whole)
            feed[spec.alias] = value
        return feed

    def _larger(self, joining: Joining, small: Feed) -> Sequence[Feed]:
        """Requests of other sizes, which are padded in a batch with this one."""
        if self._examples:
            feeds = list(self._examples)
        else:
            extras = (self._size, 32, 8, 1)
            feeds = [self._request(1, 1, larger=each) for each in dict.fromkeys(extras)]
        layout = joining.layout(small)
        found = []
        for feed in feeds:
            other = joining.layout(feed)
            if layout and other and layout.key == other.key and layout.shapes != other.shapes:
                found.append(feed)
        return found


def _compare(
    joining: Joining, joined: Joined, answer: Feed, members: Sequence[_Member], how: str
) -> None:
    """Split the answer to a batch, and compare each part with the request's own answer."""
    try:
        parts = joining.scatter(answer, joined, [feed for feed, _ in members], ())
    except RequestError as error:
        raise _Refuted(f"{error} {how}") from error
    for (_, alone), part in zip(members, parts, strict=True):
        if (difference := _difference(alone, part)) is not None:
            raise _Refuted(f"{difference} {how}")


def _generated(spec: TensorSpec, shape: tuple[int, ...], seed: Sequence[int], factor: float) -> Any:
    rng = np.random.default_rng(seed)
    kind = spec.dtype.kind
    if kind in "iub":
        is_picture = spec.dtype == np.uint8 and len(shape) > 2
        most = 255 if is_picture and factor > 1 else 1
        return rng.integers(0, most + 1, shape).astype(spec.dtype)
    if kind == "O":
        texts = np.array(["a", "be", "sea", "dust"], object)
        return texts[rng.integers(0, len(texts), shape)]
    if kind == "c":
        values = rng.standard_normal((2, *shape)) * factor
        return (values[0] + 1j * values[1]).astype(spec.dtype)
    if kind in "fV":  # V: bfloat16
        return (rng.standard_normal(shape) * factor).astype(spec.dtype)
    raise _Unable(f"input {spec.alias!r} has the dtype {spec.dtype}, which is not generated")


def _signed(value: Any, sign: int) -> Any:
    kind = value.dtype.kind
    if kind in "iub" and sign > 0:
        return np.ones_like(value)
    return np.copysign(value, value.dtype.type(sign)) if kind == "f" else value


def _row_axis(values: Sequence[Any], counts: Sequence[int]) -> int | None:
    """The axis whose sizes are the numbers of rows, while all other sizes are equal."""
    shapes = [np.shape(each) for each in values]
    if len({len(each) for each in shapes}) > 1:
        return None
    for axis in range(len(shapes[0])):
        sizes = [each[axis] for each in shapes]
        others = {(*each[:axis], *each[axis + 1 :]) for each in shapes}
        if sizes == [*counts] and len(others) == 1:
            return axis
    return None


def _no_rows(name: str, values: Sequence[Any], counts: Sequence[int]) -> str:
    shape, batch = [*np.shape(values[0])], [*np.shape(values[-1])]
    sizes = f"{shape} for {counts[0]} and {batch} for {counts[-1]} rows"
    return (
        f"output {name!r} has no row axis (its shape is {shape if shape == batch else sizes}), and"
        " is not equal for all requests"
    )


def _difference(expected: Feed, got: Feed) -> str | None:
    for name, value in expected.items():
        if name not in got:
            return f"output {name!r} is missing"
        if (text := _differs(value, got[name])) is not None:
            return f"output {name!r} {text}"
    return None


def _differs(expected: Any, got: Any) -> str | None:
    """How two values differ beyond the tolerance of their dtype, as text."""
    one, other = np.asarray(expected), np.asarray(got)
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"has the shape {[*other.shape]} instead of {[*one.shape]}"
    if one.dtype.kind not in "fcV":
        unequal = one != other
        if not np.any(unequal):
            return None
        here, there = (each[unequal].tolist()[0] for each in (one, other))
        return f"has {there!r} instead of {here!r}"
    relative = TOLERANCES.get(one.dtype.name, _HALF)
    if one.dtype.kind == "V" or one.dtype.itemsize == 2:
        one, other = one.astype(np.float32), other.astype(np.float32)
    with np.errstate(all="ignore"):
        finite = np.isfinite(one)
        scale = np.max(np.abs(one[finite]), initial=0.0)
        distance = np.where(finite, np.abs(one - other), 0.0)
        same = np.where(finite, distance <= relative * scale, _same_special(one, other))
    if np.all(same):
        return None
    at = int(np.argmin(same))
    return f"has {other.flat[at]:.6g} instead of {one.flat[at]:.6g}"


def _same_special(one: Any, other: Any) -> Any:
    return (np.isnan(one) & np.isnan(other)) | (one == other)
