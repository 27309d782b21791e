"""What one step gave to whom. Pure data; the worker makes messages of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.core.request import FinishReason
from decoding.core.stats import RequestStats, StepStats
from decoding.core.step_trace import StepTrace
from decoding.core.token_logprobs import TokenLogprobs
from decoding.errors import RequestRejected


@dataclass(frozen=True, slots=True)
class Emitted:
    """Tokens one request was given by one step, in order, and their logprobs if asked for."""

    request_id: str
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The logprobs of a prompt's tokens, the first of which has none."""

    request_id: str
    logprobs: list[TokenLogprobs | None]


@dataclass(frozen=True, slots=True)
class Retired:
    """A request that ended, and what it cost. stop_token_id: the token that stopped it, if one did."""

    request_id: str
    reason: FinishReason
    stats: RequestStats
    stop_token_id: int | None


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that was taken on and then cannot be run after all."""

    request_id: str
    error: RequestRejected


@dataclass(frozen=True, slots=True)
class Broken:
    """A request that cannot go on, and why: a sentence for its caller and a word for machines. The others do."""

    request_id: str
    sentence: str
    code: str


@dataclass(slots=True)
class StepResult:
    """`stats` is None for a step that found nothing to run."""

    scored: list[PromptScored] = field(default_factory=list)
    traced: list[tuple[str, StepTrace]] = field(default_factory=list)  # request ids with what they asked to see
    emitted: list[Emitted] = field(default_factory=list)
    retired: list[Retired] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    stats: StepStats | None = None
