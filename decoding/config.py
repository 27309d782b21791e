"""The engine's start-up configuration, frozen. Functions that resolve an "auto" value return a new configuration.

This file does not know flags or the environment: `server.config` reads those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from decoding.kernels.layout import BLOCK_LEN as BLOCK_LEN

Attention = Literal["auto", "exact", "sdpa", "reference", "padded", "triton"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KvDtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"]
Weights = Literal["auto", "int8", "int4"]

BUNDLED_MODEL = "gosling"
OWN_HEAD = "mtp"
NO_NAMES = ("auto", "none", OWN_HEAD)  # what may stand in place of a draft model's name


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything the engine needs to start.

    model: a hub name, a folder, a GGUF file, or "gosling" for the bundled model. gguf_file: which GGUF file of a folder
        or hub model. mmproj: the GGUF file of the tower and projector with which that of the model sees; None takes
        the one beside it, if any.
    kv_dtype: of the keys and values in the cache; "auto" takes that of the model's activations.
    weights: "int8" rounds the weights of linear layers to one byte each; "int4" rounds them, the head and the embedding
        to 4 and 6 bits in groups; "auto" leaves them in `dtype`, or as a file has packed them.
    max_running, max_batch_rows: the most requests and the most tokens of one packed forward, prefill included; None
    takes what suits the machine. max_step_ms: the most milliseconds that prompts may add to a step in which others
    decode. kv_slots: the tokens that the KV cache holds; None derives them from `kv_memory`, which is a share of the
    free memory, or bytes if above 1; None is 0.5 on a CPU and 0.85 on a GPU. prefix_cache: run the tokens that prompts
    have in common once. max_nodes: the largest draft budget that a request may ask for.
    prefix_dir, prefix_bytes: a folder in which blocks of finished prompts are kept, for later starts and other workers,
        and the most bytes of all its files; on a CPU alone.
    images: load the tower of a model that sees. image_bytes: of rows of pictures that are kept for later requests.
    session_bytes: the most bytes of each store of one session. session_bytes_per_key, session_bytes_in_all: the most
    bytes of all sessions of one key, and of all keys; the key over its bound, or else the key that holds most, loses
    its least recently used sessions. session_ttl: seconds that an idle session is kept.
    threads: None takes the quickest number. graphs: on a GPU, capture forwards of a few sizes at start and replay them.
    compile: compile the forwards before they are captured. exact: on a GPU, compute a token's logits to the same bits
    whatever is in its step, by slower kernels; None where a measurement says that they cost little. On a CPU logits
    have them anyway.
    tree: a file with a static tree for the stand method, which then grows none of its own.
    workers: the processes that serve this model on this machine; this one is number `place`. Each has its own GPU; on a
    CPU they share the cores and the cache's memory; they always share the memory of sessions. kept_slots: the room that
    an earlier process of this place had, which this one takes again if that much memory is free.
    models: that may be loaded on this machine at a time, which share the memory that a cache takes by default.
    tensor_parallel_size: the processes among which the layers of one copy of the model are divided, each on a device of
    its own or on a share of the CPU.
    draft_model: a hub name or folder, "none", "auto" or "mtp". "auto" takes what the model brings: the bundled model
    its own draft model, others the MTP head of their checkpoint if there is one that can be served; "mtp" insists on
    that head. draft_head: a hub name or folder of an EAGLE-3 or DFlash head, which drafts instead.
    """

    model: str = BUNDLED_MODEL
    gguf_file: str | None = None
    mmproj: str | None = None
    device: str = "auto"
    dtype: Dtype = "auto"
    kv_dtype: KvDtype = "auto"
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
    prefix_dir: str | None = None
    prefix_bytes: int = 8 * 2**30
    images: bool = True
    image_bytes: int = 256 * 2**20
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
    exact: bool | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    workers: int = 1
    place: int = 0
    kept_slots: int | None = None
    models: int = 1
    tensor_parallel_size: int = 1

    @property
    def num_processes(self) -> int:
        """Those of all workers, which share a CPU and its memory."""
        return self.workers * self.tensor_parallel_size
