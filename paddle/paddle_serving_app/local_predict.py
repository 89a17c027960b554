"""``LocalPredictor``: runs a model in this process."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock import LocalServiceHandler
from penstock.errors import ModelError
from penstock.runtimes import local_service

__all__ = ["LocalPredictor"]

_CPU, _GPU, _TENSORRT = 0, 1, 2


class LocalPredictor:
    """Opens a model and runs it. Not thread-safe."""

    def __init__(self) -> None:
        self._predictor: local_service.LocalPredictor | None = None

    def load_model_config(
        self,
        model_path: str,
        use_gpu: bool = False,
        gpu_id: int | str | Sequence[int] = 0,
        use_profile: bool = False,
        thread_num: int = 1,
        mem_optim: bool = True,
        ir_optim: bool = False,
        use_trt: bool = False,
        use_lite: bool = False,
        use_xpu: bool = False,
        precision: str = "fp32",
        use_mkldnn: bool = False,
        mkldnn_cache_capacity: int = 0,
        mkldnn_op_list: Sequence[str] | None = None,
        mkldnn_bf16_op_list: Sequence[str] | None = None,
        use_feed_fetch_ops: bool = False,
        use_ascend_cl: bool = False,
        min_subgraph_size: int = 3,
        dynamic_shape_info: Mapping[str, Any] | None = None,
        use_calib: bool = False,
    ) -> None:
        """Open a model.

        Args:
            model_path: its folder.
            use_gpu: whether the model runs on a GPU.
            gpu_id: index of the GPU; the first one of a list is used.
            use_profile: no effect.
            thread_num: number of threads of Paddle Inference.
            mem_optim: whether Paddle Inference reuses memory.
            ir_optim: whether Paddle Inference optimises the graph.
            use_trt: whether TensorRT runs the model.
            use_lite: not available.
            use_xpu: not available.
            precision: fp32, fp16, bf16 or int8.
            use_mkldnn: whether oneDNN runs the model.
            mkldnn_cache_capacity: for oneDNN.
            mkldnn_op_list: for oneDNN.
            mkldnn_bf16_op_list: for oneDNN.
            use_feed_fetch_ops: no effect.
            use_ascend_cl: not available.
            min_subgraph_size: for TensorRT.
            dynamic_shape_info: for TensorRT.
            use_calib: for TensorRT.

        Raises:
            ModelError: the model cannot be opened with these options.
        """
        for flag, value in {
            "use_lite": use_lite,
            "use_xpu": use_xpu,
            "use_ascend_cl": use_ascend_cl,
        }.items():
            if value:
                raise ModelError(f"{flag} is not available in penstock-paddle")
        cards = gpu_id if isinstance(gpu_id, int | str) else gpu_id[0]
        self._predictor = LocalServiceHandler(
            model_path,
            thread_num=thread_num,
            device_type=(_TENSORRT if use_trt else _GPU) if use_gpu else _CPU,
            devices=str(cards).split(",")[0] if use_gpu else "",
            mem_optim=mem_optim,
            ir_optim=ir_optim,
            precision=precision,
            use_mkldnn=use_mkldnn,
            mkldnn_cache_capacity=mkldnn_cache_capacity,
            mkldnn_op_list=mkldnn_op_list,
            mkldnn_bf16_op_list=mkldnn_bf16_op_list,
            min_subgraph_size=min_subgraph_size,
            dynamic_shape_info=dynamic_shape_info,
            use_calib=use_calib,
        ).get_client()

    @property
    def feed_names_(self) -> list[str]:
        """Aliases of the inputs."""
        return self._opened().feed_names_

    @property
    def fetch_names_(self) -> list[str]:
        """Aliases of the outputs."""
        return self._opened().fetch_names_

    def predict(
        self,
        feed: Any = None,
        fetch: str | Sequence[str] | None = None,
        batch: bool = False,
        log_id: int = 0,
    ) -> dict[str, Any]:
        """Run the model; see ``penstock.runtimes.local_service.LocalPredictor``."""
        return self._opened().predict(feed, fetch, batch, log_id)

    def _opened(self) -> local_service.LocalPredictor:
        if self._predictor is None:
            raise ModelError("call load_model_config() first")
        return self._predictor
