"""Frozen start-up configuration. "auto" values are resolved by functions that return a new configuration.

Knows nothing of flags or the environment: `server.config` reads those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attention = Literal["auto", "exact", "sdpa", "reference", "padded", "triton"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Weights = Literal["auto", "int8"]

BLOCK_LEN = 16  # tokens of a block of the cache: the keys that fill a vector, see `decoding.attention.lanes`
BUNDLED_MODEL = "gosling"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything the engine needs to start.

    model: a hub name, a folder, or "gosling" for the bundled model. weights: "int8" rounds those of linear layers to
    a byte each; "auto" leaves them in `dtype`. max_running, max_batch_rows: most requests in, and
    most rows of, one packed forward, prefill included; None takes what suits the machine. max_step_ms: by how much
    prompts may delay a step of those that decode. kv_slots: tokens of room in the KV cache; None takes `kv_memory`: a
    share of the free memory, bytes if above 1; None is 0.5 on a CPU and 0.85 on a GPU. prefix_cache: run what prompts
    have in common once. max_nodes: the largest budget a request may ask for. session_bytes: each store of one session;
    session_bytes_per_key, session_bytes_in_all: beyond them the key, or the one that holds most, loses its least
    recently used sessions; session_ttl: seconds. threads: None takes the quickest number.
    graphs: on a GPU capture forwards of a few sizes at start and replay them; compile: and compile them before.
    tree: the file of a static tree that the stand method drafts along, instead of growing its own.
    workers: processes that serve this model on this machine; this one is number `place` of them. Each has a GPU of its
    own; on a CPU they share the cores and the memory of the cache, and everywhere that of sessions.
    draft_model: a hub name or folder, "none", or "auto": the bundled model's own draft with it, else none. draft_head:
    of an EAGLE-3 head that drafts instead, a hub name or folder.
    """

    model: str = BUNDLED_MODEL
    device: str = "auto"
    dtype: Dtype = "auto"
    weights: Weights = "auto"
    attention: Attention = "auto"
    max_model_len: int | None = None
    max_running: int | None = None
    max_waiting: int = 1024
    max_batch_rows: int | None = None
    max_step_ms: float = 100.0
    kv_slots: int | None = None
    kv_memory: float | None = None
    prefix_cache: bool = True
    max_nodes: int = 64
    session_bytes: int = 16 * 2**20
    session_bytes_per_key: int = 512 * 2**20
    session_bytes_in_all: int = 2**30
    session_ttl: float = 3600.0
    tree: str | None = None
    draft_model: str = "auto"
    draft_head: str | None = None
    threads: int | None = None
    graphs: bool = True
    compile: bool = False
    trust_remote_code: bool = False
    revision: str | None = None
    workers: int = 1
    place: int = 0
