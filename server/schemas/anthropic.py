"""The requests of /v1/messages, Anthropic's API: what clients may send. The replies are in `anthropic_replies`."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from server.http.errors import MAX_PARAM, shortened
from server.schemas.anthropic_messages import Blocks, CacheControl, Message
from server.schemas.base import WireModel, refusal
from server.schemas.generation import LENIENT, MAX_LENGTH, REFUSED, SamplingRequest, Stops
from server.schemas.structured import JsonObject
from server.schemas.tools import FUNCTION_NAME, HostedTool, ToolChoice, check_tools, tool_reader

HOSTED = re.compile(r"[a-z_]+_\d{8}|mcp_toolset")  # types of tools that Anthropic runs or defines


class MessageTool(WireModel):
    """A tool of the client's own; tools that Anthropic runs or defines are not offered to the model."""

    lenient: ClassVar[frozenset[str]] = frozenset({"eager_input_streaming"})
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"allowed_callers": (["direct"],)}

    type: Literal["custom"] = "custom"
    name: str = Field(pattern=FUNCTION_NAME)
    description: str = ""
    input_schema: JsonObject
    input_examples: list[JsonObject] = Field(default=[], max_length=64, description="Shown with the schema")
    strict: bool = False
    defer_loading: bool = Field(
        default=False, description="Show the tool where a tool_reference names it, and from the start where none does"
    )
    cache_control: CacheControl = None


def _is_hosted(kind: str) -> bool:
    return HOSTED.fullmatch(kind) is not None


AnyTool = Annotated[
    MessageTool | HostedTool, BeforeValidator(tool_reader({"custom": MessageTool}, "custom", _is_hosted))
]


class MessageToolChoice(WireModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(default=None, max_length=256)
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _require_name(self) -> MessageToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise refusal("invalid_value", "name is required with type tool, and with no other.", "name")
        return self

    @property
    def choice(self) -> ToolChoice:
        match self.type:
            case "any":
                return ToolChoice("required")
            case "tool":
                return ToolChoice("named", self.name or "")
            case mode:
                return ToolChoice(mode)


class ThinkingConfig(WireModel):
    """Whether the model reasons. budget_tokens is accepted and changes nothing: the model decides how long."""

    lenient: ClassVar[frozenset[str]] = frozenset({"budget_tokens"})

    type: Literal["enabled", "disabled", "adaptive"]
    display: Literal["summarized", "omitted"] = Field(
        default="summarized",
        description="summarized: all of the reasoning is shown; omitted: none, and signatures hold it",
    )


class OutputFormat(WireModel):
    type: Literal["json_schema"]
    definition: JsonObject = Field(alias="schema")


class OutputConfig(WireModel):
    effort: str | None = Field(
        default=None,
        max_length=64,
        description="Reasoning effort, for chat templates that know it; elsewhere it changes nothing",
    )
    format: OutputFormat | None = None


class ContextManagement(WireModel):
    """How the conversation is to be shortened: only where that leaves it as it is, which depends on its length, see
    `server.endpoints.messages.context`."""

    edits: list[JsonObject] = Field(default=[], max_length=16)


class Thread(WireModel):
    """create: the server may keep the conversation, and this one keeps none; continue: it has kept what came before,
    which is refused."""

    type: Literal["create", "continue"]
    previous_message_id: str | None = Field(default=None, max_length=256)


class CountRequest(SamplingRequest):
    """POST /v1/messages/count_tokens: a whole conversation."""

    lenient: ClassVar[frozenset[str]] = LENIENT | {
        "diagnostics",
        "inference_geo",
        "user_profile_id",
        "workspace_id",
    }
    refused: ClassVar[dict[str, tuple[Any, ...]]] = REFUSED | {
        "container": (),
        "mcp_servers": ([],),
        "speed": ("standard",),
    }

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    system: Blocks = Field(default=[])
    stop: Stops = Field(default=[], alias="stop_sequences")
    tools: list[AnyTool] = Field(default=[], max_length=128)
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingConfig = ThinkingConfig(type="adaptive")
    output_config: OutputConfig = OutputConfig()
    context_management: ContextManagement = ContextManagement()
    cache_control: CacheControl = None

    @model_validator(mode="after")
    def _require_consistency(self) -> CountRequest:
        if self.speculation.trace:
            message = "speculation.trace is for completions and chat completions; leave it out."
            raise refusal("unsupported_parameter", message, "speculation.trace")
        if not all(block.type == "text" for block in self.system):
            raise refusal("invalid_value", "The system prompt may have blocks of type text alone.", "system")
        if self.shown and any(block.type == "tool_use" for block in self.shown[-1].content):
            raise refusal("invalid_value", "The last message calls a tool: its result must follow.", "messages")
        unknown = self.referenced - {tool.name for tool in self.offered_tools}
        if unknown:
            message = f"A tool_reference names {shortened(min(unknown), MAX_PARAM)}, which is not among tools."
            raise refusal("invalid_value", message, "messages")
        choice = ToolChoice("auto") if self.tool_choice is None else self.tool_choice.choice
        check_tools([tool.name for tool in self.offered_tools], choice)
        return self

    @property
    def shown(self) -> list[Message]:
        """The messages without empty ones of the assistant's at the end, which ask for an ordinary reply."""
        size = len(self.messages)
        while size and self.messages[size - 1].is_empty_reply:
            size -= 1
        return self.messages[:size]

    @property
    def offered_tools(self) -> list[MessageTool]:
        return [tool for tool in self.tools if isinstance(tool, MessageTool)]

    @property
    def referenced(self) -> set[str]:
        """The tools that results refer to."""
        parts = [part for message in self.messages for block in message.content for part in block.content]
        return {part.tool_name for part in parts if part.tool_name is not None}

    @property
    def asks_to_cache(self) -> bool:
        """Whether a part of the prompt is marked to be cached, or the request as a whole."""
        blocks = [*self.system, *(block for message in self.messages for block in message.content)]
        marks = [tool.cache_control for tool in self.offered_tools] + [block.cache_control for block in blocks]
        return any(mark is not None for mark in (self.cache_control, *marks))

    @property
    def is_begun(self) -> bool:
        """Whether the last message is the beginning of the reply, which the model continues."""
        return bool(self.shown) and self.shown[-1].role == "assistant"


class MessageRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: int = Field(
        ge=1, le=MAX_LENGTH, description="A reply that reaches the end of the context earlier stops there"
    )
    thread: Thread | None = None
