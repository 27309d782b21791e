"""A sequence: one request the engine has taken on, with everything that belongs to it.

Owns its rows in the KV cache, its processors and its counts, and changes by its verbs alone.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from decoding.cache.batch import EmbeddedRows
from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.kv_store import KvRows, slots_of
from decoding.cache.prefix_index import namespace_digest
from decoding.cache.top_token_store import TopTokenStore
from decoding.core.events import Finished, PromptProgress
from decoding.core.pooling import PooledRows
from decoding.core.request import FinishReason, Request
from decoding.core.stats import DraftOutcome, RequestStats
from decoding.core.token_logprobs import TokenLogprobs
from decoding.core.tree import DraftTree, IntArray, Verdict
from decoding.drafting.draft_model.state import DraftCost
from decoding.drafting.one_tree.prediction import Prediction
from decoding.drafting.sequence_drafter import SequenceDrafter
from decoding.engine.sharing.fair_queue import Turn
from decoding.sampling.law import Law, law_of
from decoding.sampling.logits_processors import LogitsProcessors

PROGRESS_SECONDS = 0.5  # at least, between two that are told of one prompt


def namespace_of(request: Request) -> bytes:
    """Requests share blocks where this is the same."""
    return namespace_digest(request.tenant, request.cache_salt)


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """drafter: what drafts for it. processors, prediction: None where the request asks for none.

    Times are seconds on the monotonic clock.
    """

    request: Request
    drafter: SequenceDrafter
    processors: LogitsProcessors | None = None
    prediction: Prediction | None = None
    pictures: tuple[EmbeddedRows, ...] = ()  # in place of tokens of its prompt
    rows: KvRows | None = None  # None while it waits
    num_observed: int = 0  # rows of the prompt that drafting has learnt from, or never will
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])  # of tokens run so far
    arrived: float = field(default_factory=time.monotonic)
    first_token: float = 0.0
    read_seconds: float = 0.0  # of steps, that its prompt took
    progress_told: float = -math.inf
    law: Law = field(init=False)
    turn: Turn = field(init=False)
    stats: RequestStats = field(init=False)
    pooled: PooledRows | None = field(init=False)  # of the prompt so far, where its embedding is wanted

    def __post_init__(self) -> None:
        request = self.request
        self.law = law_of(request.sampling)
        self.pooled = None if request.pooling is None else PooledRows(request.pooling)
        self.turn = Turn(request.tenant, request.call_id, self.arrived, request.weight, request.priority)
        self.stats = RequestStats(prompt_tokens=len(self.request.prompt), resumed_tokens=self.request.num_output)

    @property
    def num_committed(self) -> int:
        return self.rows.length if self.rows else 0

    @property
    def keys_to_find(self) -> IntArray:
        """Of the tokens whose rows another sequence may have run: not the last, which is the next root, and none whose
        log probabilities are still to be told, or whose hidden states are to be pooled."""
        if self.scores_prompt:
            return self.request.keys[: len(self.prompt_logprobs) - 1]
        if self.request.runs_whole_prompt and self.request.num_output == 0:
            return self.request.keys[: self.num_committed]
        return self.request.keys[:-1]

    @property
    def scores_prompt(self) -> bool:
        """Whether the log probabilities of all its prompt's tokens are to be told."""
        return self.request.sampling.prompt_logprobs is not None and self.request.num_output == 0

    @property
    def num_pending(self) -> int:
        """Tokens known but not yet in the KV store; 1 (the root) once the prompt is through."""
        return self.request.num_tokens - self.num_committed

    @property
    def root_processors(self) -> LogitsProcessors | None:
        """What the root's row goes through; None for nothing."""
        return self.processors if self.processors is not None and self.processors.is_needed else None

    def find_rows(self, pool: BlockPool) -> int:
        """Take over blocks that hold its next tokens, be they run by now or in the coming step; how many tokens."""
        if self.rows is None:
            state = None if pool.states is None else pool.states.open()
            self.rows = KvRows(pool.open(namespace_of(self.request)), state=state)
        num_found = pool.find(self.rows.table, self.keys_to_find) * BLOCK_LEN
        self.rows.length += num_found
        if num_found and self.rows.state is not None:
            self.rows.state.pool.adopt(self.rows.state, self.rows.table.digests[-1])
        return num_found

    def note_admission(self) -> int:
        """It runs from here on; the tokens of its prompt, 0 if it has run before."""
        if self.stats.preemptions:
            return 0
        self.stats.queue_seconds = time.monotonic() - self.arrived
        return len(self.request.prompt)

    def note_found(self, num_found: int) -> int:
        """So many tokens need not be run; how many of its prompt's are news, 0 if it has run before."""
        if self.stats.preemptions:
            return 0
        num_found = min(num_found, len(self.request.prompt) - self.stats.cached_tokens)  # the others were resumed
        self.stats.cached_tokens += num_found
        return num_found

    def publish(self, pool: BlockPool) -> None:
        """Let its full blocks be found by the tokens they hold."""
        if self.rows is not None:
            pool.publish(self.rows.table, self.request.keys[: self.rows.length])

    def release(self, pool: BlockPool) -> None:
        """Give up its blocks, if it has any; they can be found by the tokens they hold."""
        if self.rows is not None:
            self.publish(pool)
            pool.release(self.rows.table)
            if self.rows.state is not None:
                self.rows.state.pool.release(self.rows.state)
            self.rows = None
            self.drafter.forget_rows()
            if self.pooled is not None:
                self.pooled.clear()

    def note_preemption(self) -> None:
        """Its room went to another; it is run again later."""
        self.stats.preemptions += 1

    def take_progress(self, now: float) -> PromptProgress | None:
        """How far its prompt is, where that is to be told again. now: on the monotonic clock."""
        if self.request.num_output or now - self.progress_told < PROGRESS_SECONDS:
            return None
        self.progress_told = now
        processed, cached = self.num_committed, self.stats.cached_tokens
        return PromptProgress(request_id=self.request.id, processed=processed, cached=cached)

    def note_chunk(self) -> None:
        """A chunk of the prompt was run that ends before the root."""
        self.stats.prefill_chunks += 1

    def learn_prompt(self, end: int, tops: TopTokenStore) -> None:
        """Let drafting learn from the prompt's rows before `end`, as far as it holds them, whoever ran them."""
        if self.rows is None:
            return
        first, end = self.num_observed, min(end, len(self.request.prompt) - 1, self.rows.table.capacity)
        if first >= end:
            return
        num_top = self.drafter.num_top
        if num_top:
            for place, top in tops.read(slots_of(self.rows.table.blocks, np.arange(first, end))):
                self.drafter.observe_prefill(first + place, top.likeliest(num_top))
        self.num_observed = end

    def note_prompt_logprobs(self, logprobs: list[TokenLogprobs]) -> None:
        """Of the prompt's next tokens."""
        self.prompt_logprobs += logprobs

    def commit(self, tree: DraftTree, verdict: Verdict, cost: DraftCost) -> int:
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
        method = self.drafter.active.choice.method
        stats.steps_by_method[method] = stats.steps_by_method.get(method, 0) + 1
        self.drafter.note_step(tree, verdict, cost)
        return num_emitted

    def note_outcome(self, outcome: DraftOutcome | None) -> None:
        """What the tree just committed counts for."""
        if outcome is not None:
            self.stats.counts.count(outcome)

    def end(self, reason: FinishReason) -> Finished:
        """Say what the sequence came to."""
        stop_token_id = int(self.request.output[-1]) if reason is FinishReason.STOP else None
        return Finished(request_id=self.request.id, reason=reason, stats=self.close(), stop_token_id=stop_token_id)

    def close(self) -> RequestStats:
        """The statistics, all told."""
        choice, stats = self.drafter.active.choice, self.stats
        stats.method, stats.choice, stats.reason = choice.method, choice.kind, choice.reason
        stats.foretold_by_source = self.drafter.finish()
        if self.prediction is not None:
            self.prediction.follow(self.request.output)
            stats.accepted_prediction_tokens = self.prediction.num_found
            stats.rejected_prediction_tokens = len(self.request.prediction) - self.prediction.num_found
        return stats
