"""``Analyst``, under the original's module name."""

from penstock_paddle.instruments.analyst import Analyst, OpAnalyst

__all__ = ["Analyst", "OpAnalyst"]
