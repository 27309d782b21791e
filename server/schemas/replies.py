"""Parts of replies that several endpoints share: usage, the speculation report, traces, errors."""

from __future__ import annotations

from typing import NotRequired  # pydantic wants TypedDict from elsewhere before Python 3.12

from typing_extensions import TypedDict


class PromptTokensDetails(TypedDict):
    """cached_tokens: prompt tokens that were not run, because the cache had them from an earlier request."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int


class Usage(TypedDict):
    """prompt_tokens counts every prompt once, whatever n is; completion_tokens counts all choices generated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class PromptProgress(TypedDict):
    """How far a choice's prompt is, as llama.cpp says it. Counts are of tokens: processed includes cache, those that
    need not be run; time_ms: since the prompt began to run."""

    total: int
    cache: int
    processed: int
    time_ms: int


class SpeculationReport(TypedDict):
    """What drafting did for one choice. method: the last one that drafted; choice, reason: why that one.
    foretold_by_source: how many tokens of the reply each source predicted as its likeliest, drafted or not.

    acceptance_length: τ, tokens emitted per target forward; plain decoding has exactly 1. cached_tokens: prompt tokens
    that were not run; preemptions: how often it gave up its place and was run again; resumed_tokens: tokens of the
    reply that came from a worker before it died, which no other count here includes.
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
    foretold_by_source: dict[str, int]
    accepted_by_depth: list[int]
    prefill_chunks: int
    cached_tokens: int
    preemptions: int
    resumed_tokens: int
    queue_seconds: float
    time_to_first_token: float
    decode_seconds: float
    draft_model_seconds: float


class TraceToken(TypedDict):
    """A token of the reply. text: what it adds, though a stop string may cut it; depth: its place in its step, from 1.

    source: context, adjacency, ngram, draft_model, prediction or grammar for an accepted draft token, bonus for the
    target's own token after those; step: see TraceStep; logprob: the model's own, at temperature 1.
    """

    text: str
    id: int
    source: str
    depth: int
    step: int
    logprob: float


class TraceNode(TypedDict):
    """A node of a draft tree. parent: its parent's index, -1 for the root; source: the one that drafted it; named_by:
    all sources that proposed it; logprob: the model's own after its parent, null for the root."""

    text: str
    id: int
    parent: int
    source: str
    named_by: list[str]
    logprob: float | None
    accepted: bool


class TraceStep(TypedDict):
    """One target forward of this choice. step: its number, from 1; drafted, accepted: nodes, root not counted.

    seconds: of the whole step, all requests together; plain_seconds: what plain decoding would have needed for the
    tokens of all of them; prefill_rows: prompt tokens that the step also ran.
    """

    step: int
    method: str
    drafted: int
    accepted: int
    seconds: float
    plain_seconds: float
    prefill_rows: int
    tree: NotRequired[list[TraceNode]]


class Trace(TypedDict):
    """The tokens and steps since the last chunk; in a plain reply, all."""

    tokens: list[TraceToken]
    steps: list[TraceStep]


class PromptLogprob(TypedDict):
    """vLLM's format: one candidate for a prompt token. rank: 1 for the likeliest."""

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
