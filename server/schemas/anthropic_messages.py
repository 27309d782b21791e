"""The messages of /v1/messages, and the blocks that they are made of."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, FailFast, Field, model_validator

from server.http.errors import MAX_PARAM, shortened
from server.schemas.base import OrText, WireModel, refusal
from server.schemas.structured import JsonObject

Role = Literal["user", "assistant", "system"]
NEEDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("source",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
BLOCKS_OF: dict[str, frozenset[str]] = {
    "user": frozenset({"text", "image", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
    "system": frozenset({"text"}),
}
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


class ImageSource(WireModel):
    """base64: media_type and data, a file; url: as of `ImageUrl`."""

    type: Literal["base64", "url"]
    media_type: str = Field(default="image/png", max_length=64)
    data: str = ""
    url: str = ""

    @property
    def data_url(self) -> str:
        return self.url if self.type == "url" else f"data:{self.media_type};base64,{self.data}"


class ResultPart(WireModel):
    """A part of a tool's result: text, a picture, or the name of a tool that the client has searched for."""

    lenient: ClassVar[frozenset[str]] = frozenset({"cache_control", "citations"})

    type: Literal["text", "image", "tool_reference"]
    text: str | None = None
    source: ImageSource | None = None
    tool_name: str | None = Field(default=None, min_length=1, max_length=256)

    @model_validator(mode="after")
    def _require_what_the_type_needs(self) -> ResultPart:
        return require_fields(self, {"text": "text", "image": "source", "tool_reference": "tool_name"}[self.type])


def _read_result(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    for part in value if isinstance(value, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in ("text", "image", "tool_reference"):
            message = (
                f"This server reads text and pictures: a tool's result is text, image or tool_reference, not "
                f"{shortened(kind, 40)}."
            )
            raise refusal("unsupported_content", message)
    return value


class ContentBlock(WireModel):
    """One block of a message: text, a picture, reasoning, a tool call or its result. Documents are refused."""

    lenient: ClassVar[frozenset[str]] = frozenset({"citations", "data"})
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"caller": HIDDEN_CALLERS, "toolset_name": ()}

    type: Literal["text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"]
    text: str | None = None
    source: ImageSource | None = None
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
            message = (
                f"This server reads text and pictures: blocks are {', '.join(NEEDS)}, not {shortened(kind, MAX_PARAM)}."
            )
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
