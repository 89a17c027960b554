"""An open model under its public names.

Checks that a feed fits the model before the library sees it, at the cost of one dict lookup and one
comparison of dtype and shape for each input.

Names: each input and output has a name inside the model and an alias (the same, unless the folder's
``serving_server_conf.prototxt`` has another). Both are accepted everywhere, and an output is
returned under the requested name. If one variable's alias is another's real name, the alias wins.

Lods: ``x.lod`` of an input ``x`` is passed to the model if the model has an input of that name (one
dimension, offsets as integers), or if ``x`` is lod in the model itself; otherwise it is dropped.
Lods of outputs are returned as ``output.lod``: see ``model_lods.py``.

With the libraries in ``UNCHECKED``, if no name in a configuration or ``fetch_list`` is an output of
the model, the names are assigned to outputs by position.

Source: ``docs/compatibility.md`` (the default ``process``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import (
    InferenceFailed,
    InputMismatch,
    MissingDevice,
    ModelError,
    PenstockError,
)
from penstock.request import Feed
from penstock.runtimes.declared import DeclaredSession
from penstock.runtimes.model_input import SHOWN, ModelInput, shown
from penstock.runtimes.model_lods import ModelLods
from penstock.runtimes.options import settled
from penstock.runtimes.prototxt import ModelConf, Variable, parse_model_conf
from penstock.runtimes.runtime import (
    UNCHECKED,
    ModelOptions,
    Session,
    open_session,
    runtime_of,
)
from penstock.tensor import LOD_SUFFIX, TensorSpec

CONF_FILES = ("serving_server_conf.prototxt", "serving_client_conf.prototxt")
"""Files with aliases; the first one in the model's folder is used."""


