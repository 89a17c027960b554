"""``PipelineClient``, and the future of its calls."""

from penstock import PipelineClient
from penstock.client import PredictFuture as PipelinePredictFuture

__all__ = ["PipelineClient", "PipelinePredictFuture"]
