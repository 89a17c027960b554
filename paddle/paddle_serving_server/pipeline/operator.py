"""``Op``, ``RequestOp`` and ``ResponseOp``."""

from penstock import Op, RequestOp, ResponseOp

__all__ = ["Op", "RequestOp", "ResponseOp"]
