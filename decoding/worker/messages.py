"""What crosses the socket between server and worker. The only coupling between the two processes.

Every submitted request is answered by zero or more `Tokens` and exactly one of `Finished`,
`Rejected`, `Failed`. An aborted request is answered by `Finished` with reason "abort". Questions about
sessions carry an `id` that their answer repeats.
"""

from __future__ import annotations

import msgspec

from decoding.core.sampling_params import SamplingParams
from decoding.core.session_info import SessionInfo, SessionState
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import EngineStats, RequestStats, StepStats
from decoding.core.step_trace import StepTrace
from decoding.core.token_logprobs import TokenLogprobs


class Submit(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """prediction: token ids of the text the reply is expected to be, as far as it is known. resumed: the tokens of the
    reply that a worker gave before it died; the reply goes on after them. call_id: of the HTTP call; weight: of the
    tenant against others; priority: lower goes first."""

    request_id: str
    prompt: list[int]
    sampling: SamplingParams
    speculation: SpeculationParams
    tenant: str = ""
    cache_salt: str = ""
    session_id: str = "local"
    call_id: str = ""
    weight: float = 1.0
    priority: int = 0
    prediction: list[int] = []
    resumed: list[int] = []


class Abort(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Free a request's slots by the next step. Unknown or finished ids are ignored."""

    request_id: str


class Drain(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Finish what runs, then leave: the worker process exits with status 0."""


class ListSessions(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Answered by `Sessions`. tenant: whose; None for everybody's."""

    id: str
    tenant: str | None


class DeleteSession(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Forget what drafting remembers of a session; answered by `SessionDeleted`. Running requests are not touched."""

    id: str
    tenant: str
    session_id: str


class CopySession(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Answered by `SessionCopied`."""

    id: str
    tenant: str
    session_id: str


class RestoreSession(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Go on with what drafting remembered of a session elsewhere; one that is there already stays as it is. Answered by
    `SessionRestored`."""

    id: str = ""
    state: SessionState


class HandOver(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Tell at once of every session that was used since it was last told of; answered by `HandedOver` after them."""

    id: str


class Ready(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """First message of a worker: the model is loaded, tested and warm.

    max_model_len: longest prompt and reply together; model_context_len: what the model itself could; context_note: a
    sentence where the first is less. expected_bytes: once the cache is full, sessions apart.
    """

    model: str
    max_model_len: int
    model_context_len: int
    context_note: str | None
    max_running: int
    max_batch_rows: int
    kv_slots: int
    expected_bytes: int
    vocab_size: int
    eos_token_ids: list[int]
    methods: list[str]
    max_nodes: int
    dtype: str
    weights: str  # int8, or the dtype
    device: str
    attention: str
    is_exact: bool  # rows proven independent of batch and tree on this machine
    load_seconds: float
    parameters: int
    fingerprint: str  # changes whenever the same seed might give another reply
    identity: str  # of the model, on whatever machine


class LoadProgress(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Start-up news, a sentence each, before `Ready`. fraction is between 0 and 1."""

    sentence: str
    fraction: float


class Compiling(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The methods whose requests still run plain, since what they call is being compiled. Comes before `Ready` if there
    are any, and whenever there are fewer, none at last."""

    methods: list[str]


class LoadFailed(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The worker cannot serve this model with these options; it exits after saying so."""

    error: str


class Broke(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Last word of a worker that cannot go on: it exits, and its requests are for another one to go on with."""

    error: str


class Tokens(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Tokens emitted for one request by one step, in order. logprobs: one for each, where the request asks for them."""

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None


class Traced(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """What a step did for a request that asks to be told; comes before that step's `Tokens`.

    Of the whole step, all requests together, as in `StepStats`: seconds, plain_seconds, prefill_rows.
    """

    request_id: str
    trace: StepTrace
    seconds: float
    plain_seconds: float
    prefill_rows: int


class PromptLogprobs(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """One for each prompt token, None for the first, which follows nothing. Comes once, before the first `Tokens`."""

    request_id: str
    logprobs: list[TokenLogprobs | None]


class Finished(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """reason: "stop", "length" or "abort"; stop_token_id: the token that stopped it, if one did."""

    request_id: str
    reason: str
    stats: RequestStats
    stop_token_id: int | None = None


class Rejected(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The request was never run; `param` names the OpenAI field at fault."""

    request_id: str
    message: str
    param: str | None
    code: str


class Failed(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The request could not go on. code: of what its caller may be told, with the message; None for what only our
    log is for."""

    request_id: str
    message: str
    code: str | None = None


class Sessions(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Least recently used first."""

    id: str
    sessions: list[SessionInfo]


class SessionDeleted(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    id: str
    found: bool


class SessionCopied(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """state: None, where there is no such session."""

    id: str
    state: SessionState | None


class SessionRestored(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """problem: why it could not be, a clause."""

    id: str
    problem: str | None


class HandedOver(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    id: str


class Beat(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The process lives; comes every second, from its start on. busy_seconds: how long its loop has been at its present
    round, 0 before `Ready`."""

    busy_seconds: float


class SessionKept(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """What drafting remembers of a session, for the next worker. Comes now and then for each that was used."""

    state: SessionState


class SessionForgotten(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The next worker need not remember it either."""

    tenant: str
    session_id: str


class StepReport(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The steps since the last report, none while the worker idles, and the engine now. Comes now and then, since a
    report for every step would cost more than the step's own counting."""

    steps: list[StepStats]
    engine: EngineStats


SessionQuestion = ListSessions | DeleteSession | CopySession | RestoreSession | HandOver
SessionAnswer = Sessions | SessionDeleted | SessionCopied | SessionRestored | HandedOver
ToWorker = Submit | Abort | Drain | SessionQuestion
RequestEvent = PromptLogprobs | Traced | Tokens | Finished | Rejected | Failed
StartEvent = LoadProgress | Compiling | Ready | LoadFailed
SessionNews = SessionKept | SessionForgotten
FromWorker = StartEvent | Beat | Broke | RequestEvent | StepReport | SessionNews | SessionAnswer


class Batch(msgspec.Struct, frozen=True):
    """All messages of one step travel as one frame."""

    messages: list[FromWorker]
