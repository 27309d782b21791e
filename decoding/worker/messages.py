"""The messages between server and worker, with those of `calls` beside. Beside the file of what runs they are all that
the two processes share.

Every submitted request is answered by zero or more `Tokens` and exactly one of `Finished`, `Rejected`, `Failed` (see
`decoding.core.events`). An aborted request is answered by `Finished` with the reason "abort". A question about sessions
carries an `id` that its answer repeats.
"""

from __future__ import annotations

import msgspec

from decoding.core.events import RequestEvent
from decoding.core.session_info import SessionInfo, SessionState
from decoding.core.stats import EngineStats, StepStats
from decoding.worker.calls import Call


class Abort(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """End a request and free its slots by the next step. Unknown and finished ids are ignored."""

    request_id: str


class Drain(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Finish the requests that run, then leave: the worker process exits with status 0."""


class ListSessions(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """List a tenant's sessions, or everybody's where tenant is None. Answered by `Sessions`."""

    id: str
    tenant: str | None


class DeleteSession(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Forget what drafting remembers of a session. Running requests go on. Answered by `SessionDeleted`."""

    id: str
    tenant: str
    session_id: str


class CopySession(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Tell all that drafting remembers of a session. Answered by `SessionCopied`."""

    id: str
    tenant: str
    session_id: str


class RestoreSession(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Take over what another process remembered of a session, unless this one has the session already and may not
    replace it. Answered by `SessionRestored`."""

    id: str = ""
    state: SessionState
    replaces: bool = False


class HandOver(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Send at once a copy of every session that was used since its last one. `HandedOver` follows them."""

    id: str


class Ready(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The model is loaded, tested and warm, and requests may come.

    max_model_len is the most tokens of a prompt and its reply together, model_context_len the most that the model
    itself takes, and context_note a sentence that says why the first is less, if it is. expected_bytes is what the
    worker takes once the cache is full, without sessions. state_bytes is what layers carry from token to token in one
    sequence.
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
    weights: str  # "int8", "int4", or the dtype
    device: str
    attention: str
    is_exact: bool  # on this machine a token's logits were proven not to depend on batch, tree and prompt
    load_seconds: float
    parameters: int
    fingerprint: str  # changes whenever the same seed might give another reply
    identity: str  # of the model, the same on every machine
    state_bytes: int = 0
    kv_dtype: str = ""  # of keys and values in the cache
    blindness: str | None = "it reads text alone"  # why it takes no pictures, a clause; None where it does
    embedding_len: int = 0  # numbers of an embedding; 0 where this model gives none
    exact_rows: int = 0  # where is_exact is false: in steps of up to so many tokens they do not


class LoadProgress(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """One sentence of news of the start-up. Comes before `Ready`. fraction is between 0 and 1."""

    sentence: str
    fraction: float


class Compiling(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The drafting methods whose kernels are still being compiled; their requests run plain. Comes before `Ready` if
    there are any, then whenever there are fewer, until there is none."""

    methods: list[str]


class LoadFailed(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The worker cannot serve this model with these options; it exits after saying so."""

    error: str


class Broke(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The last message of a worker that cannot go on. It exits, and another one has to go on with its requests."""

    error: str


class Sessions(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The answer to `ListSessions`, least recently used first."""

    id: str
    sessions: list[SessionInfo]


class SessionDeleted(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The answer to `DeleteSession`: whether there was such a session."""

    id: str
    found: bool


class SessionCopied(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The answer to `CopySession`. state is None where there is no such session."""

    id: str
    state: SessionState | None


class SessionRestored(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The answer to `RestoreSession`. problem is a clause that says why the session could not be taken over, if so."""

    id: str
    problem: str | None


class HandedOver(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The answer to `HandOver`, after all that it asked for."""

    id: str


class Beat(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The process lives. Comes every second from its start on. busy_seconds is how long its loop has been at its
    present round, and 0 before `Ready`; still_seconds is how long its load has used no processor, and then 0."""

    busy_seconds: float
    still_seconds: float = 0.0


class SessionKept(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """A part of a copy of what drafting remembers of a session, for the next worker. Copies come now and then of each
    session that was used, one after another. A copy whose last part does not come is none.

    state: the names of the session, and the arrays that follow those of the parts before.
    """

    state: SessionState
    is_first: bool = True
    is_last: bool = True


class SessionForgotten(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """This worker forgot the session, and the next one need not remember it either."""

    tenant: str
    session_id: str


class StepReport(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The counts of the steps since the last report (none while the worker idles), and the engine as it is now.

    Comes now and then, since a report of every step would cost more than the step's own counting.
    """

    steps: list[StepStats]
    engine: EngineStats


SessionQuestion = ListSessions | DeleteSession | CopySession | RestoreSession | HandOver
SessionAnswer = Sessions | SessionDeleted | SessionCopied | SessionRestored | HandedOver
ToWorker = Call | Abort | Drain | SessionQuestion
StartEvent = LoadProgress | Compiling | Ready | LoadFailed
SessionNews = SessionKept | SessionForgotten
FromWorker = StartEvent | Beat | Broke | RequestEvent | StepReport | SessionNews | SessionAnswer


class Batch(msgspec.Struct, frozen=True):
    """All messages of one step travel as one frame."""

    messages: list[FromWorker]
