"""What crosses the socket between server and worker. The only coupling between the two processes.

Every submitted request is answered by zero or more `Tokens` and exactly one of `Finished`,
`Rejected`, `Failed`. An aborted request is answered by `Finished` with reason "abort".
"""

from __future__ import annotations

import msgspec

from decoding.stats import EngineStats, RequestStats, StepStats


class Sampling(msgspec.Struct, kw_only=True, frozen=True):
    """Wire twin of `decoding.request.SamplingParams`."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: list[int] = []
    ignore_eos: bool = False


class Speculation(msgspec.Struct, kw_only=True, frozen=True):
    """Wire twin of `decoding.request.SpeculationParams`."""

    method: str = "auto"
    max_nodes: int | None = None
    max_depth: int | None = None
    without: list[str] = []
    branching: int = 3
    min_probability: float | None = None
    consensus: str = "occurrences"
    candidates: str | None = None
    verification: str = "match"


class Submit(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    request_id: str
    prompt: list[int]
    sampling: Sampling
    speculation: Speculation
    tenant: str = ""
    session_id: str = "local"


class Abort(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Free a request's slots by the next step. Unknown or finished ids are ignored."""

    request_id: str


class Drain(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Finish what runs, then leave: the worker process exits with status 0."""


class Ready(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """First message of a worker: the model is loaded, tested and warm."""

    model: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: list[int]
    methods: list[str]
    max_nodes: int
    dtype: str
    device: str
    attention: str
    is_exact: bool  # rows proven independent of batch and tree on this machine
    load_seconds: float
    parameters: int
    fingerprint: str  # changes whenever the same seed might give another reply


class LoadProgress(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Start-up news, a sentence each, before `Ready`. fraction is between 0 and 1."""

    sentence: str
    fraction: float


class LoadFailed(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The worker cannot serve this model with these options; it exits after saying so."""

    error: str


class Tokens(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """Tokens emitted for one request by one step, in order; `sources[i]` is `tree.Source` of `token_ids[i]`."""

    request_id: str
    token_ids: list[int]
    sources: list[int]


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
    """The engine broke while running the request."""

    request_id: str
    message: str


class StepReport(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    step: StepStats | None  # None: an idle heartbeat
    engine: EngineStats


ToWorker = Submit | Abort | Drain
FromWorker = Ready | LoadProgress | LoadFailed | Tokens | Finished | Rejected | Failed | StepReport


class Batch(msgspec.Struct, frozen=True):
    """All messages of one step travel as one frame."""

    messages: list[FromWorker]
