"""Chat messages as clients send them, and what they may hold: text, and pictures between texts, in each API's form.

`server.prompts.conversation` makes a prompt of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from server.schemas.base import WireModel, refusal
from server.schemas.generation import TEXT_TYPES, read_text

GIVEN_ANYWAY = ("messages", "tools", "add_generation_prompt")  # names that a template gets from fields of a body
MAX_CALLS = 128  # tool calls in one message
Role = Literal["system", "developer", "user", "assistant", "tool"]
MAX_PARTS = 1024
Detail = Literal["auto", "low", "high", "original"]
DETAILS: tuple[Detail, ...] = get_args(Detail)
IMAGE_TYPES = frozenset({"image_url", "input_image"})


def check_template_options(options: Mapping[str, Any]) -> None:
    """Raises a refusal where chat_template_kwargs has what templates are given anyway, and would not be given by it."""
    for name in GIVEN_ANYWAY:
        if name in options:
            message = f"chat_template_kwargs: {name} is a field of its own; leave it out here."
            raise refusal("invalid_value", message, f"chat_template_kwargs.{name}")


class TextPart(WireModel):
    type: Literal["text"] = "text"
    text: str


class ImageUrl(WireModel):
    """url: a data: URL, or one of a host that the server fetches pictures from. detail: low has a large picture looked
    at as a whole alone, for models that look at its parts as well."""

    url: str = Field(min_length=1)
    detail: Detail = "auto"


class ImagePart(WireModel):
    type: Literal["image_url"] = "image_url"
    image_url: ImageUrl


Part = TextPart | ImagePart


def read_content(value: Any) -> str | list[Part]:
    """Text as text, and a list of parts as text where it has no picture; else as parts, neighbouring texts joined by
    newlines."""
    if not isinstance(value, list):
        if not isinstance(value, str):
            raise refusal("invalid_type", "content must be a string or a list of parts.")
        return value
    if len(value) > MAX_PARTS:
        raise refusal("above_limit", f"content has {len(value)} parts; this server takes {MAX_PARTS} at most.")
    if not any(map(_is_image, value)):
        return _text(value)
    parts: list[Part] = []
    for is_image, group in groupby(value, key=_is_image):
        members = list(group)
        parts += map(_image, members) if is_image else [TextPart(text=_text(members))]
    return parts


def _text(parts: list[Any]) -> str:
    text: str = read_text([part.model_dump() if isinstance(part, TextPart) else part for part in parts])
    return text


def _is_image(part: Any) -> bool:
    return isinstance(part, ImagePart) or (isinstance(part, dict) and part.get("type") in IMAGE_TYPES)


def _image(part: Any) -> ImagePart:
    """A picture, of the chat's form or of the one of /v1/responses."""
    if isinstance(part, ImagePart):
        return part
    if part.get("file_id") is not None:
        raise refusal("unsupported_content", "This server keeps no files: send a picture's image_url.")
    given = part.get("image_url")
    named = given if isinstance(given, dict) else {"url": given, "detail": part.get("detail")}
    url, detail = named.get("url"), named.get("detail") or "auto"
    if not isinstance(url, str) or not url:
        raise refusal("missing_required_parameter", f"A part of type {part['type']} must have an image_url with a url.")
    if detail not in DETAILS:
        raise refusal("invalid_value", f"A picture's detail must be one of {', '.join(DETAILS)}.")
    return ImagePart(image_url=ImageUrl(url=url, detail=detail))


PART_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"enum": sorted(TEXT_TYPES | IMAGE_TYPES)},
        "text": {"type": "string"},
        "image_url": {"anyOf": [{"type": "string"}, {"type": "object"}]},
    },
    "required": ["type"],
}
CONTENT_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": PART_SCHEMA}]}
Content = Annotated[
    str | list[Part],
    PlainValidator(read_content),
    PlainSerializer(lambda content: content, return_type=Any),  # by what it is: the validator's would serialise twice
    WithJsonSchema(CONTENT_SCHEMA),
]


def text_of(content: str | list[Part] | None) -> str:
    """The text alone."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content if isinstance(part, TextPart))


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
    content: Content | None = None
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
