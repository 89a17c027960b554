"""``PipelineClient``, under the original's module name."""

from penstock import PipelineClient

__all__ = ["PipelineClient"]
