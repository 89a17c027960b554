"""An op's model: its source, its problems, and its opening."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.client.remote_options import RemoteOptions
from penstock.client.tls import Security, Tls
from penstock.client.token import token_at
from penstock.config.load import Loaded
from penstock.config.op import OpConfig
from penstock.config.problems import Problem
from penstock.config.resolve import OpOptions
from penstock.errors import ModelError, PenstockError
from penstock.ops.op import Op
from penstock.repository.layout import EXAMPLES
from penstock.request import Feed
from penstock.runtimes.local_service import LocalServiceHandler
from penstock.runtimes.model import Model, read_client_conf
from penstock.runtimes.options import PLACEMENT, settled
from penstock.runtimes.prototxt import ModelConf
from penstock.runtimes.runtime import ModelOptions, OptionProblem, model_problems
from penstock.service.affinity import ONLY, show_only

_Source: TypeAlias = LocalServiceHandler | ModelOptions

OPENING: Final = "its model is being opened"
"""A step of a start, in messages."""

_CPU: Final = 0  # as device_type
_OF_OP: Final = frozenset({"encryption_key"})  # all other keys are of its local_service_conf


def _key_of(tls: Tls, error: OSError) -> str:
    """The configuration key of a file of TLS that cannot be used, with the reason."""
    keys = {
        os.path.abspath(file): key  # the certificate's, if it contains the private key
        for key, file in (
            ("server_key_file", tls.key_file),
            ("server_cert_file", tls.cert_file),
            ("server_ca_file", tls.ca_file),
        )
        if file is not None
    }
    return f"{keys.get(error.filename, 'server_ca_file')}: {error.filename}: {error.strerror}"


def problems_of_model(op: Op, options: OpOptions, loaded: Loaded) -> list[str]:
    """Reasons why the op's model cannot be opened, as far as they can be known without opening
    it.
    """
    handler: Any = op.local_service_handler
    if handler is not None and not isinstance(handler, LocalServiceHandler):
        return [
            f"constructor of op {op.name}: local_service_handler: must be a "
            f"LocalServiceHandler, got {type(handler).__name__}"
        ]
    if options.remote is not None:
        try:
            remote_conf(options.remote)
        except ModelError as error:
            return [f"op.{op.name}.client_config: {error}"]
        try:
            if options.remote.token is not None:
                token_at(options.remote.token)
        except ModelError as error:
            return [f"op.{op.name}.server_token: {error}"]
        tls = options.remote.tls
        if tls is not None:
            try:
                Security(tls)
            except OSError as error:
                return [f"op.{op.name}.{_key_of(tls, error)}"]
    started = options.starts_server
    model = options.model if started else _source(op, options, loaded.config.op.get(op.name))
    if model is None:
        return []
    if isinstance(model, LocalServiceHandler):
        where = f"constructor of op {op.name}: local_service_handler"
        problems = _of_this_machine(options, model.problems())
        return [f"{where}: {each.key}: {each.text}" for each in problems]
    return [
        f"model of op {op.name}: {each.text}"
        if each.key == "model_config" and model.path == str(op.model_path)
        else _placed(op, loaded, each)
        for each in _of_this_machine(options, model_problems(model))
    ]


def _of_this_machine(
    options: OpOptions, problems: Iterable[OptionProblem]
) -> Iterator[OptionProblem]:
    """Without those of the GPU, if another machine opens the model, which may have it."""
    for each in problems:
        if not (options.executor.elsewhere and each.key in PLACEMENT):
            yield each


def _placed(op: Op, loaded: Loaded, problem: OptionProblem) -> str:
    """A problem with the place where its key was written, such as a flag."""
    entry = ("op", op.name) if problem.key in _OF_OP else ("op", op.name, "local_service_conf")
    return loaded.place(Problem(path=(*entry, problem.key), text=problem.text))


def on_this_machine(op: Op, options: OpOptions, loaded: Loaded) -> tuple[OpOptions, str | None]:
    """The op's options, and those of its handler, adapted to this machine as ``missing_device``
    allows; and the changes, as texts for the operator.
    """
    config = loaded.config
    started = options.starts_server
    source: Any = options.model if started else _source(op, options, config.op.get(op.name))
    note = None
    if config.missing_device == "error":
        return options, None
    elsewhere = options.executor.elsewhere  # then its worker's machine decides, at the opening
    if isinstance(source, LocalServiceHandler):
        source.options = replace(source.options, missing_device="cpu")
        if not elsewhere:
            source.options, note = settled(source.options)
    elif isinstance(source, ModelOptions):
        model = replace(source, missing_device="cpu")
        if not elsewhere:
            model, note = settled(model, named=partial(_placed, op, loaded))
        options = replace(options, model=model)
    return options, note and f"op {op.name!r} {note}"


def open_model(
    op: Op, options: OpOptions, entry: OpConfig | None, turn: int = 0, *, alone: bool = False
) -> Model | None:
    """Open the op's model, if it has one.

    Args:
        op: the op.
        options: its options.
        entry: its entry in the configuration.
        turn: index of its GPU, modulo their number.
        alone: whether this process has only this worker; then it sees only that GPU, even if the op
            opens a model itself.

    Raises:
        ModelError: it cannot be opened.
    """
    source = _source(op, options, entry)
    cards = _cards(source, entry)
    if alone and cards and show_only(cards[turn % len(cards)], os.environ, sys.modules):
        cards = (ONLY,)
    if source is None:
        return None
    try:
        if isinstance(source, LocalServiceHandler):
            if alone:
                source.share_cpus(options.thread_num)
            return _handler_model(source, options, cards, turn)
        model = Model.open(_on_card(source, cards, turn))
    except PenstockError as error:
        raise ModelError(f"op {op.name!r}: {error}") from error
    for number, feed in enumerate(op.warmups, start=1):
        try:
            model.run(feed)
        except PenstockError as error:
            raise ModelError(f"op {op.name!r}: request {number} for warm-up: {error}") from error
    return model


def remote_conf(options: RemoteOptions) -> ModelConf | None:
    """The contents of a remote op's ``client_config``.

    Raises:
        ModelError: the file does not exist, or cannot be read.
    """
    if options.client_config is None:
        return None
    return read_client_conf(Path(options.client_config))


def card_of(op: Op, options: OpOptions, entry: OpConfig | None, turn: int) -> str | None:
    """The id of the GPU that ``open_model`` uses for this turn; None for the CPU."""
    cards = _cards(_source(op, options, entry), entry)
    return cards[turn % len(cards)] if cards else None


def _source(op: Op, options: OpOptions, entry: OpConfig | None) -> _Source | None:
    """The model of a flag, else of the op's constructor, else of YAML."""
    if options.remote is not None:
        return None
    if entry is None or "local_service_conf.model_config" not in entry.forced:
        handler: LocalServiceHandler | None = op.local_service_handler
        if handler is not None:
            return handler
    found = options.model
    if found is not None and op.dynamic_shape_info:
        found = replace(found, dynamic_shape_info=op.dynamic_shape_info)
    if found is not None and op.tensors is not None:
        found = replace(found, tensors=op.tensors)
    return found


