"""``PipelineClient``."""

from penstock import PipelineClient

__all__ = ["PipelineClient"]
