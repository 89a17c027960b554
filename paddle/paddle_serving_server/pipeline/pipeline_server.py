"""``PipelineServer``."""

from collections.abc import Mapping
from typing import ClassVar

import penstock
from paddle_serving_server.process_info import recorded
from penstock_paddle import DEFAULTS

__all__ = ["PipelineServer"]


class PipelineServer(penstock.PipelineServer):
    """``penstock.PipelineServer`` with the original's defaults, for scripts that rely on them."""

    defaults: ClassVar[Mapping[str, object]] = DEFAULTS
    legacy: ClassVar[bool] = True

    def run_server(self) -> None:
        """See Penstock's; ``serve stop`` finds the service while it runs."""
        with recorded(self.ports.values(), "pipeline"):
            super().run_server()
