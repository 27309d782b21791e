"""The wire models of the small endpoints: models, tokens, sessions, version."""

from __future__ import annotations

from typing import (
    Any,
    Literal,
    NotRequired,  # pydantic wants these before Python 3.12
)

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from server.schemas.base import WireModel, refusal
from server.schemas.messages import ChatMessage
from server.schemas.tools import Tool


class ModelCard(TypedDict):
    """root: the model by its own name; max_model_len: what is served, in tokens.

    model_context_len: what the model itself could, with context_note, the reason, where that is more.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None
    model_context_len: NotRequired[int]
    context_note: NotRequired[str]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class TokenizeRequest(WireModel):
    """Either a prompt, or messages as a chat completion would render them."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = Field(
        default=None, description="The model's own beginning-of-text token; by default before a prompt, not messages"
    )
    parse_special: bool = Field(
        default=True, description="Names of special tokens in a prompt are the tokens; in messages they never are"
    )
    messages: list[ChatMessage] | None = Field(default=None, min_length=1, fail_fast=True)
    tools: list[Tool] = Field(default=[], max_length=128)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default={})
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _require_one_form(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise refusal("invalid_value", "Give either prompt or messages.", "prompt")
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


class SleepReply(TypedDict):
    is_sleeping: bool


class VersionReply(TypedDict):
    version: str


class EngineCard(TypedDict):
    """is_exact: rows are proven independent of batch and tree on this machine. has_chat_template: it can chat.

    weights: int8, or the dtype.
    kv_slots: tokens of room in the KV cache; max_running: most requests decoded at the same time; expected_bytes: the
    worker's memory once full, what sessions remember apart; model_context_len, context_note: as in ModelCard.
    """

    model: str
    device: str
    dtype: str
    weights: str
    attention: str
    is_exact: bool
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
    load_seconds: float


State = Literal["loading", "ready", "silent", "restarting", "draining", "failed"]


class WorkerCard(TypedDict):
    """How one of the server's worker processes does."""

    status: State
    sentence: str
    worker_pid: int | None
    restarts: int
    last_error: str | None
    open_requests: int


class HealthReply(TypedDict):
    """All but the status is told to who has a key: sentence, for people; fraction: how far loading has come; compiling:
    the drafting methods whose requests still run plain, to the same tokens; engine: there once it is loaded. The
    workers, their restarts and last errors, and the open requests are for admins."""

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


class SessionCard(TypedDict):
    """What drafting remembers of one session. owner: who it belongs to, a hash of the API key; "" without keys."""

    id: str
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
