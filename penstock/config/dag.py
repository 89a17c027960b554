"""The keys of ``dag``: what holds for the whole graph."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from penstock.config.section import Section
from penstock.config.values import Count, OffCount, OffInt, Port


class TracerConfig(Section):
    """``dag.tracer``: the periodic report."""

    interval_s: OffInt = Field(
        default=None,
        description="Seconds between two reports of the tracer; below 1 is off."
        " Not yet available: a value that switches it on is answered with a warning.",
    )


class DagConfig(Section):
    """``dag``: what holds for the whole graph."""

    retry: Count = Field(
        default=1,
        description="Attempts of the whole graph for one request, in all;"
        " repeated only after a timeout, within the request's deadline.",
    )
    client_type: Literal["brpc", "grpc"] = Field(
        default="brpc", description="Accepted for old files; no effect. What counts is an op's own."
    )
    use_profile: bool = Field(
        default=False,
        description="Write profile lines."
        " Not yet available: switching it on is answered with a warning.",
    )
    channel_size: OffCount = Field(
        default=None, description="Most samples that wait for one op; 0 sets no limit of its own."
    )
    is_thread_op: bool = Field(
        default=True,
        description="Run ops in threads (true) or in processes of their own (false);"
        " `executor` says it for one op.",
    )
    tracer: TracerConfig = Field(default=TracerConfig(), description="The periodic report.")
    channel_recv_frist_arrive: bool = Field(
        default=False,
        description="An op with several inputs runs on the first that arrives"
        " instead of waiting for all. The spelling is the original's.",
    )
    enable_prometheus: bool = Field(
        default=False,
        description="Serve metrics for Prometheus."
        " Not yet available: switching it on is answered with a warning.",
    )
    prometheus_port: Port | None = Field(
        default=None, description="Port of the metrics; without it they stay off."
    )
