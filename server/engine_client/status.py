"""The state of a worker, or of all as of one, as `/health` and `/ready` tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# A worker is never absent or unloading: those are states of a model that has none.
State = Literal["absent", "loading", "ready", "silent", "restarting", "draining", "unloading", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """sentence is for people. fraction is how far loading has come. compiling names the drafting methods whose kernels
    are still being compiled; their requests run plain."""

    state: State = "loading"
    sentence: str = "starting the worker"
    fraction: float = 0.0
    compiling: tuple[str, ...] = ()
    worker_pid: int | None = None
    restarts: int = 0
    last_error: str | None = None


OnStatus = Callable[[EngineStatus], None]  # called with every change of status
