"""The wire models of the small endpoints: models, embeddings, tokens, sessions, version."""

from __future__ import annotations

from functools import partial
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NotRequired,  # pydantic wants these before Python 3.12
)

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from typing_extensions import TypedDict

from server.schemas.base import WireModel, refusal
from server.schemas.completions import PROMPT_SCHEMA, Prompt, read_prompts
from server.schemas.messages import ChatMessage, check_template_options
from server.schemas.tools import ChatTool

State = Literal["absent", "loading", "ready", "silent", "restarting", "draining", "unloading", "failed"]
Modality = Literal["text", "image"]


class ModelCard(TypedDict):
    """root: the model's own name; max_model_len: the longest prompt plus reply that is served, in tokens, null before
    the model is loaded; state: absent is one that its first request loads; input_modalities: what prompts may have,
    once the model is loaded.

    model_context_len: what the model itself supports, with context_note, the reason; both only where that is more.
    type, display_name, created_at, max_input_tokens: for Anthropic's clients alone.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None
    state: State
    input_modalities: NotRequired[list[Modality]]
    model_context_len: NotRequired[int]
    context_note: NotRequired[str]
    type: NotRequired[Literal["model"]]
    display_name: NotRequired[str]
    created_at: NotRequired[str]
    max_input_tokens: NotRequired[int | None]


class ModelList(TypedDict):
    """has_more and the ids are for Anthropic's clients, which ask for pages: there is one."""

    object: Literal["list"]
    data: list[ModelCard]
    has_more: NotRequired[Literal[False]]
    first_id: NotRequired[str]
    last_id: NotRequired[str]


class EmbeddingRequest(WireModel):
    """POST /v1/embeddings."""

    lenient: ClassVar[frozenset[str]] = frozenset({"user"})

    input: Annotated[list[Prompt], BeforeValidator(partial(read_prompts, name="input")), WithJsonSchema(PROMPT_SCHEMA)]
    model: str | None = Field(default=None, description="The served model's name; may be left out")
    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="base64: of the numbers as float32, little-endian"
    )
    dimensions: int | None = Field(default=None, ge=1, description="Numbers of each embedding, the first ones")


class Embedding(TypedDict):
    """embedding: a vector of length one, or its float32 numbers in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingReply(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class TokenizeRequest(WireModel):
    """Either a prompt, or messages as a chat completion would render them."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = Field(
        default=None,
        description="Add the model's own beginning-of-text token; by default true for a prompt, false for messages",
    )
    parse_special: bool = Field(
        default=True,
        description="Read names of special tokens in a prompt as those tokens; in messages they are always text",
    )
    messages: list[ChatMessage] | None = Field(default=None, min_length=1, fail_fast=True)
    tools: list[ChatTool] = Field(default=[], max_length=128)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default={})
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _require_one_form(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise refusal("invalid_value", "Give either prompt or messages.", "prompt")
        check_template_options(self.chat_template_kwargs)
        return self


class TokenizeReply(TypedDict):
    """token_strs: the tokens as the vocabulary spells them."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(WireModel):
    model: str | None = None
    tokens: list[int] = Field(fail_fast=True)


class DetokenizeReply(TypedDict):
    prompt: str


class TokenizerInfo(TypedDict):
    """tokenizer_class: the name of transformers' class; the tokens' texts are null where the model has none."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


class SleepReply(TypedDict):
    is_sleeping: bool


class ReloadReply(TypedDict):
    """Flags whose settings differ from those that the server ran with: what holds now, and what needs a restart."""

    changed: list[str]
    needs_restart: list[str]


class VersionReply(TypedDict):
    version: str


class EngineCard(TypedDict):
    """is_exact: a check at start showed that logits do not depend on batch or draft tree on this machine; exact_rows:
    elsewhere, in steps of up to so many tokens they do not.

    served_name: what clients call the model; weights: int8, int4, or the dtype; has_chat_template: whether it can chat;
    kv_slots: tokens that the KV cache holds; max_running: most requests that run at the same time; max_batch_rows: most
    tokens of one forward; expected_bytes: the worker's memory once the cache is full, without sessions;
    model_context_len, context_note, input_modalities: as in ModelCard.
    """

    model: str
    served_name: str
    device: str
    dtype: str
    weights: str
    attention: str
    is_exact: bool
    exact_rows: NotRequired[int]
    max_model_len: int
    model_context_len: NotRequired[int]
    context_note: NotRequired[str]
    kv_slots: int
    max_running: int
    max_batch_rows: int
    expected_bytes: int
    methods: list[str]
    max_nodes: int
    has_chat_template: bool
    input_modalities: list[Modality]
    load_seconds: float


class WorkerCard(TypedDict):
    """The state of one of the server's worker processes."""

    status: State
    sentence: str
    worker_pid: int | None
    restarts: int
    last_error: str | None
    open_requests: int


class ModelState(TypedDict):
    """One of the server's models. needed_bytes: of memory before it is loaded, that of its files, 0 if unknown;
    expected_bytes: once it is, with its cache full; unload_seconds: until it is unloaded if nobody uses it, null where
    nothing is set; num_uses: requests that wait for it or run on it."""

    name: str
    status: State
    sentence: str
    fraction: float
    needed_bytes: int
    expected_bytes: int | None
    unload_seconds: float | None
    num_uses: int


class HealthReply(TypedDict):
    """Without a key only the status is there. With one: sentence, the status for people; fraction: progress of loading;
    compiling: drafting methods that are not compiled yet, whose requests run plain, to the same tokens; engine, once it
    is loaded; models: all of the server's, the default one first; free_bytes: of the machine's memory. Workers,
    restarts, last errors and open requests are for admin keys."""

    status: State
    sentence: NotRequired[str]
    fraction: NotRequired[float]
    compiling: NotRequired[list[str]]
    worker_pid: NotRequired[int | None]
    restarts: NotRequired[int]
    last_error: NotRequired[str | None]
    open_requests: NotRequired[int]
    workers: NotRequired[list[WorkerCard]]
    engine: NotRequired[EngineCard]
    models: NotRequired[list[ModelState]]
    free_bytes: NotRequired[int | None]


class SessionCard(TypedDict):
    """What drafting has learned in one session of a model. owner: a hash of the API key that it belongs to; "" without
    keys."""

    id: str
    model: str
    object: Literal["session"]
    owner: str
    bytes: int
    bytes_by_store: dict[str, int]
    idle_seconds: float


class SessionList(TypedDict):
    object: Literal["list"]
    data: list[SessionCard]


class SessionDeletion(TypedDict):
    id: str
    object: Literal["session.deleted"]
    deleted: bool
