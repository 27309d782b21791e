"""The record with which every endpoint asks for a generation call, made of its own fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decoding.core.grammar import Grammar
from server.parsing.parts import Parser, PlainParser
from server.prompts.encoding import EncodedPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """Lengths are in tokens. default_max_tokens: None allows all that the context has room for.

    id_prefix: how the call's id begins; num_choices: generated for each prompt; make_parser: makes the parser of one
    reply; loose_schema: that a reply in one piece is checked against; names: this endpoint's names of fields, by the
    names that errors use.
    """

    id_prefix: str
    prompts: Sequence[EncodedPrompt]
    max_tokens: int | None
    default_max_tokens: int | None = None
    num_choices: int = 1
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    loose_schema: Mapping[str, Any] | None = None
    make_parser: Callable[[], Parser] = PlainParser
    shows_special_tokens: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
