"""The wire models of /v1/responses: what clients may send. The replies are in `response_replies`."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, FailFast, Field, model_validator

from server.http.errors import MAX_PARAM, shortened
from server.schemas.base import OrText, WireModel, refusal
from server.schemas.generation import LENIENT, MAX_LENGTH, REFUSED, SamplingRequest
from server.schemas.messages import Content, Role
from server.schemas.response_tools import MOST_OFFERED, OfferedTools, ResponseTool
from server.schemas.structured import JsonObject
from server.schemas.tools import ToolChoice, ToolChoiceField, check_tools

INCLUDE_LOGPROBS = "message.output_text.logprobs"
INCLUDE_SEALED = "reasoning.encrypted_content"
NEEDS: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
}


class InputItem(WireModel):
    """One item of `input`: a message, a tool call, a call's output, or earlier reasoning.

    Lenient are fields that clients send back of replies; id has a meaning in lists of items only."""

    lenient: ClassVar[frozenset[str]] = frozenset({"status", "summary", "phase", "parsed_arguments", "created_by"})
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"caller": ({"type": "direct"},), "async": (False,)}

    type: Literal[
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
    ] = "message"
    id: str | None = Field(default=None, max_length=256)
    role: Role | None = None
    content: Content | None = None
    call_id: str | None = Field(default=None, min_length=1, max_length=256)
    name: str | None = Field(default=None, min_length=1, max_length=128)
    namespace: str | None = Field(default=None, min_length=1, max_length=127)
    arguments: str | None = None
    input: str | None = None
    output: Content | None = None
    encrypted_content: str | None = Field(default=None, description="A thought, as an earlier response gave it")

    @model_validator(mode="after")
    def _require_what_the_type_needs(self) -> InputItem:
        for name in NEEDS[self.type]:
            if getattr(self, name) is None:
                raise refusal("missing_required_parameter", f"An item of type {self.type} must have {name}.", name)
        if self.role == "tool":
            raise refusal("invalid_value", "A tool's output is an item of type function_call_output.", "role")
        return self


def _read_input(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise refusal("invalid_type", "input must be a string or a list of items.")
    for number, item in enumerate(value):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind not in NEEDS:  # before its fields, which other types have
            message = f"Items are {', '.join(NEEDS)}, not {shortened(kind, MAX_PARAM)}."
            raise refusal("invalid_value", message, f"{number}.type")
    return value


MAX_METADATA = 16  # entries, OpenAI's own limit


def _check_metadata(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_METADATA:
        raise refusal("above_limit", f"metadata has {len(value)} entries; {MAX_METADATA} are the limit.")
    return value


Metadata = Annotated[dict[str, Annotated[str, Field(max_length=512)]], BeforeValidator(_check_metadata)]


class TextFormat(WireModel):
    """The reply's format. strict: see `NamedSchema`."""

    strict: bool = False
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(default=None, max_length=256, description="Repeated in the reply, as description is")
    description: str | None = None
    definition: JsonObject | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _require_schema(self) -> TextFormat:
        if (self.type == "json_schema") != (self.definition is not None):
            raise refusal("invalid_value", "schema is required with type json_schema, and with no other.", "schema")
        return self


class TextConfig(WireModel):
    format: TextFormat | None = None
    verbosity: str | None = Field(default=None, max_length=64, description="For chat templates that know it")


class ReasoningConfig(WireModel):
    """How to reason. summary is accepted and changes nothing, because all of the reasoning is shown."""

    lenient: ClassVar[frozenset[str]] = frozenset({"summary", "generate_summary", "context"})

    effort: str | None = Field(default=None, max_length=64, description="For chat templates that know it")


# What hosted tools found is never there, because none of them runs here.
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ResponseStreamOptions(WireModel):
    include_obfuscation: bool = False  # has no effect: events get no padding fields


class ResponseRequest(SamplingRequest):
    """POST /v1/responses. A request has its whole conversation, or continues a stored response."""

    lenient: ClassVar[frozenset[str]] = LENIENT | {"max_tool_calls"}
    refused: ClassVar[dict[str, tuple[Any, ...]]] = REFUSED | {
        "conversation": (),
        "truncate_prompt_tokens": (),
        "prompt": (),
        "background": (False,),
        "context_management": ([],),
        "moderation": (),
        "image": (),
        "access_programs": (),
    }

    input: Annotated[
        list[InputItem],
        FailFast(),
        BeforeValidator(_read_input),
        Field(min_length=1),
        OrText(),
    ]
    previous_response_id: str | None = Field(
        default=None, max_length=256, description="A stored response whose conversation this request continues"
    )
    store: bool = Field(default=True, description="Keep the response in memory, so that later requests can continue it")
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=MAX_LENGTH)
    text: TextConfig = TextConfig()
    reasoning: ReasoningConfig = ReasoningConfig()
    include: list[Includable] = Field(default=[], max_length=16)
    top_logprobs: int | None = Field(default=None, ge=0)
    tools: list[ResponseTool] = Field(default=[], max_length=128)
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool = True
    metadata: Metadata = Field(default={}, description="Repeated in the reply")
    stream_options: ResponseStreamOptions = ResponseStreamOptions()
    truncation: Literal["auto", "disabled"] = Field(
        default="disabled", description="The same: an input that does not fit is refused"
    )

    @model_validator(mode="after")
    def _require_consistency(self) -> ResponseRequest:
        if self.speculation.trace:
            message = "speculation.trace is for completions and chat completions; leave it out."
            raise refusal("unsupported_parameter", message, "speculation.trace")
        names = [tool.shown_name for tool in self.offered]
        if len(names) > MOST_OFFERED:
            message = f"tools: {len(names)} with those in namespaces are above this server's limit of {MOST_OFFERED}."
            raise refusal("above_limit", message, "tools")
        check_tools(names, self.chosen)
        return self

    @cached_property
    def offered(self) -> OfferedTools:
        return OfferedTools(self.tools)

    @property
    def chosen(self) -> ToolChoice:
        """tool_choice, by the names that the model is shown."""
        return self.offered.resolved(self.tool_choice or ToolChoice("auto"))

    @property
    def wants_sealed(self) -> bool:
        """Whether reasoning is to come with text that brings it back."""
        return INCLUDE_SEALED in self.include

    @property
    def wants_logprobs(self) -> bool:
        return INCLUDE_LOGPROBS in self.include or self.top_logprobs is not None
