"""``PipelineServer``."""

from collections.abc import Mapping
from typing import ClassVar

import penstock
from penstock_paddle import DEFAULTS

__all__ = ["PipelineServer"]


class PipelineServer(penstock.PipelineServer):
    """``penstock.PipelineServer`` with the original's defaults, for scripts that rely on them."""

    defaults: ClassVar[Mapping[str, object]] = DEFAULTS
    legacy: ClassVar[bool] = True
