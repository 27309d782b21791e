"""Start-up settings: each is a flag of `gander serve` and a GANDER_* variable.

Owns names, defaults and bounds. The engine's options have the same names here as in `EngineConfig`, so that
`engine_config` copies them without knowing what they mean.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from decoding.config import BUNDLED_MODEL, Attention, Dtype, EngineConfig, KvDtype, Weights
from decoding.core.sampling_params import MAX_LOGPROBS
from server.http.heads.faults import as_compared
from server.http.heads.hosts import address_of
from server.http.keys import hashed
from server.http.notices import UnknownFields
from server.parsing.reply_format import families

LogLevel = Literal["debug", "info", "warning", "error"]


ENGINE = EngineConfig()  # the settings take their defaults from here
ENGINE_OPTIONS = frozenset(option.name for option in fields(EngineConfig)) - {"place", "kept_slots"}
BYTES = {"": 1, "b": 1} | {
    letter + mark: base**power
    for power, letter in enumerate("kmgt", start=1)
    for mark, base in (("b", 1000), ("ib", 1024))
}
PATHS = ("model", "draft_model", "draft_head", "tree", "chat_template", "sessions_dir", "sessions_key", "api_key_file")
HOST_NAME = re.compile(r"\*|[0-9A-Za-z._-]+")
SMALLEST_CACHE = 2**20  # bytes; a smaller number is a mistake, such as 8 for 8GiB


class ServerSettings(BaseSettings):
    """Flags win over variables, variables over the defaults below."""

    model_config = SettingsConfigDict(env_prefix="GANDER_", frozen=True, extra="forbid", allow_inf_nan=False)

    model: str = Field(
        default=BUNDLED_MODEL, description="A Hugging Face model name, a folder, a GGUF file, or the bundled model"
    )
    gguf_file: str | None = Field(
        default=ENGINE.gguf_file, description="Which GGUF file of a folder or hub model; of a split one the first part"
    )
    revision: str | None = Field(default=ENGINE.revision, description="Branch, tag or commit of a hub model")
    trust_remote_code: bool = Field(
        default=ENGINE.trust_remote_code, description="Allow a model to bring its own Python code"
    )
    device: str = Field(default=ENGINE.device, description="auto, cpu, cuda or cuda:N")
    dtype: Dtype = Field(default=ENGINE.dtype, description="Number format of the weights")
    kv_dtype: KvDtype = Field(
        default=ENGINE.kv_dtype,
        description="Number format of the cache's keys and values, on a CPU; auto: that of --dtype. bfloat16 takes "
        "half the memory of float32, and with AVX512_BF16 half the time over long prompts",
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
    exact: bool = Field(
        default=ENGINE.exact,
        description="On a GPU, give a token the same bits in every step, prompts and prefix hits included, by kernels "
        "that are slower; on a CPU it has them anyway",
    )
    prefix_cache: bool = Field(
        default=ENGINE.prefix_cache, description="Run a prefix that prompts share only once; replies stay the same"
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

    host: str = Field(default="127.0.0.1", description="Address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one")
    served_model_name: str | None = Field(
        default=None,
        description="Names clients may use, separated by commas, * standing for any text; by default the model's own",
    )
    max_body_bytes: int = Field(default=4 * 2**20, ge=1024, description="Largest request body, in bytes")
    max_connections: int = Field(
        default=4096, ge=2, description="Most open connections; fewer where the limit on file descriptors is lower"
    )
    max_connections_per_address: int | None = Field(
        default=None, ge=1, description="Most open connections of one client address; by default half of all"
    )
    max_head_bytes: int = Field(
        default=32768, ge=1024, description="Largest head of a request (its path and headers), in bytes"
    )
    head_seconds: float = Field(default=10.0, gt=0, description="Seconds within which a request's head must arrive")
    body_seconds: float = Field(default=60.0, gt=0, description="Seconds within which a request's body must arrive")
    max_body_parts: int = Field(
        default=65536, ge=1, description="Most objects, lists and object members in the JSON of one request body"
    )
    max_choices: int = Field(default=128, ge=1, description="Largest n of one request")
    max_prompts: int = Field(default=256, ge=1, description="Most prompts of one request")
    max_stop_strings: int = Field(default=16, ge=0, description="Most stop strings of one request")
    default_max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of a reply whose client names no length; by default 16 for completions, as OpenAI's, and "
        "all that the context holds for the others",
    )
    strict_length: bool = Field(
        default=False,
        description="Answer 400 where prompt and asked reply exceed the context; by default such a reply is shorter",
    )
    max_reply_tokens: int | None = Field(
        default=None, ge=1, description="Largest max_tokens of a request; by default what --max-model-len leaves"
    )
    max_logprobs: int = Field(
        default=20, ge=0, le=MAX_LOGPROBS, description="Largest top_logprobs: alternatives reported for each token"
    )
    max_reply_logprobs: int = Field(
        default=4_000_000,
        ge=1,
        description="Most log probabilities that a request with several choices or prompts may ask for: tokens, and "
        "alternatives to each",
    )
    max_bad_words: int = Field(default=128, ge=0, description="Most bad_words of one request")
    max_biased_tokens: int = Field(default=1024, ge=0, description="Most entries of logit_bias of one request")
    max_grammar_bytes: int = Field(default=65536, ge=0, description="Longest schema, regex or grammar of one request")
    max_schema_depth: int = Field(default=32, ge=1, description="Deepest nesting of a JSON schema")
    response_store_bytes: int = Field(
        default=16 * 2**20,
        ge=0,
        description="Bytes of memory per API key for responses that later calls may continue; 0 keeps none",
    )
    chat_template: str | None = Field(default=None, description="File of a chat template that replaces the model's own")
    trust_request_chat_template: bool = Field(
        default=False, description="Let requests bring their own chat template, a Jinja program that runs in a sandbox"
    )
    tool_parser: str = Field(
        default="auto",
        description="Family whose tool calls the model writes, such as hermes; auto asks the chat template",
    )
    reasoning_parser: str = Field(
        default="auto",
        description="Family whose thoughts are reported apart, such as think, or none; auto asks the chat template",
    )
    response_template: str | None = Field(
        default=None, description="File that says how the model writes calls and thoughts; by default the tokenizer's"
    )
    unknown_fields: UnknownFields = Field(
        default="warn",
        description="warn: drop a body's unknown field and name it in X-Gander-Notice and once in the log; error: "
        "answer 400; ignore: drop it without a word",
    )
    api_keys: str | None = Field(
        default=None, description="API keys, separated by commas, each as it is or as sha256:HEX; none: open to all"
    )
    api_key_file: str | None = Field(
        default=None, description="File of API keys, one a line, read again when it changes; 'admin KEY' is an admin's"
    )
    admin_keys: str | None = Field(default=None, description="API keys that also may see /metrics and all sessions")
    open_metrics: bool = Field(default=False, description="Serve /metrics without a key where there are API keys")
    otlp_endpoint: str | None = Field(
        default=None,
        description="Address to which an OpenTelemetry collector wants the spans of requests, such as "
        "http://127.0.0.1:4318/v1/traces; needs the extra otel",
    )
    allowed_hosts: str | None = Field(
        default=None,
        description="Names, separated by commas, to which the server answers beside localhost and the machine's own; "
        "* for all. By default it is all of them with API keys or on --host 0.0.0.0, else none",
    )
    cors_origins: str | None = Field(
        default=None, description="Web origins that may call this server, separated by commas; * for all"
    )
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

    @field_validator(*PATHS)
    @classmethod
    def _expand_home(cls, path: str | None) -> str | None:
        """Replace a leading ~ once, for all who open the path. A shell does not where a flag is written as --flag=~."""
        return path if path is None or not path.startswith("~") else os.path.expanduser(path)  # noqa: PTH111

    @field_validator("api_keys", "admin_keys")
    @classmethod
    def _hash_keys(cls, keys: str | None) -> str | None:
        """Hash the keys, because settings are shown and logged. An empty list is an error: it would open the server."""
        if keys is None:
            return None
        try:
            named = [hashed(key.strip()) for key in keys.split(",") if key.strip()]
        except ValueError as error:
            raise PydanticCustomError("keys", "{text}.", {"text": str(error)}) from None
        if not named:
            raise PydanticCustomError("keys", "this is empty, and no key can be meant by it: give keys, or unset it.")
        return ",".join(named)

    @field_validator("tool_parser", "reasoning_parser")
    @classmethod
    def _check_family(cls, name: str, info: ValidationInfo) -> str:
        is_calls = info.field_name == "tool_parser"
        known = [each for each, family in families().items() if (family.calls if is_calls else family.thoughts)]
        others = ["auto"] if is_calls else ["auto", "none"]
        if name not in known + others:
            raise PydanticCustomError("family", "{text}", {"text": f"this must be one of {', '.join(others + known)}."})
        return name

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, hosts: str | None) -> str | None:
        for name in () if hosts is None else hosts.split(","):
            if not HOST_NAME.fullmatch(name.strip()) and address_of(as_compared(name.strip())) is None:
                text = f"'{name.strip()}' is no host's name: names have neither a scheme nor a port; * stands for all."
                raise PydanticCustomError("hosts", "{text}", {"text": text})
        return hosts

    @field_validator("kv_memory")
    @classmethod
    def _check_memory(cls, text: str | None) -> str | None:
        if text is not None:
            amount_of(text)
        return text

    @property
    def model_names(self) -> tuple[str, ...]:
        """The ids under which the model is listed: those given, else the folder's or file's name, or the hub name."""
        folder = Path(self.model)
        own = folder.resolve().name if folder.is_dir() else folder.stem if folder.is_file() else self.model
        return tuple(name for name in self._given_names if "*" not in name) or (own,)

    @property
    def _given_names(self) -> tuple[str, ...]:
        given = (name.strip() for name in (self.served_model_name or "").split(","))
        return tuple(dict.fromkeys(filter(None, given)))

    def serves(self, name: str) -> bool:
        """Whether a client may call the model by this name."""
        patterns = (re.escape(given).replace(r"\*", ".*") for given in self._given_names if "*" in given)
        return name in self.model_names or any(re.fullmatch(each, name, re.DOTALL) for each in patterns)

    @property
    def model_name(self) -> str:
        """The first of `model_names`, which logs and metrics use."""
        return self.model_names[0]

    @property
    def allowed_host_names(self) -> frozenset[str]:
        """The names of `allowed_hosts` as they are compared."""
        given = (as_compared(name.strip()) for name in (self.allowed_hosts or "").split(","))
        return frozenset(given) - {""}

    def engine_config(self) -> EngineConfig:
        """The configuration with which a worker is started."""
        options = {name: getattr(self, name) for name in ENGINE_OPTIONS}
        options["kv_memory"] = None if self.kv_memory is None else amount_of(self.kv_memory)
        return EngineConfig(**options)


def amount_of(text: str) -> float:
    """Read an amount of memory: a share of what is free (0.5), or bytes with or without a unit (8GiB, 8000000000).

    A number up to 1 without a unit is a share, and is returned as it is. Raises PydanticCustomError for anything else,
    and for less than a mebibyte.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)", text.strip().lower(), re.ASCII)
    number, unit = match.groups() if match is not None else ("0", "")
    amount = float(number) * BYTES.get(unit, 0)
    is_share = unit == "" and 0 < amount <= 1
    if not is_share and not SMALLEST_CACHE <= amount < math.inf:
        wrong = f"'{text}' is neither a share of the free memory, such as 0.5, nor bytes from 1MiB on, such as 8GiB."
        raise PydanticCustomError("memory", "{text}", {"text": wrong})
    return amount
