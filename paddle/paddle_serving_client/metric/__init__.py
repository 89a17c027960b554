"""Metrics of binary classifiers: ``acc`` and ``auc``."""

from paddle_serving_client.metric.acc import acc
from paddle_serving_client.metric.auc import auc

__all__ = ["acc", "auc"]