def _cards(source: _Source | None, entry: OpConfig | None) -> Sequence[str]:
    if source is None:
        conf = None if entry is None else entry.local_service_conf
        return () if conf is None or conf.device_type == _CPU else conf.device_ids
    options = source.options if isinstance(source, LocalServiceHandler) else source
    return () if options.device_type == _CPU else options.devices


def _handler_model(
    handler: LocalServiceHandler, options: OpOptions, cards: Sequence[str], turn: int
) -> Model:
    """The handler's model; the op's ``fetch_list`` takes precedence over the handler's."""
    handler.prepare_server()
    handler.start_server()
    theirs = handler.options
    wanted = theirs.fetch_list if options.fetch_list is None else options.fetch_list
    if wanted == theirs.fetch_list and tuple(cards) == theirs.devices:
        return handler.get_client(turn).model  # its predictors elsewhere share it
    return Model.open(_on_card(replace(theirs, fetch_list=wanted), cards, turn))


def _on_card(options: ModelOptions, cards: Sequence[str], turn: int) -> ModelOptions:
    return replace(options, devices=(cards[turn % len(cards)],) if cards else ())


def version_examples(path: Path) -> list[Feed]:
    """The requests in the folder of a version, one a file.

    Raises:
        ModelError: one cannot be read.
    """
    found: list[Feed] = []
    for file in sorted((path / EXAMPLES).glob("*.npz")):
        try:
            with np.load(file, allow_pickle=False) as arrays:
                found.append(dict(arrays))
        except (OSError, ValueError, TypeError) as error:  # the last: it is one array
            raise ModelError(f"the example {file} cannot be read: {error}") from error
    return found
