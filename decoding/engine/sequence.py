"""A sequence: one request the engine has taken on, with everything that belongs to it; and its part of one step.

Owns its rows in the KV cache, its processors and its counts, and changes by its verbs alone. A part is pure: what it
says of logits is told to the sequence by the engine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from decoding.cache.batch import LogitRows, Segment
from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.kv_store import KvRows, slots_of
from decoding.cache.prefix_index import namespace_digest
from decoding.cache.top_token_store import TopTokenStore
from decoding.core.request import FinishReason, Request
from decoding.core.stats import DraftOutcome, RequestStats
from decoding.core.step_result import Retired
from decoding.core.token_logprobs import TokenLogprobs
from decoding.core.tree import DraftTree, IntArray, Verdict
from decoding.drafting.draft_model.state import DraftCost
from decoding.drafting.one_tree.prediction import Prediction
from decoding.drafting.sequence_drafter import SequenceDrafter
from decoding.engine.sharing.fair_queue import Turn
from decoding.sampling.asked import Asked, Drawn
from decoding.sampling.logits_processors import LogitsProcessors
from decoding.sampling.step_sampler import Drawing
from decoding.stores.successor_table import NUM_SUCCESSORS


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """drafter: what drafts for it. processors, prediction: None where the request asks for none.

    Times are seconds on the monotonic clock.
    """

    request: Request
    drafter: SequenceDrafter
    processors: LogitsProcessors | None = None
    prediction: Prediction | None = None
    rows: KvRows | None = None  # None while it waits
    num_observed: int = 0  # rows of the prompt that drafting has learnt from, or never will
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])  # of tokens run so far
    arrived: float = field(default_factory=time.monotonic)
    first_token: float = 0.0
    turn: Turn = field(init=False)
    stats: RequestStats = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.turn = Turn(request.tenant, request.call_id, self.arrived, request.weight, request.priority)
        self.stats = RequestStats(prompt_tokens=len(self.request.prompt), resumed_tokens=self.request.num_output)

    @property
    def num_committed(self) -> int:
        return self.rows.length if self.rows else 0

    @property
    def tokens_to_find(self) -> IntArray:
        """Those whose rows another sequence may have run: not the last, which is the next root, and none whose log
        probabilities are still to be told."""
        if self.request.sampling.prompt_logprobs is not None and self.request.num_output == 0:
            return self.request.tokens[: len(self.prompt_logprobs) - 1]
        return self.request.tokens[:-1]

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
            names = (self.request.tenant, self.request.cache_salt)
            self.rows = KvRows(pool.open(namespace_digest(*names)))
        num_found = pool.find(self.rows.table, self.tokens_to_find) * BLOCK_LEN
        self.rows.length += num_found
        return num_found

    def note_admission(self) -> int:
        """It runs from here on; the tokens of its prompt, 0 if it has run before."""
        if self.stats.preemptions:
            return 0
        self.stats.queue_seconds = time.monotonic() - self.arrived
        return len(self.request.prompt)

    def note_found(self, num_found: int) -> int:
        """So many tokens need not be run; how many of them are news, 0 if it has run before."""
        if self.stats.preemptions:
            return 0
        self.stats.cached_tokens += num_found
        return num_found

    def release(self, pool: BlockPool) -> None:
        """Give up its blocks, if it has any; they can be found by the tokens they hold."""
        if self.rows is not None:
            pool.publish(self.rows.table, self.request.tokens[: self.rows.length])
            pool.release(self.rows.table)
            self.rows = None
            self.drafter.forget_rows()

    def note_preemption(self) -> None:
        """Its room went to another; it is run again later."""
        self.stats.preemptions += 1

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
        method = self.drafter.active.choice.method
        stats.steps_by_method[method] = stats.steps_by_method.get(method, 0) + 1
        if outcome is not None:
            stats.counts.count(outcome)
        self.drafter.note_step(tree, verdict, cost)
        return num_emitted

    def end(self, reason: FinishReason) -> Retired:
        """Say what the sequence came to."""
        stop_token_id = int(self.request.output[-1]) if reason is FinishReason.STOP else None
        return Retired(self.request.id, reason, self.close(), stop_token_id)

    def close(self) -> RequestStats:
        """The statistics, all told."""
        choice, stats = self.drafter.active.choice, self.stats
        stats.method, stats.choice, stats.reason = choice.method, choice.kind, choice.reason
        stats.foretold_by_source = self.drafter.foretold
        if self.prediction is not None:
            self.prediction.follow(self.request.output)
            stats.accepted_prediction_tokens = self.prediction.num_found
            stats.rejected_prediction_tokens = len(self.request.prediction) - self.prediction.num_found
        return stats


@dataclass(frozen=True, slots=True)
class SequencePart:
    """chunk: prompt tokens in a chain from position `start` on; tree: its root follows the chunk, None where the prompt
    goes on in the next step. cost: the draft model's; budget: the nodes the tree was allowed; harvest_rows: how many of
    the prompt's last rows are worth being learnt from; has_looked: whether there was a look for a tree."""

    sequence: Sequence
    start: int
    chunk: IntArray
    tree: DraftTree | None
    cost: DraftCost
    budget: int
    harvest_rows: int
    has_looked: bool

    @property
    def num_tokens(self) -> int:
        return len(self.chunk) + (0 if self.tree is None else len(self.tree))

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to learn from: no tree, by the budget or since none was worth its price."""
        if self.tree is None:
            return False
        return self.budget == 0 or (self.tree.num_drafted == 0 and self.sequence.drafter.weighs_rows)

    @property
    def end(self) -> int:
        """How many of the sequence's tokens precede the tree."""
        return self.start + len(self.chunk)

    @property
    def num_chunk_logits(self) -> int:
        """Of the chunk's rows those whose logits are wanted: the last ones."""
        sequence = self.sequence
        if sequence.request.num_output:  # run again after a preemption, or resumed
            return 0
        if sequence.request.sampling.prompt_logprobs is not None:
            return len(self.chunk)
        first_worth = len(sequence.request.prompt) - 1 - self.harvest_rows
        return max(0, self.end - max(self.start, sequence.num_observed, first_worth))

    @property
    def num_top(self) -> int:
        """How many of the likeliest tokens after each row of logits are kept. After a plain step's none, or it would
        not be cheap; after a prompt's also where the drafter does not ask, for those who find its rows."""
        if self.num_chunk_logits > 0 and self.harvest_rows > 0:
            return NUM_SUCCESSORS
        return 0 if self.is_plain or self.tree is None else self.sequence.drafter.num_top

    def segment(self) -> Segment:
        """The rows of this part."""
        rows = self.sequence.rows
        assert rows is not None
        num_chunk = len(self.chunk)
        if self.tree is None:
            return Segment(rows, self.chunk, None, self.num_chunk_logits)
        logits: LogitRows = self.num_chunk_logits + len(self.tree)
        if num_chunk == 0:
            return Segment(rows, self.tree.tokens, self.tree.parents, logits)
        tokens = np.concatenate((self.chunk, self.tree.tokens))
        chunk_parents = np.arange(-1, num_chunk - 1, dtype=np.int32)
        parents = np.concatenate((chunk_parents, self.tree.parents + np.int32(num_chunk)))
        return Segment(rows, tokens, parents, logits)

    def asked(self, first: int, num_rows: int) -> Asked:
        """What is asked of its rows of the step's logits, which begin at `first`."""
        sequence = self.sequence
        request, next_scored = sequence.request, len(sequence.prompt_logprobs)
        tokens = request.prompt[:0]
        if request.sampling.prompt_logprobs is not None and request.num_output == 0:
            tokens = request.prompt[next_scored : self.end + 1]
        processors = sequence.root_processors
        return Asked(
            request, first, num_rows, self.tree, processors, self.num_top, tokens, next_scored - 1 - self.start
        )

    def tree_rows(self, rows_RV: torch.Tensor) -> torch.Tensor:
        """Of this part's logits those that follow the tree's nodes, a row for each."""
        assert self.tree is not None
        return rows_RV[len(rows_RV) - len(self.tree) :]

    def kept_rows(self, verdict: Verdict | None) -> IntArray:
        """int32: the rows of the segment whose keys and values stay: the chunk and the accepted path."""
        num_chunk = len(self.chunk)
        if num_chunk == 0 and verdict is not None:
            return verdict.path
        chunk = np.arange(num_chunk, dtype=np.int32)
        return chunk if verdict is None else np.concatenate((chunk, verdict.path + np.int32(num_chunk)))


