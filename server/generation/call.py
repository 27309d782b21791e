"""A generation call: everything that is known of an HTTP call before it runs. `prepare` makes it, `answer` runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.generation.choice import ChoicePlan
from server.prompts.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCall:
    """The fields that all replies of one HTTP call repeat, and the choices to run.

    created: seconds since 1970; prompt_tokens counts every prompt once; num_choices, loose_schema, names: see
    `GenerationOptions`; timeout: seconds for the whole call; chunk_seconds: between a stream's chunks, None to send
    tokens as they come.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    prompt_tokens: int
    num_choices: int
    tokenizer: Tokenizer
    is_streamed: bool
    timeout: float | None
    chunk_seconds: float | None
    plans: Sequence[ChoicePlan]
    names: Mapping[str, str]
    loose_schema: Mapping[str, Any] | None = None
