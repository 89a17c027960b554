"""``LocalServiceHandler``."""

from penstock import LocalServiceHandler

__all__ = ["LocalServiceHandler"]