class RunPart(NamedTuple):
    """A part after its forward: its raw logits, and its place among those that `drawing` answers."""

    part: SequencePart
    rows_RV: torch.Tensor
    drawing: Drawing
    place: int

    @property
    def sequence(self) -> Sequence:
        return self.part.sequence

    def verify(self) -> VerifiedPart:
        """What the target says of the tree. Raises BrokenSequence."""
        return VerifiedPart(self.part, self.rows_RV, self.drawing.collect(self.place))


class VerifiedPart(NamedTuple):
    """drawn: what was asked of the raw logits, of which the likeliest tokens are kept and learnt from."""

    part: SequencePart
    rows_RV: torch.Tensor
    drawn: Drawn

    @property
    def sequence(self) -> Sequence:
        return self.part.sequence

    @property
    def verdict(self) -> Verdict | None:
        """Of the target on the tree, None where there is none."""
        return self.drawn.verdict

    def keep_top(self, tops: TopTokenStore) -> None:
        """Note what follows the chunk's rows for all who share them."""
        rows, count, end = self.sequence.rows, self.part.num_chunk_logits, self.part.end
        if self.drawn.top is not None and count:
            assert rows is not None
            tops.write(slots_of(rows.table.blocks, np.arange(end - count, end)), self.drawn.top.rows(0, count))

    def observe(self) -> None:
        """Give the drafter the outcome of its tree."""
        part, verdict, top = self.part, self.drawn.verdict, self.drawn.top
        if part.tree is None or verdict is None or part.is_plain:
            return
        drafter = part.sequence.drafter
        if drafter.num_top == 0:  # the prompt's rows may have been asked for all the same
            top = None
        elif top is not None:
            top = top.rows(len(top) - len(part.tree), len(top)).likeliest(drafter.num_top)
        drafter.observe(part.tree, verdict, top)

    def leave(self) -> None:
        """If that was the sequence's last step, what it drafted with is for others."""
        if self.sequence.request.finish_reason is not None:
            self.sequence.drafter.close()
