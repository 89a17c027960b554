"""``LocalServiceHandler``, under the original's module name."""

from penstock import LocalServiceHandler

__all__ = ["LocalServiceHandler"]
