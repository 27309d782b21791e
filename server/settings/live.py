"""Which settings a running server takes up when its sources are read again; the others need a restart.

Invariant: what is live is read from the service's settings for each request, or given to whoever holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel

from server.settings.file import key_of
from server.settings.requests import RequestSettings

T = TypeVar("T", bound=BaseModel)

AT_THE_START = {  # settings of requests that something is built from
    *("chat_template", "tool_parser", "reasoning_parser", "response_template"),
    *("response_store_bytes", "unknown_fields"),
}
QUEUE_LIMITS = {"max_waiting_per_key", "max_waiting_tokens", "max_waiting_tokens_per_key", "max_queue_seconds"}
LIVE = frozenset(
    (RequestSettings.model_fields.keys() - AT_THE_START)
    | QUEUE_LIMITS
    | {"max_body_parts", "coalesce_ms", "keep_alive_seconds", "drain_delay", "log_level"}
)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What differs from the settings that a server runs with, by the flags' names. changed: now in force."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]

    def __str__(self) -> str:
        told = [f"{', '.join(self.changed)} changed"] if self.changed else []
        if self.needs_restart:
            told.append(f"{', '.join(self.needs_restart)} needs a restart")
        return "; ".join(told) or "nothing has changed"


def taken_up(running: T, wanted: T) -> T:
    """The running settings with those wanted that need no restart."""
    return running.model_copy(update={name: getattr(wanted, name) for name in LIVE})


def reloaded(pairs: Sequence[tuple[BaseModel, BaseModel]]) -> Reloaded:
    """Compare the settings that run with those that are wanted now, of the server and of each model."""
    differing = [
        name
        for name in type(pairs[0][0]).model_fields
        if any(getattr(running, name) != getattr(wanted, name) for running, wanted in pairs)
    ]
    return Reloaded(
        tuple(key_of(name) for name in differing if name in LIVE),
        tuple(key_of(name) for name in differing if name not in LIVE),
    )
