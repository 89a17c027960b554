"""The single-model methods of ``WebService``: one model without a graph, and their JSON format.

    service = Uci(name="uci")
    service.load_model_config("uci_housing_model")
    service.prepare_server(workdir="workdir", port=9393)
    service.run_rpc_service()
    service.run_web_service()

``POST /uci/prediction`` takes ``{"feed": [{"x": [...]}], "fetch": ["price"]}`` and answers
``{"result": {"price": [[...]]}}``. ``preprocess`` and ``postprocess`` of the service run around
the model; a ValueError in either, or input that the model does not take, is answered with status
200 and its text as the result. The original started a model server behind a web server; here
the model runs in the workers of the graph's only op.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np

import penstock
from penstock import Op, RequestOp
from penstock.errors import InputMismatch, WrongType

_OP: Final = "prediction"
_DEFAULT_PORT: Final = 9393
_THREADS: Final = 4
_CPU, _GPU, _TENSORRT = 0, 1, 2

Instances = Sequence[Mapping[str, Any]]


class OneModelService(penstock.WebService):
    """See the module.

    Attributes:
        feed_vars, fetch_vars: the model's inputs and outputs by their aliases, as
            ``serving_server_conf.prototxt`` describes them.
    """

    feed_vars: Mapping[str, Any] = {}
    fetch_vars: Mapping[str, Any] = {}
    _model: Path | None = None
    _cards: str = ""
    _config: dict[str, Any] | None = None

    def load_model_config(
        self,
        server_config_dir_paths: str | Sequence[str],
        client_config_path: str | None = None,
    ) -> None:
        """Set the model to serve.

        Args:
            server_config_dir_paths: its folder.
            client_config_path: a file of its aliases; by default the one in the folder.

        Raises:
            ValueError: it is no folder, or there are several, or no file of aliases.
            ModelError: the file cannot be read.
        """
        from penstock.runtimes.model import read_client_conf, read_model_conf

        given = server_config_dir_paths
        folders = [Path(each) for each in ([given] if isinstance(given, str | Path) else given)]
        if len(folders) != 1 or not folders[0].is_dir():
            raise ValueError(
                f"load_model_config takes the folder of one model, got {given!r}: serve several"
                f" with python -m paddle_serving_server.serve --model A B"
            )
        (self._model,) = folders
        if client_config_path is not None:
            conf = read_client_conf(Path(client_config_path))
        else:
            found = read_model_conf(self._model)
            if found is None:
                raise ValueError(f"{self._model} has no serving_server_conf.prototxt")
            conf = found
        self.feed_vars = {each.alias: each for each in conf.feeds}
        self.fetch_vars = {each.alias: each for each in conf.fetches}

    def set_gpus(self, gpus: str | int | Sequence[int]) -> None:
        """Set the GPU ids of the model, such as ``"0,1"``; without this call it runs on the CPU."""
        self._cards = gpus if isinstance(gpus, str) else str(gpus).strip("[]()")

    def prepare_server(
        self,
        workdir: str = "",
        port: int = _DEFAULT_PORT,
        device: str = "cpu",
        precision: str = "fp32",
        use_calib: bool = False,
        use_lite: bool = False,
        use_xpu: bool = False,
        ir_optim: bool = False,
        thread_num: int = _THREADS,
        mem_optim: bool = True,
        use_trt: bool = False,
        gpu_multi_stream: bool = False,
        runtime_thread_num: int | None = None,
        batch_infer_size: int | None = None,
        gpuid: int | None = None,
    ) -> None:
        """Set how the model runs, and the HTTP port.

        Args:
            workdir: no effect.
            port: of HTTP; gRPC takes the next free one.
            device: no effect: see ``set_gpus``.
            precision: fp32, fp16, bf16 or int8.
            use_calib: whether int8 is calibrated.
            use_lite: not available.
            use_xpu: not available.
            ir_optim: whether the library optimises the graph.
            thread_num: how many requests run at once.
            mem_optim: whether the library reuses memory.
            use_trt: whether the model runs by TensorRT.
            gpu_multi_stream: not available.
            runtime_thread_num: no effect: a request is never joined with another.
            batch_infer_size: no effect.
            gpuid: the GPU id, if ``set_gpus`` was not called.

        Raises:
            ValueError: no model was loaded, or something is not available.
        """
        from penstock.service.model_server import places

        if self._model is None:
            raise ValueError("call load_model_config() before prepare_server()")
        for flag, value in {
            "use_lite": use_lite,
            "use_xpu": use_xpu,
            "gpu_multi_stream": gpu_multi_stream,
        }.items():
            if value:
                raise ValueError(f"{flag} is not available in penstock-paddle")
        cards = self._cards or ("" if gpuid is None or gpuid < 0 else str(gpuid))
        model = {
            "model_config": str(self._model),
            "devices": cards,
            "device_type": (_TENSORRT if use_trt else _GPU) if cards else _CPU,
            "precision": precision,
            "use_calib": use_calib,
            "ir_optim": ir_optim,
            "mem_optim": mem_optim,
        }
        op = {**places(str(self._model), thread_num), "local_service_conf": model}
        self._config = {"http_port": port, "op": {_OP: op}}

    def run_rpc_service(self) -> None:
        """Check only: the model runs in the web service itself.

        Raises:
            ValueError: ``prepare_server`` was not called.
        """
        self._prepared()

    def run_debugger_service(self, gpu: bool = False) -> None:
        """Like ``run_rpc_service``; the model runs on the CPU unless ``gpu``."""
        if not gpu:
            model = self._prepared()["op"][_OP]["local_service_conf"]
            model |= {"devices": "", "device_type": _CPU}

    def run_web_service(self) -> None:
        """Serve until SIGTERM or SIGINT. Returns after the drain.

        Raises:
            ValueError: ``prepare_server`` was not called.
            StartupError: the service cannot start.
        """
        config = self._prepared()
        self.applications.append(_route)
        self.prepare_pipeline_config(yml_dict=config)
        self.run_service()

    def get_pipeline_response(self, read_op: RequestOp) -> Op:
        """The graph: one op with the model."""
        if self._config is None:
            return super().get_pipeline_response(read_op)
        return _Prediction(self, read_op)

    def preprocess(self, feed: Any = (), fetch: Any = ()) -> tuple[Any, Any, bool]:
        """Override: make the model's feed of one request.

        Args:
            feed: the request's: a list with a dict for each row.
            fetch: aliases of outputs.

        Returns:
            the feed, the outputs to fetch, and whether the feed has a batch axis.
        """
        rows: dict[str, list[Any]] = {}
        for instance in feed:
            for alias, value in instance.items():
                if alias not in self.feed_vars:
                    raise ValueError(f"Wrong feed name: {alias}")
                shape = self.feed_vars[alias].shape
                rows.setdefault(alias, []).append(np.array(value).reshape(shape))
        return {alias: np.stack(values) for alias, values in rows.items()}, fetch, True

    def postprocess(self, feed: Any = (), fetch: Any = (), fetch_map: Any = None) -> Any:
        """Override: make the result of the model's outputs.

        Args:
            feed: the request's.
            fetch: aliases of outputs.
            fetch_map: arrays by alias.
        """
        return {alias: array.tolist() for alias, array in fetch_map.items()}

    def _prepared(self) -> dict[str, Any]:
        if self._config is None:
            raise ValueError("call prepare_server() first")
        return self._config


class _Prediction(Op):
    """The model with the hooks of its service around it."""

    joins_feeds = False

    def __init__(self, service: OneModelService, read_op: RequestOp) -> None:
        super().__init__(name=_OP, input_ops=[read_op])
        self._service = service

    def preprocess(
        self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0
    ) -> dict[str, Any]:
        """The request, if it is one."""
        (request,) = input_dicts.values()
        for name in ("feed", "fetch"):
            if name not in request:
                raise InputMismatch(
                    f'the body lacks {name!r}: send {{"feed": [{{...}}], "fetch": [...]}}'
                )
        return dict(request)

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> dict[str, Any]:
        """Hooks and model for one request."""
        return {"result": [self._result(each, typical_logid) for each in feed_batch]}

    def postprocess(
        self, input_data: dict[str, Any], fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> dict[str, Any]:
        """The answer."""
        (result,) = fetch_data["result"]
        return {"result": result}

    def _result(self, request: Mapping[str, Any], log_id: int) -> Any:
        service = self._service
        try:
            feed, fetch, is_batch = service.preprocess(request["feed"], request["fetch"])
            if isinstance(feed, dict):
                feed.pop("fetch", None)
            if len(feed) == 0:
                raise ValueError("empty input")
            found = self.client.predict(feed=feed, fetch=fetch, batch=is_batch, log_id=log_id)
            return service.postprocess(feed=request["feed"], fetch=fetch, fetch_map=found)
        except (ValueError, InputMismatch, WrongType) as error:
            return str(error)


def _route(engine: Any) -> Any:
    """The application with the route, whose path another one has for all names."""
    from penstock.api.plain import PlainApplication, PlainRoute

    (graph,) = engine.graphs
    path = f"/{quote(graph.name)}/prediction"
    summary = "Run the model on the rows in feed; answer the outputs in fetch."
    return PlainApplication(
        engine, routes=[PlainRoute(path=path, graph=graph.name, summary=summary)]
    )
