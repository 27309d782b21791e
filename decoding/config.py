"""Frozen start-up configuration. "auto" values are resolved by functions that return a new configuration.

Knows nothing of flags or the environment: `server.config` reads those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attention = Literal["auto", "exact", "sdpa", "reference"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

BUNDLED_MODEL = "gosling"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything the engine needs to start.

    model: a hub name, a folder, or "gosling" for the bundled model. max_batch_rows: most rows of one
    packed forward, prefill included. prefill_chunk: most prompt rows one request brings to one step.
    kv_slots: tokens of room in the KV store; None takes `kv_memory_share` of the free memory.
    max_nodes: the largest budget a request may ask for. session_bytes: each store of one session;
    max_sessions: beyond that whoever has most loses the least recently used. threads: None takes the quickest number.
    tree: the file of a static tree that the stand method drafts along, instead of growing its own.
    draft_model: a hub name or folder, "none", or "auto": the bundled model's own draft with it, else none.
    """

    model: str = BUNDLED_MODEL
    device: str = "auto"
    dtype: Dtype = "auto"
    attention: Attention = "auto"
    max_model_len: int | None = None
    max_running: int = 32
    max_waiting: int = 1024
    max_batch_rows: int = 512
    prefill_chunk: int = 256
    kv_slots: int | None = None
    kv_memory_share: float = 0.3
    max_nodes: int = 64
    session_bytes: int = 16 * 2**20
    max_sessions: int = 64
    session_ttl: float = 3600.0
    tree: str | None = None
    draft_model: str = "auto"
    threads: int | None = None
    trust_remote_code: bool = False
    revision: str | None = None

    @property
    def max_open(self) -> int:
        """The most requests that have not ended: a further one is refused."""
        return self.max_running + self.max_waiting
