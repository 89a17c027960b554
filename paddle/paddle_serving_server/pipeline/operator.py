"""``Op``, ``RequestOp`` and ``ResponseOp``, under the original's module name."""

from penstock import Op, RequestOp, ResponseOp

__all__ = ["Op", "RequestOp", "ResponseOp"]
