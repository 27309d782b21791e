"""Parts of replies that several endpoints share: usage, the report of speculation, errors."""

from __future__ import annotations

from typing_extensions import TypedDict


class CompletionTokensDetails(TypedDict):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int


class Usage(TypedDict):
    """prompt_tokens counts every prompt once, whatever n is; completion_tokens every choice generated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails


class SpeculationReport(TypedDict):
    """What drafting did for one choice. method: the last one that drafted; choice, reason: why it did.

    acceptance_length: tokens per target forward, prefill apart.
    """

    method: str
    choice: str
    reason: str
    steps_by_method: dict[str, int]
    steps: int
    acceptance_length: float | None
    drafts: int
    drafted: int
    accepted: int
    drafted_by_source: dict[str, int]
    accepted_by_source: dict[str, int]
    accepted_by_depth: list[int]
    prefill_chunks: int
    queue_seconds: float
    time_to_first_token: float
    decode_seconds: float
    draft_model_seconds: float


class PromptLogprob(TypedDict):
    """vLLM's form: one candidate for a prompt token. rank: 1 for the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(TypedDict):
    error: ErrorDetail
