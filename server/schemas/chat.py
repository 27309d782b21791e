"""The wire models of /v1/chat/completions."""

from __future__ import annotations

from typing import (
    Any,
    ClassVar,
    Literal,
    NotRequired,  # pydantic wants these before Python 3.12
)

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from server.schemas.base import refusal
from server.schemas.generation import MAX_LENGTH, REFUSED, GenerationRequest
from server.schemas.messages import ChatMessage, check_template_options
from server.schemas.replies import PromptLogprobs, PromptProgress, SpeculationReport, Trace, Usage
from server.schemas.tools import ChatTool, Tool, ToolChoice, ToolChoiceField, check_tools


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = REFUSED | {
        "audio": (),
        "modalities": (["text"],),
        "web_search_options": (),
        "functions": ([],),
        "function_call": ("none",),
        "moderation": (),
    }

    messages: list[ChatMessage] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_LENGTH)
    max_tokens: int | None = Field(
        default=None, ge=1, le=MAX_LENGTH, description="OpenAI's older name of max_completion_tokens"
    )
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0)
    tools: list[ChatTool] = Field(default=[], max_length=128)
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = Field(default=None, max_length=64, description="For chat templates that know it")
    verbosity: str | None = Field(default=None, max_length=64, description="For chat templates that know it")

    add_special_tokens: bool = Field(
        default=False, description="Add the model's own beginning-of-text token to what the template writes"
    )
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = Field(default=None, description="Refused unless the server allows it")
    chat_template_kwargs: dict[str, Any] = Field(default={})

    @model_validator(mode="after")
    def _require_consistency(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise refusal("invalid_value", "top_logprobs needs logprobs to be true.", "top_logprobs")
        lengths = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(lengths) > 1:
            message = "max_tokens and max_completion_tokens differ; give one of them."
            raise refusal("invalid_value", message, "max_completion_tokens")
        if self.add_generation_prompt and self.continue_final_message:
            message = "continue_final_message needs add_generation_prompt to be false."
            raise refusal("invalid_value", message, "continue_final_message")
        check_tools([tool.function.name for tool in self.offered_tools], self.choice_of_tool)
        check_template_options(self.chat_template_kwargs)
        return self

    @property
    def offered_tools(self) -> list[Tool]:
        return [tool for tool in self.tools if isinstance(tool, Tool)]

    @property
    def choice_of_tool(self) -> ToolChoice:
        if self.tool_choice is None:
            return ToolChoice("auto" if self.offered_tools else "none")
        return self.tool_choice

    @property
    def callable_tools(self) -> list[Tool]:
        choice = self.choice_of_tool
        if choice.mode == "none":
            return []
        return [tool for tool in self.offered_tools if choice.allowed is None or tool.function.name in choice.allowed]


class TopLogprob(TypedDict):
    """bytes: the token's bytes, which need not be whole characters; token: the same as text."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


class FunctionCall(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionCall


class FunctionCallDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class ToolCallDelta(TypedDict):
    """A piece of a call; the first one has id, type and name."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionCallDelta


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]  # the same under its other name, because clients read one of the two
    tool_calls: NotRequired[list[ToolCall]]


class AssistantDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]  # the same under its other name, because clients read one of the two
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChatChoice(TypedDict):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    token_ids: NotRequired[list[int]]
    speculation: NotRequired[SpeculationReport]
    trace: NotRequired[Trace]


class ChatChunkChoice(TypedDict):
    index: int
    delta: AssistantDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: NotRequired[list[int]]
    speculation: NotRequired[SpeculationReport]
    trace: NotRequired[Trace]


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None
    prompt_token_ids: NotRequired[list[int]]


class ChatCompletionChunk(TypedDict):
    """One event of a streamed reply. The last before [DONE] has the usage and no choices, if usage was asked for. One
    with prompt_progress says nothing else of its choice."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    prompt_progress: NotRequired[PromptProgress]
    prompt_token_ids: NotRequired[list[int]]
