"""``LocalServiceHandler``: opens the model that an op runs in its own process.

Names and parameters are those of existing user code. Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

from penstock.errors import ModelError, WrongType
from penstock.request import Feed
from penstock.runtimes.cpus import usable_cpus
from penstock.runtimes.model import CONF_FILES, Model
from penstock.runtimes.runtime import ModelOptions, OptionProblem, model_problems

_THREADS: Final = 2
"""Default ``thread_num`` of a model on two CPUs or more; the original's default."""


def default_threads() -> int:
    """Return the default number of threads of a model: 2, or 1 on a single CPU."""
    return min(_THREADS, usable_cpus())


class LocalPredictor:
    """A Model with the calling convention of existing ops.

    Attributes:
        model: the model.
        feed_names_: aliases of the inputs.
        fetch_names_: aliases of the outputs.

    Thread rule: the Model's.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.feed_names_ = list(model.feed_names)
        self.fetch_names_ = [spec.alias for spec in model.outputs]

    def predict(
        self,
        feed: Feed | Sequence[Feed] | None = None,
        fetch: str | Sequence[str] | None = None,
        batch: bool = False,
        log_id: int = 0,
    ) -> Feed:
        """Run the model.

        Args:
            feed: input name -> array, list of texts, or list of numbers; or a list of one such
                dict. Not changed.
            fetch: one name or several; None for the ``fetch_list`` of the model.
            batch: whether the values have a batch axis; if not, one of one row is added.
            log_id: no effect.

        Returns:
            Output name -> array, under the requested names, always with a batch axis.

        Raises:
            WrongType: ``feed`` is not a dict, or a value is not an array.
            InputMismatch: names, dtypes or shapes do not fit, or an output is unknown.
            InferenceFailed: the library failed.
        """
        if isinstance(feed, list | tuple) and len(feed) == 1:
            feed = feed[0]
        if not isinstance(feed, Mapping):
            raise WrongType(f"feed must be a dict of input name to value, not {_kind(feed)}")
        if isinstance(fetch, str):
            fetch = [fetch]
        values: Feed = {}
        for name, value in feed.items():
            found = self.model.input(name)
            values[name] = found.as_batch(value, batch=batch) if found else value
        return self.model.run(values, fetch)


def _kind(feed: Any) -> str:
    return f"{len(feed)} of them" if isinstance(feed, list | tuple) else type(feed).__name__


class LocalServiceHandler:
    """Opens an op's model on first use, and makes predictors.

    The parameters are the keys of ``local_service_conf``; ``model_config`` is the model's folder or
    file, ``devices`` a text such as ``"0,1"``, ``fetch_names`` the outputs (None for all).
    ``workdir``, ``available_port_generator`` and ``use_profile`` concern started model servers and
    have no effect on a model in process. ``thread_num`` defaults to ``default_threads()``, or to
    the number that ``share_cpus`` sets.

    Raises:
        ModelError: ``client_type`` asks for a model server.

    Thread rule: thread-safe; each thread must use its own predictor.
    """

    def __init__(
        self,
        model_config: str,
        client_type: str = "local_predictor",
        workdir: str = "",
        thread_num: int | None = None,
        device_type: int = -1,
        devices: str = "",
        fetch_names: Sequence[str] | None = None,
        mem_optim: bool = True,
        ir_optim: bool | None = None,
        available_port_generator: Any = None,
        use_profile: bool = False,
        precision: str = "fp32",
        use_mkldnn: bool = False,
        mkldnn_cache_capacity: int = 0,
        mkldnn_op_list: Sequence[str] | None = None,
        mkldnn_bf16_op_list: Sequence[str] | None = None,
        min_subgraph_size: int = 3,
        dynamic_shape_info: Mapping[str, Any] | None = None,
        use_calib: bool = False,
    ) -> None:
        if client_type != "local_predictor":
            raise ModelError(
                f"client_type: {client_type!r} is not for a handler, which opens the model here:"
                " write it into op.<name>.local_service_conf, which starts a model server, or let"
                " the op call a running one through server_endpoints"
            )
        if not model_config:
            raise ModelError("local_service_conf.model_config: a model folder or file is needed")
        if not isinstance(devices, str):
            raise ModelError(f"local_service_conf.devices: quote it: '{devices}'")
        self._takes_share = thread_num is None
        self.options = ModelOptions(
            path=str(model_config),
            fetch_list=None if fetch_names is None else tuple(fetch_names),
            thread_num=default_threads() if thread_num is None else thread_num,
            device_type=device_type,
            devices=tuple(card for part in devices.split(",") if (card := part.strip())),
            mem_optim=mem_optim,
            ir_optim=ir_optim,
            precision=precision,
            use_calib=use_calib,
            use_mkldnn=use_mkldnn,
            mkldnn_cache_capacity=mkldnn_cache_capacity,
            mkldnn_op_list=tuple(mkldnn_op_list or ()),
            mkldnn_bf16_op_list=tuple(mkldnn_bf16_op_list or ()),
            min_subgraph_size=min_subgraph_size,
            dynamic_shape_info=dynamic_shape_info or None,
        )
        self._models: dict[tuple[str, ...], Model] = {}
        self._opening = Lock()

    def share_cpus(self, thread_num: int) -> None:
        """Set the number of threads if the constructor got none; call it before a model is open."""
        if self._takes_share:
            self.options = replace(self.options, thread_num=thread_num)

    def problems(self) -> list[OptionProblem]:
        """Return the problems of the options that can be found without opening the model."""
        return model_problems(self.options)

    def get_fetch_list(self) -> list[str]:
        """Return the outputs; opens the model if none were given."""
        if self.options.fetch_list is not None:
            return list(self.options.fetch_list)
        return list(self._model(0).fetch_names)

    def get_port_list(self) -> list[int]:
        """Return no ports: no model server is started."""
        return []

    def get_client(self, concurrency_idx: int = 0) -> LocalPredictor:
        """Make a predictor for one worker.

        The model is opened once per GPU; worker i uses GPU i modulo the number of GPUs.
        """
        return LocalPredictor(self._model(concurrency_idx).clone())

    def get_client_config(self) -> str:
        """Return the path of the file with aliases; it need not exist."""
        return str(Path(self.options.path) / CONF_FILES[0])

    def prepare_server(self) -> None:
        """Do nothing: the model runs in this process."""

    def start_server(self) -> None:
        """Do nothing: the model runs in this process."""

    def _model(self, concurrency_idx: int) -> Model:
        devices = self.options.devices
        card = devices[concurrency_idx % len(devices) :][:1] if devices else ()
        with self._opening:
            model = self._models.get(card)
            if model is None:
                model = self._models[card] = Model.open(replace(self.options, devices=card))
            return model
