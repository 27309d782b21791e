"""One sequence's part of one step: a record that the step's phases fill in, one after the other.

Owned by the engine's step, gone after it. Each field is written by one phase and read by those after it. What happens
to the sequence itself happens by the sequence's own verbs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from decoding.cache.batch import LogitRows, Segment, StepBatch, within
from decoding.cache.block_pool import BLOCK_LEN, BlockTable
from decoding.cache.kv_store import KvRows, KvStore, slots_of
from decoding.cache.top_token_store import TopTokenStore
from decoding.core.events import PromptProgress
from decoding.core.tree import DraftTree, IntArray, Verdict, root_only, tree_of_root
from decoding.costs.price import NOTHING, DraftBudget
from decoding.drafting.draft_model.state import NO_COST, DraftCost, KeptTokens
from decoding.drafting.sequence_drafter import SequenceDrafter
from decoding.engine.sequence import Sequence
from decoding.model.features import LastHidden
from decoding.sampling.asked import Asked, Drawn
from decoding.sampling.step_sampler import Drawing
from decoding.stores.successor_table import NUM_SUCCESSORS

MARKED_EVERY = 64  # blocks of long prompts
NO_TOKENS: IntArray = np.empty(0, np.int32)
ROOT_TO_COME = root_only(-1)


@dataclass(slots=True, eq=False)
class SequenceStep:
    """What each phase fills in.

    Scheduled: `sequence`, and of its tokens the chunk, int32, of its prompt from position `start` on; `tree`, the root
    alone, for drafting to grow, None where the prompt goes on in the next step. Probed: `chance`, how likely the
    likeliest next token is. Priced: `budget`, nothing unless drafting is worth it, None where there is no tree;
    `harvest_len`, how many of the prompt's last tokens drafting learns from; `harvest_room`, of how many in this step
    there may be logits. Drafted: `tree`, `cost` of the draft model, `refusal`, why that does no more for the sequence.
    Packed: `place` in the batch, `first_row` of its tokens there, `first_logit` and `num_logits`, its rows of the
    step's logits. Launched: `is_kept`, whether its rows are committed already, since another step follows it before
    its token is known. Sampled: `drawn`. Committed: `num_emitted`.
    """

    sequence: Sequence
    start: int
    chunk: IntArray
    tree: DraftTree | None
    chance: float | None = None
    budget: DraftBudget | None = None
    harvest_len: int = 0
    harvest_room: int = 0
    cost: DraftCost = NO_COST
    refusal: str | None = None
    place: int = 0
    first_row: int = 0
    first_logit: int = 0
    num_logits: int = 0
    is_kept: bool = False
    drawn: Drawn | None = None
    num_emitted: int = 0

    @classmethod
    def of(cls, sequence: Sequence, num_tokens: int) -> SequenceStep:
        """The next tokens of a sequence, the root among them if they are all it has."""
        start, tokens = sequence.num_committed, sequence.request.tokens
        end = start + num_tokens
        assert start < end <= len(tokens), (sequence.request.id, start, end, len(tokens))
        if end < len(tokens):
            return cls(sequence, start, tokens[start:end], None)
        return cls(sequence, start, tokens[start : end - 1], tree_of_root(tokens[end - 1 :]), budget=NOTHING)

    @classmethod
    def ahead(cls, sequence: Sequence, start: int, place: int) -> SequenceStep:
        """The root that a step under way draws, at this place of a step of roots alone."""
        step = cls(sequence, start, NO_TOKENS, ROOT_TO_COME, budget=NOTHING)
        step.place = step.first_row = step.first_logit = place
        step.num_logits = 1
        return step

    @property
    def is_ahead(self) -> bool:
        """Whether it was launched before its root was known."""
        return self.tree is ROOT_TO_COME

    @property
    def drafter(self) -> SequenceDrafter:
        return self.sequence.drafter

    @property
    def table(self) -> BlockTable:
        """The blocks that it runs in."""
        return self.rows.table

    @property
    def rows(self) -> KvRows:
        rows = self.sequence.rows
        assert rows is not None, self.sequence.request.id
        return rows

    @property
    def is_probed(self) -> bool:
        """Whether the stores were asked what comes next."""
        return self.chance is not None and self.drafter.is_weighed

    @property
    def num_harvested(self) -> int:
        """Of a drafted tree the nodes whose logits were learned from."""
        is_learned = self.tree is not None and self.drawn is not None and self.drawn.top is not None
        return len(self.tree) if self.tree is not None and is_learned and len(self.tree) > 1 else 0

    @property
    def num_tokens(self) -> int:
        return len(self.chunk) + (0 if self.tree is None else len(self.tree))

    @property
    def end(self) -> int:
        """How many of the sequence's tokens the target knows after the step, whatever it accepts."""
        return self.start + len(self.chunk) + (self.tree is not None)

    @property
    def knows_more(self) -> bool:
        """Whether the prompt has rows that drafting has not learnt from."""
        return self.sequence.num_observed < len(self.sequence.request.prompt) - 1

    @property
    def verdict(self) -> Verdict | None:
        """The target's on the tree."""
        return None if self.drawn is None else self.drawn.verdict

    @property
    def emitted_nodes(self) -> IntArray:
        """int32: of the accepted path below the root what was emitted; a stop may have cut the rest."""
        assert self.verdict is not None, self.sequence.request.id
        return self.verdict.path[1 : 1 + self.num_emitted]

    @property
    def learns(self) -> bool:
        """Whether drafting learns from the tree: not from a plain step's, or that would not be cheap."""
        if self.tree is None or self.budget is None or self.budget.max_nodes == 0:
            return False
        return self.drafter.learns_from(self.tree)

    @property
    def num_chunk_logits(self) -> int:
        """Of the chunk's tokens those whose logits are wanted: the last ones."""
        num_chunk = len(self.chunk)
        if num_chunk == 0 or self.sequence.request.num_output:  # run again after a preemption, or resumed
            return 0
        if self.sequence.scores_prompt:
            return num_chunk
        first_worth = len(self.sequence.request.prompt) - 1 - self.harvest_len
        num_worth = self.start + num_chunk - max(self.start, self.sequence.num_observed, first_worth)
        return max(0, min(num_worth, self.harvest_room))

    @property
    def num_top(self) -> int:
        """How many of the likeliest tokens after each row of logits are kept; after a prompt's also where the drafter
        does not ask, for those who find its rows."""
        if self.harvest_len > 0 and self.num_chunk_logits > 0:
            return NUM_SUCCESSORS
        return self.drafter.num_top if self.learns else 0

    def segment(self) -> Segment:
        """What it brings to the step's batch."""
        num_chunk, tree, sequence = len(self.chunk), self.tree, self.sequence
        embedded = within(sequence.pictures, self.start, self.end) if sequence.pictures else ()
        of_pictures = embedded, sequence.rotary, sequence.joint
        if tree is None:
            return Segment(self.rows, self.chunk, None, self.num_chunk_logits, 0, None, *of_pictures)
        if num_chunk == 0:
            return Segment(self.rows, tree.tokens, tree.parents, len(tree.tokens), 0, None, *of_pictures)
        logits: LogitRows = self.num_chunk_logits + len(tree)
        tokens = np.concatenate((self.chunk, tree.tokens))
        chunk_parents = np.arange(-1, num_chunk - 1, dtype=np.int32)
        parents = np.concatenate((chunk_parents, tree.parents + np.int32(num_chunk)))
        return Segment(self.rows, tokens, parents, logits, 0, num_chunk + 1, *of_pictures)

    def mark_state(self) -> None:
        """Have the forward keep what layers carry after some of the chunk's blocks, for who begins with the same
        tokens: after the last block that can be found, after the last that others had, too, and, where there is room
        to spare, now and then."""
        state, digests = self.rows.state, self.table.digests
        if state is None:
            return
        last, common = len(self.sequence.keys_to_find) // BLOCK_LEN, self.table.num_matched
        for block in range(self.start // BLOCK_LEN + 1, (self.start + len(self.chunk)) // BLOCK_LEN + 1):
            is_spare = block not in (last, common)
            if block <= len(digests) and not (is_spare and block % MARKED_EVERY):
                state.pool.mark(state, block * BLOCK_LEN - self.start, digests[block - 1], is_spare)

    def ask(self) -> Asked:
        """What is asked of its rows of the step's logits."""
        sequence, request = self.sequence, self.sequence.request
        first, num_rows, law, processors = self.first_logit, self.num_logits, sequence.law, sequence.root_processors
        if not sequence.scores_prompt:
            return Asked(request, law, first, num_rows, self.tree, processors, self.num_top, NO_TOKENS, 0, self.end)
        next_scored = len(sequence.prompt_logprobs)
        tokens = request.prompt[next_scored : self.start + len(self.chunk) + 1]
        first_scored = next_scored - 1 - self.start
        return Asked(request, law, first, num_rows, self.tree, processors, self.num_top, tokens, first_scored, self.end)

    def collect(self, drawing: Drawing) -> None:
        """Take what the sampler drew for it. Raises BrokenSequence."""
        self.drawn = drawing.collect(self.place)

    def tree_rows(self, logits_RV: torch.Tensor) -> torch.Tensor:
        """Of the step's logits those that follow the tree's nodes, a row for each."""
        assert self.tree is not None
        end = self.first_logit + self.num_logits
        return logits_RV[end - len(self.tree) : end]

    def kept_rows(self) -> IntArray:
        """int32: which of its tokens stay in the cache: the chunk and the accepted path."""
        num_chunk, verdict = len(self.chunk), self.verdict
        if num_chunk == 0 and verdict is not None:
            return verdict.path
        chunk = np.arange(num_chunk, dtype=np.int32)
        return chunk if verdict is None else np.concatenate((chunk, verdict.path + np.int32(num_chunk)))

    def keep(self, store: KvStore) -> None:
        """Commit its rows, unless they are: the chunk's and the accepted path's."""
        if not self.is_kept:
            store.commit(self.rows, self.kept_rows())
            self.is_kept = True

    def kept_tokens(self) -> KeptTokens:
        """Before they are committed."""
        rows = self.kept_rows()
        positions = np.arange(self.start, self.start + len(rows))
        return KeptTokens(rows + np.int64(self.first_row), slots_of(self.table.blocks, positions), positions)

    def keep_top(self, tops: TopTokenStore) -> None:
        """Note what follows the chunk's tokens, for all who share them."""
        count, end = self.num_chunk_logits, self.start + len(self.chunk)
        if count and self.drawn is not None and self.drawn.top is not None:
            tops.write(slots_of(self.table.blocks, np.arange(end - count, end)), self.drawn.top.rows(0, count))

    def pool(self, hidden: LastHidden) -> None:
        """Add its tokens' hidden states to what is pooled of the prompt."""
        pooled, end = self.sequence.pooled, self.first_row + self.num_tokens
        assert pooled is not None, self.sequence.request.id
        pooled.add(hidden.rows(self.first_row if pooled.reads_all else end - 1, end))

    def observe(self) -> None:
        """Give the drafter the outcome of its tree."""
        if self.tree is None or self.drawn is None or self.drawn.verdict is None or not self.learns:
            return
        top = self.drawn.top if self.drafter.num_top else None  # the prompt's may have been asked for all the same
        if top is not None and self.num_logits > len(self.tree):
            top = top.rows(self.num_logits - len(self.tree), self.num_logits).likeliest(self.drafter.num_top)
        self.drafter.observe(self.tree, self.drawn.verdict, top)


def note_places(steps: list[SequenceStep], batch: StepBatch) -> None:
    """Where each step's tokens and logits are in the batch that they are packed in, in this order."""
    first_rows, first_logits = batch.offsets.tolist(), batch.logit_offsets.tolist()
    for place, step in enumerate(steps):
        step.place, step.first_row, step.first_logit = place, first_rows[place], first_logits[place]
        step.num_logits = first_logits[place + 1] - first_logits[place]


def progress_of(steps: list[SequenceStep]) -> list[PromptProgress]:
    """How far those prompts are that the steps do not bring to their end, where it is time to tell."""
    now = time.monotonic()
    progress = (step.sequence.take_progress(now) for step in steps if step.tree is None)
    return [each for each in progress if each is not None]
