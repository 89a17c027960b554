"""``WebService`` and ``Op``."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import penstock
from paddle_serving_server.process_info import recorded
from penstock import Op
from penstock_paddle import DEFAULTS

__all__ = ["Op", "WebService"]

_ONE_MODEL: Final = frozenset(
    {
        "create_rpc_config",
        "default_rpc_service",
        "get_app_instance",
        "get_prediction",
        "load_model_config",
        "prepare_server",
        "run_debugger_service",
        "run_rpc_service",
        "run_web_service",
        "set_gpus",
    }
)
"""Methods of the original's older ``WebService``, which served one model without a graph."""


class WebService(penstock.WebService):
    """``penstock.WebService`` with the original's defaults, for scripts that rely on them."""

    defaults: ClassVar[Mapping[str, object]] = DEFAULTS
    legacy: ClassVar[bool] = True

    def run_service(self) -> None:
        """See Penstock's; ``serve stop`` finds the service while it runs."""
        with recorded(self.ports.values(), "pipeline"):
            super().run_service()

    def __getattr__(self, name: str) -> Any:
        if name in _ONE_MODEL:
            raise AttributeError(
                f"WebService.{name} is not available in penstock-paddle: override"
                f" get_pipeline_response, or serve the model with"
                f" python -m paddle_serving_server.serve --model PATH"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
