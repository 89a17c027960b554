"""``WebService`` and ``Op``."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from paddle_serving_server.one_model import OneModelService
from paddle_serving_server.process_info import recorded
from penstock import Op
from penstock_paddle import DEFAULTS

__all__ = ["Op", "WebService"]

_MISSING: Final = frozenset(
    {"create_rpc_config", "default_rpc_service", "get_app_instance", "get_prediction"}
)
"""Single-model methods of the original that belong to its two servers."""


class WebService(OneModelService):
    """``penstock.WebService`` with the original's defaults, for scripts that rely on them."""

    defaults: ClassVar[Mapping[str, object]] = DEFAULTS
    legacy: ClassVar[bool] = True

    def run_service(self) -> None:
        """See Penstock's; ``serve stop`` finds the service while it runs."""
        with recorded(self.ports.values(), "pipeline"):
            super().run_service()

    def __getattr__(self, name: str) -> Any:
        if name in _MISSING:
            raise AttributeError(
                f"WebService.{name} is not available in penstock-paddle: call run_web_service, or"
                f" serve the model with python -m paddle_serving_server.serve --model PATH"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
