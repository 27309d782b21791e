"""The wire models of /v1/completions."""

from __future__ import annotations

from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic wants these before Python 3.12
)

from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema
from typing_extensions import TypedDict

from server.schemas.base import refusal
from server.schemas.generation import MAX_LENGTH, GenerationRequest
from server.schemas.replies import PromptLogprobs, PromptProgress, SpeculationReport, Trace, Usage

Prompt = str | list[int]  # text, or token ids


def read_prompts(value: Any, name: str = "prompt") -> list[Prompt]:
    """Turn one prompt or several, as text or token ids, into a list of prompts. name: of the field."""
    expected = "a string, a list of strings, a list of token ids, or a list of lists of token ids"
    wrong = refusal("invalid_type", f"{name} must be {expected}.")
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise wrong
    if not value:
        raise refusal("empty_prompt", f"{name} is an empty list; it must have at least one token.")
    if all(type(item) is int for item in value):
        return [value]
    for item in value:
        is_ids = isinstance(item, list) and all(type(token_id) is int for token_id in item)
        if not isinstance(item, str) and not is_ids:
            raise wrong
    return value


PROMPT_SCHEMA: dict[str, JsonValue] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}, "minItems": 1},
    ]
}
Prompts = Annotated[list[Prompt], BeforeValidator(read_prompts), WithJsonSchema(PROMPT_SCHEMA)]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Prompts
    max_tokens: int | None = Field(default=None, ge=0, le=MAX_LENGTH, description="16 if absent; 0 only with echo")
    best_of: int | None = Field(default=None, ge=1, description="Choices to generate; the n likeliest are returned")
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, description="How many of the likeliest tokens to report per token")
    add_special_tokens: bool = Field(default=True, description="Add the model's own beginning-of-text token")
    parse_special: bool = Field(default=True, description="Read names of special tokens in the prompt as those tokens")
    suffix: str = Field(default="", description="Text after the reply, for models trained to fill in the middle")


class CompletionLogprobs(TypedDict):
    """One entry for each generated token, the end token included; with echo, the prompt's tokens come first.

    text_offset: where the token's text begins in the choice's `text`, before a stop string cuts it.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    prompt_logprobs: NotRequired[PromptLogprobs | None]
    prompt_token_ids: NotRequired[list[int]]
    token_ids: NotRequired[list[int]]
    speculation: NotRequired[SpeculationReport]
    trace: NotRequired[Trace]


class Completion(TypedDict):
    """A whole reply, or one chunk of a streamed one. A chunk with prompt_progress says nothing else of its choice."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]
    prompt_progress: NotRequired[PromptProgress]
