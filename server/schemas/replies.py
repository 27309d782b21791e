"""Parts of replies that several endpoints share: usage, the report of speculation, errors."""

from __future__ import annotations

from typing import NotRequired  # pydantic wants TypedDict from elsewhere before Python 3.12

from typing_extensions import TypedDict


class PromptTokensDetails(TypedDict):
    """cached_tokens: those that were not run, since an earlier request with the same beginning had."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int


class Usage(TypedDict):
    """prompt_tokens counts every prompt once, whatever n is; completion_tokens every choice generated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class SpeculationReport(TypedDict):
    """What drafting did for one choice. method: the last one that drafted; choice, reason: why it did.
    foretold_by_source: tokens of the reply that each source had thought likeliest, whoever drafted them.

    acceptance_length: τ, tokens emitted per target forward; plain decoding has exactly 1. cached_tokens: of the prompt,
    those that were not run; preemptions: how often it gave up its room and was run again; resumed_tokens: of the reply,
    those that a worker gave before it died, which no other count here is of.
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

    source: context, adjacency, ngram, draft_model, prediction or grammar for an accepted draft, bonus for the target's
    own token after them; step: see TraceStep; logprob: the model's own, at temperature 1.
    """

    text: str
    id: int
    source: str
    depth: int
    step: int
    logprob: float


class TraceNode(TypedDict):
    """A node of a draft tree. parent: index of its parent, -1 for the root; named_by: all sources that named
    it; logprob: after its parent, or null."""

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
    tokens of all of them; prefill_rows: prompt tokens that were read in it.
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
    """What is new since the last chunk; in a plain reply everything."""

    tokens: list[TraceToken]
    steps: list[TraceStep]


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
