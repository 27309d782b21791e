"""A sequence: one request the engine has taken on, with everything that belongs to it.

Owns its room in the KV store, its processors and its counts, and changes by its verbs alone. Knows nothing of steps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from decoding.cache.store import KvHandle
from decoding.core.request import Request
from decoding.core.stats import DraftOutcome, RequestStats
from decoding.core.token_logprobs import TokenLogprobs
from decoding.core.tree import DraftTree
from decoding.core.verdict import Verdict
from decoding.drafting.draft_model.state import DraftCost
from decoding.drafting.revision.prediction import Prediction
from decoding.drafting.sequence_drafter import SequenceDrafter
from decoding.sampling.logits_processors import LogitsProcessors


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """drafter: what drafts for it. processors, prediction: None where the request asks for none.

    Times are seconds on the monotonic clock.
    """

    request: Request
    drafter: SequenceDrafter
    processors: LogitsProcessors | None = None
    prediction: Prediction | None = None
    handle: KvHandle | None = None
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])  # of tokens run so far
    arrived: float = field(default_factory=time.monotonic)
    first_token: float = 0.0
    stats: RequestStats = field(init=False)

    def __post_init__(self) -> None:
        self.stats = RequestStats(prompt_tokens=len(self.request.prompt))

    @property
    def num_committed(self) -> int:
        return self.handle.length if self.handle else 0

    @property
    def num_pending(self) -> int:
        """Tokens known but not yet in the KV store; 1 (the root) once the prompt is through."""
        return self.request.num_tokens - self.num_committed

    @property
    def root_processors(self) -> LogitsProcessors | None:
        """What the root's row goes through; None for nothing."""
        return self.processors if self.processors is not None and self.processors.is_needed else None

    def admit(self, handle: KvHandle) -> None:
        """Run from here on, with rows in `handle`."""
        self.handle = handle
        self.stats.queue_seconds = time.monotonic() - self.arrived

    def release(self) -> KvHandle | None:
        """Give up the room it had, if it was admitted."""
        handle, self.handle = self.handle, None
        return handle

    def note_chunk(self) -> None:
        """A chunk of the prompt was run that ends before the root."""
        self.stats.prefill_chunks += 1

    def note_prompt_logprobs(self, logprobs: list[TokenLogprobs]) -> None:
        """Of the prompt's next tokens."""
        self.prompt_logprobs += logprobs

    def commit(self, tree: DraftTree, verdict: Verdict, outcome: DraftOutcome | None, cost: DraftCost) -> int:
        """Go on with the tokens of a verified tree, up to the one that ends the reply; how many. cost: the draft
        model's."""
        now, stats = time.monotonic(), self.stats
        num_emitted = self.request.extend(verdict.tokens)
        if self.processors is not None:
            self.processors.catch_up()
        if stats.target_forwards == 0:
            self.first_token = now
            stats.time_to_first_token = now - self.arrived
        stats.target_forwards += 1
        stats.emitted += num_emitted
        stats.decode_seconds = now - self.first_token
        stats.draft_model_seconds += cost.seconds
        method = self.drafter.active.name
        stats.steps_by_method[method] = stats.steps_by_method.get(method, 0) + 1
        if outcome is not None:
            stats.counts.count(outcome)
        self.drafter.note_step(tree, verdict, num_emitted, cost)
        return num_emitted

    def close(self) -> RequestStats:
        """Give back what drafting holds; the statistics of a sequence that ended."""
        self.drafter.close()
        choice, stats = self.drafter.choice, self.stats
        stats.method, stats.choice, stats.reason = choice.method, choice.kind, choice.reason
        if self.prediction is not None:
            self.prediction.follow(self.request.output)
            stats.accepted_prediction_tokens = self.prediction.num_found
            stats.rejected_prediction_tokens = len(self.request.prediction) - self.prediction.num_found
        return stats
