"""Settings of what a request may ask for, and of how it is read and answered."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from decoding.core.sampling_params import MAX_LOGPROBS
from server.http.heads.faults import as_compared
from server.http.notices import UnknownFields
from server.parsing.reply_format import families

HOST_PATTERN = re.compile(r"\*|(\*\.)?[0-9A-Za-z._-]+")
MOST_PIXELS = 178_956_970  # that Pillow opens without an error


class RequestSettings(BaseModel):
    max_images: int = Field(default=16, ge=1, description="Most pictures of one request")
    max_image_bytes: int = Field(default=20 * 2**20, ge=1024, description="Largest file of a picture, in bytes")
    max_image_pixels: int = Field(
        default=25_000_000, ge=1024, le=MOST_PIXELS, description="Most pixels of a picture, width x height"
    )
    image_urls: str | None = Field(
        default=None,
        description="Hosts, separated by commas, from which pictures are fetched by http(s), such as *.example.com; * "
        "for all. None has a private address. By default no picture is fetched",
    )
    max_choices: int = Field(default=128, ge=1, description="Largest n of one request")
    max_prompts: int = Field(default=256, ge=1, description="Most prompts of one request")
    max_stop_strings: int = Field(default=16, ge=0, description="Most stop strings of one request")
    default_max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of a reply whose client names no length; by default 16 for completions, as OpenAI's, and "
        "all that the context holds for the others",
    )
    strict_length: bool = Field(
        default=False,
        description="Answer 400 where prompt and asked reply exceed the context; by default such a reply is shorter",
    )
    max_reply_tokens: int | None = Field(
        default=None, ge=1, description="Largest max_tokens of a request; by default what --max-model-len leaves"
    )
    max_logprobs: int = Field(
        default=20, ge=0, le=MAX_LOGPROBS, description="Largest top_logprobs: alternatives reported for each token"
    )
    max_reply_logprobs: int = Field(
        default=4_000_000,
        ge=1,
        description="Most log probabilities that a request with several choices or prompts may ask for: tokens, and "
        "alternatives to each",
    )
    max_bad_words: int = Field(default=128, ge=0, description="Most bad_words of one request")
    max_biased_tokens: int = Field(default=1024, ge=0, description="Most entries of logit_bias of one request")
    max_grammar_bytes: int = Field(default=65536, ge=0, description="Longest schema, regex or grammar of one request")
    max_schema_depth: int = Field(default=32, ge=1, description="Deepest nesting of a JSON schema")
    response_store_bytes: int = Field(
        default=16 * 2**20,
        ge=0,
        description="Bytes of memory per API key for responses that later calls may continue; 0 keeps none",
    )
    pooling: Literal["auto", "mean", "last"] = Field(
        default="auto",
        description="What embeddings are made of: the mean of all tokens' hidden states, or the last token's; auto: "
        "what the model's files say, else last",
    )
    chat_template: str | None = Field(default=None, description="File of a chat template that replaces the model's own")
    trust_request_chat_template: bool = Field(
        default=False, description="Let requests bring their own chat template, a Jinja program that runs in a sandbox"
    )
    tool_parser: str = Field(
        default="auto",
        description="Family whose tool calls the model writes, such as hermes; auto asks the chat template",
    )
    reasoning_parser: str = Field(
        default="auto",
        description="Family whose thoughts are reported apart, such as think, or none; auto asks the chat template",
    )
    response_template: str | None = Field(
        default=None, description="File that says how the model writes calls and thoughts; by default the tokenizer's"
    )
    unknown_fields: UnknownFields = Field(
        default="warn",
        description="warn: drop a body's unknown field and name it in X-Gander-Notice and once in the log; error: "
        "answer 400; ignore: drop it without a word",
    )

    @field_validator("image_urls")
    @classmethod
    def _check_hosts(cls, hosts: str | None) -> str | None:
        for name in () if hosts is None else hosts.split(","):
            if not HOST_PATTERN.fullmatch(name.strip()):
                text = f"'{name.strip()}' is no host's name: names have neither a scheme nor a port; * stands for all."
                raise PydanticCustomError("hosts", "{text}", {"text": text})
        return hosts

    @property
    def image_hosts(self) -> tuple[str, ...]:
        """The names of `image_urls` as they are compared, in which * stands for anything."""
        return tuple(as_compared(name.strip()) for name in (self.image_urls or "").split(",") if name.strip())

    @field_validator("tool_parser", "reasoning_parser")
    @classmethod
    def _check_family(cls, name: str, info: ValidationInfo) -> str:
        is_calls = info.field_name == "tool_parser"
        known = [each for each, family in families().items() if (family.calls if is_calls else family.thoughts)]
        others = ["auto"] if is_calls else ["auto", "none"]
        if name not in known + others:
            raise PydanticCustomError("family", "{text}", {"text": f"this must be one of {', '.join(others + known)}."})
        return name
