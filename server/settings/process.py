"""Settings of the processes: streams that are silent, workers that are, how the server stops, and what it logs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

LogLevel = Literal["debug", "info", "warning", "error"]


class ProcessSettings(BaseModel):
    keep_alive_seconds: float = Field(
        default=15.0,
        gt=0,
        description="Seconds of silence after which a stream gets a comment line",
    )
    coalesce_ms: float = Field(
        default=0.0,
        ge=0,
        description="Milliseconds between two chunks of a stream, each padded, so that encrypted packets tell who "
        "watches them little about the tokens; 0 sends tokens as they come",
    )
    max_loaded: int | None = Field(
        default=None,
        ge=1,
        description="Most models that are loaded at a time; by default as many as the free memory holds",
    )
    standby: bool = Field(
        default=True, description="Keep a spare process (some 400 MB), from which a worker that died is soon replaced"
    )
    worker_timeout: float = Field(
        default=30.0,
        gt=0,
        description="Seconds without a message after which a worker is killed and replaced",
    )
    drain_delay: float = Field(
        default=5.0,
        ge=0,
        description="Seconds after SIGTERM during which the port still answers 503, so that routers notice; none where "
        "nobody is connected",
    )
    drain_seconds: float = Field(default=30.0, ge=0, description="Longest wait for running replies when stopping")
    log_level: LogLevel = Field(default="info", description="Least severe log lines shown")
