"""The wire models of /v1/messages, Anthropic's API: what clients may send. The replies are in `anthropic_replies`."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, FailFast, Field, model_validator

from server.http.errors import MAX_PARAM, shortened
from server.schemas.base import OrText, WireModel, refusal
from server.schemas.generation import LENIENT, MAX_LENGTH, REFUSED, SamplingRequest, Stops
from server.schemas.structured import JsonObject
from server.schemas.tools import FUNCTION_NAME, HostedTool, ToolChoice, check_tools, tool_reader

Role = Literal["user", "assistant", "system"]
NEEDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
BLOCKS_OF: dict[str, frozenset[str]] = {
    "user": frozenset({"text", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
    "system": frozenset({"text"}),
}
HOSTED = re.compile(r"[a-z_]+_\d{8}|mcp_toolset")  # types of tools that Anthropic runs or defines
HIDDEN_CALLERS = ({"type": "direct"},)
T = TypeVar("T")
CacheControl = Annotated[JsonObject | None, Field(description="Count what is run as created in the cache")]


def require_fields(block: T, *names: str) -> T:
    """The block. Raises a refusal where one of the fields is missing."""
    for name in names:
        if getattr(block, name) is None:
            kind = getattr(block, "type", "")
            raise refusal("missing_required_parameter", f"A block of type {kind} must have {name}.", name)
    return block


class ResultPart(WireModel):
    """A part of a tool's result: text, or the name of a tool that the client has searched for."""

    lenient: ClassVar[frozenset[str]] = frozenset({"cache_control", "citations"})

    type: Literal["text", "tool_reference"]
    text: str | None = None
    tool_name: str | None = Field(default=None, min_length=1, max_length=256)

    @model_validator(mode="after")
    def _require_what_the_type_needs(self) -> ResultPart:
        return require_fields(self, "text" if self.type == "text" else "tool_name")


def _read_result(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    for part in value if isinstance(value, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in ("text", "tool_reference"):
            message = (
                f"This server reads text only: a tool's result is text or tool_reference, not {shortened(kind, 40)}."
            )
            raise refusal("unsupported_content", message)
    return value


class ContentBlock(WireModel):
    """One block of a message: text, reasoning, a tool call or its result. Images and documents are refused."""

    lenient: ClassVar[frozenset[str]] = frozenset({"citations", "data"})
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"caller": HIDDEN_CALLERS, "toolset_name": ()}

    type: Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]
    text: str | None = None
    thinking: str | None = None
    signature: str = Field(default="", description="Of a thought whose text was omitted: what this server gave")
    id: str | None = Field(default=None, min_length=1, max_length=256)
    name: str | None = Field(default=None, min_length=1, max_length=256)
    input: JsonObject | None = None
    tool_use_id: str | None = Field(default=None, min_length=1, max_length=256)
    content: Annotated[list[ResultPart], FailFast(), BeforeValidator(_read_result), OrText()] = Field(
        default=[], description="A tool's result; a tool_reference is shown as the definition of that tool"
    )
    is_error: bool = Field(default=False, description="Put `Error: ` before the result that the model reads")
    cache_control: CacheControl = None

    @model_validator(mode="after")
    def _require_what_the_type_needs(self) -> ContentBlock:
        return require_fields(self, *NEEDS[self.type])


def _read_blocks(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise refusal("invalid_type", "content must be a string or a list of blocks.")
    for block in value:
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in NEEDS:
            message = f"This server reads text only: blocks are {', '.join(NEEDS)}, not {shortened(kind, MAX_PARAM)}."
            raise refusal("unsupported_content", message)
    return value


Blocks = Annotated[list[ContentBlock], FailFast(), BeforeValidator(_read_blocks), OrText()]


class Message(WireModel):
    """Lenient are fields of a reply, because clients send whole replies back."""

    lenient: ClassVar[frozenset[str]] = frozenset(
        {"id", "model", "stop_reason", "stop_sequence", "stop_details", "usage", "container", "diagnostics"}
    )
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"type": ("message",)}

    role: Role
    content: Blocks

    @model_validator(mode="after")
    def _require_blocks_of_the_role(self) -> Message:
        for block in self.content:
            if block.type not in BLOCKS_OF[self.role]:
                message = f"A message of role {self.role} may not have a block of type {block.type}."
                raise refusal("invalid_value", message, "content")
        return self

    @property
    def is_empty_reply(self) -> bool:
        return self.role == "assistant" and not any(
            block.text or block.thinking or block.type == "tool_use" for block in self.content
        )


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
