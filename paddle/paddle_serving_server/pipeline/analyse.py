"""``Analyst``, under the original's module name."""

from penstock.observe.analyst import Analyst, OpAnalyst

__all__ = ["Analyst", "OpAnalyst"]
