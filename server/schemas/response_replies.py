"""The wire models of the replies of /v1/responses: the response, its items, and the events of a stream."""

from __future__ import annotations

from typing import (
    Any,
    Literal,
    NotRequired,  # pydantic wants these before Python 3.12
)

from typing_extensions import TypedDict

from server.schemas.chat import TokenLogprob
from server.schemas.replies import SpeculationReport

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class MessageItem(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(TypedDict):
    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[Any]
    content: list[ReasoningText]
    encrypted_content: NotRequired[str]


class FunctionCallItem(TypedDict):
    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    namespace: NotRequired[str]
    arguments: str


class CustomCallItem(TypedDict):
    id: str
    type: Literal["custom_tool_call"]
    status: Status
    call_id: str
    name: str
    namespace: NotRequired[str]
    input: str


CallItem = FunctionCallItem | CustomCallItem
OutputItem = MessageItem | ReasoningItem | CallItem


class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(TypedDict):
    code: str
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class Response(TypedDict):
    """output: reasoning, messages and tool calls, in order. Most other fields repeat those of the request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    background: Literal[False]
    temperature: float
    top_p: float
    top_logprobs: int
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    truncation: Literal["auto", "disabled"]
    speculation: NotRequired[SpeculationReport]


class ResponseDeletion(TypedDict):
    id: str
    object: Literal["response"]
    deleted: bool


class InputItemList(TypedDict):
    """A page of the items that came before a response, in the form in which a client may send them."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseEvent(TypedDict):
    """One event of a stream; which fields it has beyond these depends on its type, as OpenAI documents them."""

    type: str
    sequence_number: int
    response: NotRequired[Response]
    item: NotRequired[OutputItem]
    part: NotRequired[OutputText | ReasoningText]
    item_id: NotRequired[str]
    output_index: NotRequired[int]
    content_index: NotRequired[int]
    delta: NotRequired[str]
    text: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]
    input: NotRequired[str]
    logprobs: NotRequired[list[TokenLogprob]]
    code: NotRequired[str]
    message: NotRequired[str]
    param: NotRequired[str | None]
