"""The wire models of the replies of /v1/messages: the message, its blocks, and the events of a stream."""

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
    """signature: some text, because clients send back only thinking blocks that have one; it is never checked. Where
    the client wants the text omitted, the signature brings it back."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    """input: the arguments; of a call that was cut off, the part of them that is complete."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Any


ReplyBlock = TextBlock | ThinkingBlock | ToolUseBlock


class OutputTokensDetails(TypedDict):
    thinking_tokens: int


class MessageUsage(TypedDict):
    """The prompt's tokens are cache_read_input_tokens, which the cache had, plus those that were run: of a request with
    cache_control these are cache_creation_input_tokens, and of others input_tokens. Known only at the end: where a
    stream begins, all are input_tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails


class MessageReply(TypedDict):
    """content: reasoning, text and tool calls, in order."""

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


class MessageErrorDetail(ErrorDetail):
    """details: the error_code by which Anthropic's clients know what they can recover from."""

    details: NotRequired[dict[str, str]]


class MessageErrorReply(TypedDict):
    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str | None


class MessageEvent(TypedDict):
    """One event of a stream; which fields it has beyond its type depends on that, as Anthropic documents them."""

    type: str
    message: NotRequired[MessageReply]
    index: NotRequired[int]
    content_block: NotRequired[ReplyBlock]
    delta: NotRequired[dict[str, Any]]
    usage: NotRequired[MessageUsage]
    speculation: NotRequired[SpeculationReport]
    error: NotRequired[MessageErrorDetail]
