"""Settings of the engine, and of what may wait for it.

The engine's options have the same names here as in `EngineConfig`, so that `engine_config` copies them without knowing
what they mean.
"""

from __future__ import annotations

from dataclasses import fields

from pydantic import BaseModel, Field, field_validator

from decoding.config import BUNDLED_MODEL, Attention, Dtype, EngineConfig, KvDtype, Weights
from server.settings.memory import SMALLEST_CACHE, amount_of

ENGINE = EngineConfig()  # the settings take their defaults from here
ENGINE_OPTIONS = frozenset(option.name for option in fields(EngineConfig)) - {"place", "kept_slots", "models"}


class EngineSettings(BaseModel):
    model: str = Field(
        default=BUNDLED_MODEL, description="A Hugging Face model name, a folder, a GGUF file, or the bundled model"
    )
    gguf_file: str | None = Field(
        default=ENGINE.gguf_file, description="Which GGUF file of a folder or hub model; of a split one the first part"
    )
    mmproj: str | None = Field(
        default=ENGINE.mmproj,
        description="GGUF file of the tower and projector with which a GGUF model sees; by default the one beside it",
    )
    revision: str | None = Field(default=ENGINE.revision, description="Branch, tag or commit of a hub model")
    trust_remote_code: bool = Field(
        default=ENGINE.trust_remote_code, description="Allow a model to bring its own Python code"
    )
    keep_alive: float | None = Field(
        default=None,
        description="Seconds that the model stays loaded after its last request; 0: not at all, -1: until another "
        "needs its room. By default -1, and 300 where a server has several models",
    )
    preload: bool | None = Field(
        default=None,
        description="Load the model when the server starts instead of at its first request; by default where it is the "
        "only one",
    )
    device: str = Field(default=ENGINE.device, description="auto, cpu, cuda or cuda:N")
    dtype: Dtype = Field(default=ENGINE.dtype, description="Number format of the weights")
    kv_dtype: KvDtype = Field(
        default=ENGINE.kv_dtype,
        description="Number format of the cache's keys and values, on a CPU: float32, bfloat16, float16, int8 (a scale "
        "for each 32) or fp8; on a GPU of compute capability 8.9 or more: fp8; auto: that of --dtype. With AVX512_BF16 "
        "bfloat16 halves the time over long prompts",
    )
    weights: Weights = Field(
        default=ENGINE.weights,
        description="int8: linear layers store a byte per weight; int4: half a byte (both on any CPU); "
        "auto: they use --dtype",
    )
    attention: Attention = Field(
        default=ENGINE.attention, description="Tree attention kernel; exact is the default on a CPU, triton on a GPU"
    )
    max_model_len: int | None = Field(
        default=ENGINE.max_model_len, ge=1, description="Longest prompt plus reply, in tokens"
    )
    max_running: int | None = Field(
        default=ENGINE.max_running,
        ge=1,
        description="Most requests that run at the same time; by default what suits the machine",
    )
    max_waiting: int = Field(
        default=ENGINE.max_waiting, ge=0, description="Most requests that may wait; a further one is answered 429"
    )
    max_waiting_per_key: int | None = Field(
        default=None, ge=0, description="Most waiting requests of one API key; by default --max-waiting"
    )
    max_waiting_tokens: int | None = Field(
        default=None, ge=1, description="Most prompt tokens of all waiting requests together; by default no limit"
    )
    max_waiting_tokens_per_key: int | None = Field(
        default=None, ge=1, description="Most prompt tokens of one API key's waiting requests; by default no limit"
    )
    max_request_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Most bytes that open requests may hold in a worker beside the KV cache; by default a quarter of "
        "the memory that is free at the start",
    )
    max_request_bytes_per_key: int | None = Field(
        default=None, ge=1, description="Most bytes that those of one API key may hold; by default half of that"
    )
    max_queue_seconds: float | None = Field(
        default=None,
        gt=0,
        description="Seconds a request may wait for its first token before it is answered 408; by default no limit",
    )
    max_batch_rows: int | None = Field(
        default=ENGINE.max_batch_rows,
        ge=1,
        description="Most tokens of one forward, drafted and prompt tokens together; by default what suits the machine",
    )
    max_step_ms: float = Field(
        default=ENGINE.max_step_ms,
        gt=0,
        description="Milliseconds by which prefill may lengthen a step while replies are being written",
    )
    kv_slots: int | None = Field(
        default=ENGINE.kv_slots, ge=1, description="Room in the KV cache, in tokens; by default what --kv-memory holds"
    )
    kv_memory: str | None = Field(
        default=None,
        description="Memory of the KV cache: a share of what is free, up to 1, or bytes, such as 8GiB; "
        "by default 0.5 on a CPU and 0.85 on a GPU",
    )
    graphs: bool = Field(
        default=ENGINE.graphs,
        description="On a GPU, capture CUDA graphs for a few batch sizes at start and replay them",
    )
    compile: bool = Field(
        default=ENGINE.compile, description="Compile captured forwards, which takes minutes at start; GPU only"
    )
    exact: bool | None = Field(
        default=ENGINE.exact,
        description="On a GPU, give a token the same bits in every step, prompts and prefix hits included, by kernels "
        "of our own; by default where they are measured at start to cost at most 15 percent. On a CPU it has them "
        "anyway",
    )
    prefix_cache: bool = Field(
        default=ENGINE.prefix_cache, description="Run a prefix that prompts share only once; replies stay the same"
    )
    prefix_dir: str | None = Field(
        default=ENGINE.prefix_dir,
        description="A folder that keeps the cached rows of prompts, for later starts and other workers; on a CPU",
    )
    prefix_bytes: int = Field(
        default=ENGINE.prefix_bytes,
        ge=SMALLEST_CACHE,
        description="Most bytes of the files in --prefix-dir; above, the least recently used ones are deleted",
    )
    images: bool = Field(
        default=ENGINE.images, description="Load the tower of a model that sees, so that requests may have pictures"
    )
    image_bytes: int = Field(
        default=ENGINE.image_bytes,
        ge=SMALLEST_CACHE,
        description="Most bytes of what the tower made of pictures that is kept for later requests",
    )
    max_nodes: int = Field(default=ENGINE.max_nodes, ge=0, description="Largest draft tree a request may ask for")
    session_bytes: int = Field(
        default=ENGINE.session_bytes, ge=0, description="Most bytes each store of one session may take"
    )
    session_bytes_per_key: int = Field(
        default=ENGINE.session_bytes_per_key,
        ge=SMALLEST_CACHE,
        description="Most bytes that the sessions of one key may take; above, its least recently used ones are dropped",
    )
    session_bytes_in_all: int = Field(
        default=ENGINE.session_bytes_in_all,
        ge=SMALLEST_CACHE,
        description="Most bytes that all sessions may take; above, the key that holds most loses its oldest ones",
    )
    session_ttl: float = Field(default=ENGINE.session_ttl, gt=0, description="Seconds an unused session is kept")
    sessions_dir: str | None = Field(
        default=None,
        description="Folder that keeps sessions across restarts, within the same bounds; by default restarts lose them",
    )
    sessions_key: str | None = Field(
        default=None,
        description="File of a secret, 16 bytes or more, that signs the files of --sessions-dir; others are not read",
    )
    tree: str | None = Field(default=ENGINE.tree, description="Static draft tree of the stand method, a JSON file")
    draft_model: str = Field(
        default=ENGINE.draft_model,
        description="Small model that drafts: a name, a folder, a GGUF file, none, mtp (the head in the model's own "
        "checkpoint), or auto (what the model brings: the bundled one its draft model, others such a head, if any)",
    )
    draft_head: str | None = Field(
        default=ENGINE.draft_head,
        description="Head that drafts instead of a draft model, EAGLE-3 or DFlash: a name or a folder",
    )
    threads: int | None = Field(
        default=ENGINE.threads, ge=1, description="CPU threads of each worker; by default the number measured quickest"
    )
    workers: int = Field(
        default=ENGINE.workers,
        ge=1,
        le=256,
        description="Worker processes, each with a copy of the model: on a GPU of its own, or on its share of the CPU",
    )
    tensor_parallel_size: int = Field(
        default=ENGINE.tensor_parallel_size,
        ge=1,
        le=64,
        description="GPUs that each copy of the model is divided among; its heads and inner widths must be divisible",
    )

    @field_validator("kv_memory")
    @classmethod
    def _check_memory(cls, text: str | None) -> str | None:
        if text is not None:
            amount_of(text)
        return text

    def engine_config(self) -> EngineConfig:
        """The configuration with which a worker is started."""
        options = {name: getattr(self, name) for name in ENGINE_OPTIONS}
        options["kv_memory"] = None if self.kv_memory is None else amount_of(self.kv_memory)
        return EngineConfig(**options)
