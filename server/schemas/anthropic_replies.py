"""The wire models of what /v1/messages answers: the message, its blocks, and the events of a stream."""

from __future__ import annotations

from typing import (
    Any,
    Literal,
    NotRequired,  # pydantic wants these before Python 3.12
)

from typing_extensions import TypedDict

from server.schemas.replies import ErrorDetail, SpeculationReport

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class ThinkingBlock(TypedDict):
    """signature: some text, for clients that give back only thoughts which have one; nobody checks it."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    """input: the arguments; of a call that was cut, as much of them as is whole."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Any


ReplyBlock = TextBlock | ThinkingBlock | ToolUseBlock


class OutputTokensDetails(TypedDict):
    thinking_tokens: int


class MessageUsage(TypedDict):
    """The prompt's tokens are input_tokens, which were run, and cache_read_input_tokens, which were not. How many were
    not is known at the end: where a stream begins, all count as run."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails


class MessageReply(TypedDict):
    """content: what was thought, said and called, in order."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ReplyBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    speculation: NotRequired[SpeculationReport]


class TokenCount(TypedDict):
    input_tokens: int


class MessageErrorReply(TypedDict):
    type: Literal["error"]
    error: ErrorDetail


class MessageEvent(TypedDict):
    """One event of a stream; which fields it has beyond its type depends on that, as Anthropic documents them."""

    type: str
    message: NotRequired[MessageReply]
    index: NotRequired[int]
    content_block: NotRequired[ReplyBlock]
    delta: NotRequired[dict[str, Any]]
    usage: NotRequired[MessageUsage]
    speculation: NotRequired[SpeculationReport]
    error: NotRequired[ErrorDetail]
