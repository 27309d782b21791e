"""Chat messages as clients send them; `server.prompts.conversation` makes a prompt of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from server.schemas.base import WireModel, refusal
from server.schemas.generation import Text

GIVEN_ANYWAY = ("messages", "tools", "add_generation_prompt")  # names that a template gets from fields of a body
MAX_CALLS = 128  # tool calls in one message
Role = Literal["system", "developer", "user", "assistant", "tool"]


def check_template_options(options: Mapping[str, Any]) -> None:
    """Raises a refusal where chat_template_kwargs has what templates are given anyway, and would not be given by it."""
    for name in GIVEN_ANYWAY:
        if name in options:
            message = f"chat_template_kwargs: {name} is a field of its own; leave it out here."
            raise refusal("invalid_value", message, f"chat_template_kwargs.{name}")


class CalledFunction(WireModel):
    lenient: ClassVar[frozenset[str]] = frozenset({"parsed_arguments"})

    name: str = Field(min_length=1, max_length=256)
    arguments: str = "{}"


class MessageToolCall(WireModel):
    lenient: ClassVar[frozenset[str]] = frozenset({"index"})

    id: str = Field(min_length=1, max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(WireModel):
    """reasoning_content, reasoning or thinking: an assistant's reasoning. The chat template decides whether a model
    sees it. refusal: what an assistant said instead of content. Lenient: what else clients send back of replies."""

    lenient: ClassVar[frozenset[str]] = frozenset({"annotations", "parsed", "phase"})
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"audio": (), "function_call": ()}

    role: Role
    content: Text | None = None
    name: str | None = Field(default=None, max_length=256)
    tool_calls: list[MessageToolCall] = Field(default=[], max_length=MAX_CALLS)
    tool_call_id: str | None = Field(default=None, max_length=256)
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None

    @property
    def thought(self) -> str | None:
        return self.reasoning_content or self.reasoning or self.thinking

    @model_validator(mode="after")
    def _require_what_the_role_needs(self) -> ChatMessage:
        may_be_null = self.role == "assistant" and (self.tool_calls or self.refusal or self.thought)
        if self.content is None and not may_be_null:
            raise refusal("missing_required_parameter", f"A message of role {self.role} must have content.", "content")
        if self.tool_calls and self.role != "assistant":
            raise refusal("invalid_value", "Only an assistant's message may have tool_calls.", "tool_calls")
        if self.role == "tool" and self.tool_call_id is None:
            raise refusal("missing_required_parameter", "A tool's message must have a tool_call_id.", "tool_call_id")
        return self
