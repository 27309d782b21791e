"""How the engine does: loading, ready, silent, restarting, draining or failed. What `/health` and `/ready` say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["loading", "ready", "silent", "restarting", "draining", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """`sentence` is for people; `fraction` is how far loading has come; `compiling`: the drafting methods whose
    requests still run plain, since what they call is being compiled."""

    state: State = "loading"
    sentence: str = "starting the worker"
    fraction: float = 0.0
    compiling: tuple[str, ...] = ()
    worker_pid: int | None = None
    restarts: int = 0
    last_error: str | None = None


OnStatus = Callable[[EngineStatus], None]  # called with every change of status
