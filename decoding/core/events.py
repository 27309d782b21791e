"""What an engine says of a request, and what a server is told of it: the same records on both sides of the socket.

Pure data. Invariant: a request is given zero or more `Tokens` and then exactly one of `Finished`, `Rejected`, `Failed`.
"""

from __future__ import annotations

import msgspec

from decoding.core.request import FinishReason
from decoding.core.stats import RequestStats
from decoding.core.step_trace import StepTrace
from decoding.core.token_logprobs import TokenLogprobs


class PromptProgress(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """So many tokens of the request's prompt are known, and others of it run in the step that begins. Comes now and
    then before the request's first `Tokens`, of a prompt that takes several steps.

    processed includes cached, the tokens that another request had run already.
    """

    request_id: str
    processed: int
    cached: int


class PromptLogprobs(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The log probabilities of a prompt's tokens, None for the first, which follows nothing. Comes once, before the
    request's first `Tokens`."""

    request_id: str
    logprobs: list[TokenLogprobs | None]


class Pooled(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The embedding of a request's prompt: float32 [E], little-endian, not normalised. Comes once, instead of
    `Tokens`."""

    request_id: str
    vector: bytes


class Traced(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """What a step did for a request that asks to be told. Comes before that step's `Tokens`.

    seconds, plain_seconds and prefill_rows are those of the whole step, all requests together, as in `StepStats`.
    """

    request_id: str
    trace: StepTrace
    seconds: float
    plain_seconds: float
    prefill_rows: int


class Tokens(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The tokens that one step gave a request, in order. logprobs has one entry for each, where the request asks."""

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None


class Finished(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The request has ended as it should, or as its caller asked. stop_token_id is the token that stopped it, if one
    did."""

    request_id: str
    reason: FinishReason
    stats: RequestStats
    stop_token_id: int | None = None


class Rejected(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The request was never run. `param` names the OpenAI field at fault, `code` is a word for machines."""

    request_id: str
    message: str
    param: str | None
    code: str


class Failed(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The request cannot go on, while all others do.

    The caller is told message and code. Where code is None the message is for the server's log alone.
    """

    request_id: str
    message: str
    code: str | None = None


RequestEvent = PromptProgress | PromptLogprobs | Pooled | Traced | Tokens | Finished | Rejected | Failed
