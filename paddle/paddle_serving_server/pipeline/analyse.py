"""``Analyst``: reads profile lines."""

from penstock.observe.analyst import Analyst, OpAnalyst

__all__ = ["Analyst", "OpAnalyst"]