class Model:
    """An opened model under its public names.

    Args:
        session: runs the model.
        fetch_list: default outputs of ``run``, aliases or real names; None for all (with a
            ``conf``, those it lists), empty for none.
        conf: aliases and lod marks.
        runtime: the name of the session's library.
        fallback: why the model does not run on the requested GPU; None if it does.

    Raises:
        ModelError: ``fetch_list`` or ``conf`` has names that the model does not have.

    Thread rule: the session's; use one ``clone`` for each thread.
    """

    def __init__(
        self,
        session: Session,
        fetch_list: Sequence[str] | None = None,
        conf: ModelConf | None = None,
        runtime: str = "",
        fallback: str | None = None,
    ) -> None:
        self.session = session
        self.runtime = runtime
        self.fallback = fallback
        feeds = conf.feeds if conf else ()
        fetches = conf.fetches if conf else ()
        unchecked = runtime in UNCHECKED
        notes = [] if fallback is None else [fallback]
        if unchecked and _names_none(session.outputs, [one.name for one in fetches]):
            names = [one.name for one in fetches]
            fetches = tuple(
                replace(one, name=spec.name)
                for one, spec in zip(fetches, session.outputs, strict=False)
            )
            notes.append(_by_position(names, fetches))
        source = conf.source if conf else ""
        inputs = [replace(spec, shape_is_hint=unchecked) for spec in session.inputs]
        given = [replace(spec, shape_is_hint=unchecked) for spec in session.outputs]
        self.inputs = _with_aliases(inputs, feeds, f"{source}: feed_var", "inputs")
        self.outputs = _with_aliases(given, fetches, f"{source}: fetch_var", "outputs")
        if unchecked and _names_none(self.outputs, fetch_list or ()):
            named = list(zip(fetch_list or (), self.outputs, strict=False))
            variables = [Variable(name=spec.name, alias=name) for name, spec in named]
            self.outputs = _with_aliases(self.outputs, variables, "fetch_list", "outputs")
            note = _by_position([name for name, _ in named], [spec for _, spec in named])
            notes.append(f"fetch_list: {note}")
        self._notes = tuple(notes)
        self._inputs = _by_name([ModelInput(spec) for spec in self.inputs])
        self._outputs = _by_name(self.outputs)
        self._lods = ModelLods(session, self.outputs)
        if fetch_list is None:
            fetch_list = [one.alias for one in fetches] or [one.alias for one in self.outputs]
        self.fetch_names = tuple(fetch_list)
        self._fetch = self._real_names(self.fetch_names, ModelError, "fetch_list: ")

    @classmethod
    def open(cls, options: ModelOptions) -> Model:
        """Open a model file or folder, with the aliases of the folder's configuration.

        Raises:
            ModelError: the files, the configuration or the options are invalid.
        """
        fallback = None
        try:
            session = open_session(options)
        except MissingDevice as error:
            options, fallback = settled(options, str(error))
            if fallback is None:
                raise
            session = open_session(options)
        path = Path(options.path)
        conf, runtime, tensors = read_model_conf(path), runtime_of(path), options.tensors
        if tensors is not None:
            aliases = {}
            if conf is not None:
                aliases = {each.alias: each.name for each in (*conf.feeds, *conf.fetches)}
                conf = replace(
                    conf,
                    feeds=() if tensors.inputs else conf.feeds,
                    fetches=() if tensors.outputs else conf.fetches,
                )
            checked = runtime not in UNCHECKED
            session = DeclaredSession(session, tensors, aliases, checked=checked)
        return cls(session, options.fetch_list, conf, runtime, fallback)

    @property
    def feed_names(self) -> tuple[str, ...]:
        """The aliases of the inputs, in the model's order."""
        return tuple(spec.alias for spec in self.inputs)

    @property
    def fetched(self) -> tuple[TensorSpec, ...]:
        """The outputs of ``run``, under the names of ``fetch_names``."""
        return tuple(replace(self._outputs[name], alias=name) for name in self.fetch_names)

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings for the operator, to be logged once."""
        return (*self._notes, *self.session.notes)

    def clone(self) -> Model:
        """Make a model for another thread."""
        twin = copy(self)
        twin.session = self.session.clone()
        return twin

    def input(self, name: str) -> ModelInput | None:
        """Return the input with this alias or real name; None if there is none."""
        return self._inputs.get(name)

    def run(self, feed: Feed, fetch: Sequence[str] | None = None) -> Feed:
        """Check a feed, run it, and name the outputs.

        Args:
            feed: exactly the model's inputs, each an ndarray or a list that starts with a text,
                and any ``x.lod``; with batch axis. Neither changed nor kept.
            fetch: names of outputs; None for the ``fetch_list`` given on opening.

        Returns:
            One array for each requested name, under that name.

        Raises:
            InputMismatch: names (``invalid arg list``), dtypes, ranks or fixed dimensions do not
                fit, or the library failed and a shape differs from a declared hint or axes of one
                name differ in size, or an output is unknown; a retry does not help.
            WrongType: a value is not an array (``feed_batch must be npdata``).
            InferenceFailed: the library failed, most often because of the values.
        """
        inputs = self._inputs
        lods = self._lods
        feeds = {}
        given = 0
        given_lods: Feed | None = None
        for key, value in feed.items():
            found = inputs.get(key)
            if found is None:
                if type(key) is str and key.endswith(LOD_SUFFIX):
                    given_lods = given_lods or {}
                    given_lods[key] = value
                    continue
                raise self._wrong_names(feed)
            feeds[found.name] = found.fit(value)
            given += 1
        if given != len(self.inputs) or len(feeds) != given:
            raise self._wrong_names(feed)
        if fetch is None:
            names, real = self.fetch_names, self._fetch
        else:
            names, real = tuple(fetch), self._real_names(fetch, InputMismatch)
        if not real:
            return {}
        if given_lods:
            lods.feed(given_lods, inputs, feeds)
        wanted = [*real, *lods.beside(real, given_lods)] if lods else real
        try:
            fetched = self.session.run(feeds, wanted)
        except (InferenceFailed, InputMismatch) as error:
            unexpected = self._unexpected(feeds)
            if unexpected is not None:
                raise InputMismatch(f"{unexpected}: {error}") from error
            unequal = self._unequal_axes(feeds) if isinstance(error, InferenceFailed) else None
            if unequal is None:
                raise
            raise InputMismatch(f"invalid arg list: {unequal}") from error
        result: Feed = dict(zip(names, fetched, strict=not lods))
        if lods:
            found = lods.of(dict(zip(wanted, fetched, strict=True)), given_lods)
            for name, own in zip(names, real, strict=True):
                if own in found:
                    result.setdefault(name + LOD_SUFFIX, found[own])
        return result

    def _real_names(
        self, names: Iterable[str], error: type[PenstockError], where: str = ""
    ) -> list[str]:
        names = list(names)
        unknown = [name for name in names if name not in self._outputs]
        if unknown:
            raise error(
                f"{where}invalid arg list: the model has outputs"
                f" {shown(spec.alias for spec in self.outputs)}, requested {shown(unknown)}"
            )
        if len(set(names)) != len(names):
            raise error(f"{where}invalid arg list: an output is requested twice: {shown(names)}")
        return [self._outputs[name].name for name in names]

    def _wrong_names(self, feed: Mapping[str, Any]) -> InputMismatch:
        got = [
            key
            for key in feed
            if key in self._inputs or not (type(key) is str and key.endswith(LOD_SUFFIX))
        ]
        return InputMismatch(
            f"invalid arg list: the model takes {shown(self.feed_names)}, got {shown(got)}"
        )

    def _unexpected(self, feeds: Mapping[str, Any]) -> InputMismatch | None:
        """The error of the first value whose shape differs from a hint, if the model failed."""
        for spec in self.inputs:
            if spec.shape_is_hint:
                declared: ModelInput = self._inputs[spec.alias]
                found = declared.unexpected(np.shape(feeds[spec.name]))
                if found is not None:
                    return found
        return None

    def _unequal_axes(self, feeds: Mapping[str, Any]) -> str | None:
        """Two inputs whose axes have one name and different sizes, as a text.

        It is asked only after a failure: with one of the sizes 1, a model may broadcast.
        """
        seen: dict[str, tuple[str, int]] = {}
        for spec in self.inputs:
            for axis, size in zip(spec.axes, np.shape(feeds[spec.name]), strict=False):
                if axis is None:
                    continue
                other, expected = seen.setdefault(axis, (spec.alias, size))
                if size != expected:
                    return (
                        f"the axis {axis!r} of input {spec.alias!r} has the size {size},"
                        f" and that of {other!r} the size {expected}"
                    )
        return None

    def __repr__(self) -> str:
        return f"<Model {list(self.feed_names)} -> {list(self.fetch_names)} by {self.session!r}>"


def read_model_conf(folder: Path) -> ModelConf | None:
    """Read the configuration in a model folder; None without one, or if the path is a file.

    Raises:
        ModelError: it cannot be read; the text names file and line.
    """
    for name in CONF_FILES:
        file = folder / name
        if folder.is_dir() and file.is_file():
            return _read_conf(file)
    return None


def read_client_conf(path: Path) -> ModelConf:
    """Read the configuration of a client from its file or folder.

    Raises:
        ModelError: it is missing or cannot be read; the text names file and line.
    """
    return _read_conf(path / CONF_FILES[1] if path.is_dir() else path)


def _read_conf(file: Path) -> ModelConf:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error
    return parse_model_conf(text, str(file))


def _with_aliases(
    specs: Sequence[TensorSpec], variables: Sequence[Variable], where: str, kind: str
) -> tuple[TensorSpec, ...]:
    """Add the variables' aliases and lod marks to specs; shapes and types stay the model's."""
    by_name = {one.name: one for one in variables}
    real = {spec.name for spec in specs}
    unknown = [name for name in by_name if name not in real]
    if unknown:
        raise ModelError(f"{where} names {shown(unknown)}, the model has {kind} {shown(real)}")
    named = []
    for spec in specs:
        one = by_name.get(spec.name)
        if one:
            spec = replace(spec, alias=one.alias, is_lod=spec.is_lod or one.is_lod)
        named.append(spec)
    aliases = [spec.alias for spec in named]
    if len(by_name) != len(variables) or len(set(aliases)) != len(aliases):
        raise ModelError(f"{where} has a duplicate name or alias: {shown(aliases)}")
    return tuple(named)


def _names_none(outputs: Sequence[TensorSpec], names: Sequence[str]) -> bool:
    """Whether there are names, none is an output's, and there are at least as many outputs."""
    known = {name for spec in outputs for name in (spec.name, spec.alias)}
    return 0 < len(names) <= len(outputs) and known.isdisjoint(names)


def _by_position(names: Sequence[str], outputs: Sequence[TensorSpec | Variable]) -> str:
    pairs = [*zip(names, outputs, strict=True)][:SHOWN]
    which = ", ".join(
        f"{name!r} is {one.name!r}"
        + (f" (alias {one.alias!r})" if one.alias not in (name, one.name) else "")
        for name, one in pairs
    )
    return f"the model has no outputs of these names, which are matched by position: {which}"


def _by_name(items: Sequence[Any]) -> dict[str, Any]:
    return {item.name: item for item in items} | {item.alias: item for item in items}
