"""What the draft model keeps of one sequence, what passes between it and the tree that grows there, and the rounds.

Knows nothing of models: a forward is given. Invariant: the committed rows are the first tokens of the sequence, in the
blocks that hold the target's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from decoding.cache.batch import Segment
from decoding.cache.block_pool import BlockTable
from decoding.cache.kv_store import KvRows, KvStore
from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import IntArray
from decoding.costs.price import DraftBudget

LONG_READ = 16  # rows of a forward; a step adds no more than a path and a bonus token


class DraftRows(NamedTuple):
    """Rows to forward next. tokens: int32 [n], the new ones; parents: int32 [w + n], of all rows of the tree so far."""

    tokens: IntArray
    parents: IntArray


class Grower(Protocol):
    """A tree that grows from what the draft model says of it."""

    def wants_model(self, budget: DraftBudget) -> bool:
        """Whether the draft model's part in the next tree is worth its forwards; where not it reads up later."""

    def begin(self, budget: DraftBudget, most_rows: int, most_depth: int) -> None:
        """Start a tree at the last token; `most_rows` may be asked for, none deeper than `most_depth`."""

    def grow(self, top: TopTokens) -> DraftRows | None:
        """Take in what follows the rows asked for last (at first: the root), and ask for more, or for none."""


class DraftCost(NamedTuple):
    """What the draft model took for one sequence in a step: its share of the seconds of so many forwards, by its rows
    in them."""

    seconds: float = 0.0
    num_forwards: int = 0
    num_rows: int = 0

    @property
    def is_usual(self) -> bool:
        """False where it read much that is read once, and the seconds do not tell what drafting costs."""
        return self.num_rows <= LONG_READ * self.num_forwards


@dataclass(slots=True, eq=False)
class DraftModelState:
    """One sequence's part of the draft model. vocab_size: of the tokens that target and draft model both have;
    reads_tokens_alone: whether its rows are made of nothing else, so that those of a tree stay as they are once they
    are accepted, and one may be run in a forward with its parent's."""

    request: Request
    store: KvStore
    vocab_size: int
    reads_tokens_alone: bool = True
    grower: Grower | None = None
    rows: KvRows | None = None
    _cost: DraftCost = DraftCost()  # noqa: RUF009

    def grow_with(self, grower: Grower) -> None:
        """Let `grower` say what grows here."""
        self.grower = grower

    def rows_in(self, table: BlockTable) -> KvRows:
        """The draft model's rows in the sequence's blocks."""
        if self.rows is None:
            self.rows = KvRows(table)
        assert self.rows.table is table, self.request.id
        return self.rows

    @property
    def num_unread(self) -> int:
        """Tokens that the draft model has not read."""
        return self.request.num_tokens - (self.rows.length if self.rows is not None else 0)

    def note_forward(self, seconds: float, num_rows: int) -> None:
        """A draft forward, of which this sequence's rows took `seconds`."""
        cost = self._cost
        self._cost = DraftCost(cost.seconds + seconds, cost.num_forwards + 1, cost.num_rows + num_rows)

    def take_cost(self) -> DraftCost:
        """The cost since it was last taken."""
        cost, self._cost = self._cost, DraftCost()
        return cost

    def keep(self, rows: IntArray) -> None:
        """Keep these rows of the tree just grown: those of the accepted path, ascending."""
        if self.reads_tokens_alone and self.rows is not None and len(rows):
            self.store.commit(self.rows, rows)

    def forget_rows(self) -> None:
        """The sequence gives its blocks back."""
        self.rows = None


@dataclass(frozen=True, slots=True)
class GrowthRequest:
    """One sequence's part of a step. table: its blocks, with room for the tree; end: how many of its tokens the target
    knows by then; budget: None where the prompt goes on, so that there is nothing to draft yet."""

    state: DraftModelState
    table: BlockTable
    end: int
    budget: DraftBudget | None


@dataclass(frozen=True, slots=True)
class Fallback:
    """The draft model can do nothing more for a sequence. reason: of `stats.REFUSAL_REASONS`; `sentence` says why."""

    reason: str
    sentence: str


ForwardRows = Callable[[Sequence[tuple[DraftModelState, Segment]]], list[TopTokens]]  # what follows each segment's rows


class Proposer(Protocol):
    """What drafts for all sequences together: a draft model or a head."""

    def open(self, request: Request) -> DraftModelState:
        """What is kept of a new sequence."""

    def grow_batch(self, requests: Sequence[GrowthRequest]) -> dict[DraftModelState, Fallback]:
        """Bring every sequence up to date and grow the trees of those that are and have a budget, for their growers to
        propose; which ones it can do nothing more for."""


def grow_in_rounds(
    unseen: Sequence[tuple[GrowthRequest, Segment]],
    forward: ForwardRows,
    most_depth: Callable[[GrowthRequest], int],
    whose: str,
) -> dict[DraftModelState, Fallback]:
    """Run what was not run yet of each sequence; then let the trees of those that are through to their root grow by
    what follows it and the rows that they ask for, all together, until none asks. Which ones were told what is no
    number. most_depth: of a tree's rows; whose: who told them."""
    unseen = [(request, segment) for request, segment in unseen if len(segment.tokens)]
    tops, growing = _run(forward, [(request.state, segment) for request, segment in unseen]), []
    for (request, segment), top in zip(unseen, tops, strict=True):
        state = request.state
        state.store.commit(segment.rows, np.arange(len(segment.tokens), dtype=np.int32))
        if segment.logits == "last" and request.budget is not None and state.grower is not None:
            state.grower.begin(request.budget, segment.rows.room, most_depth(request))
            growing.append((state, top))
    fallbacks = {}
    while growing:
        asked = []
        for state, top in growing:
            if not np.isfinite(top.probabilities).all():
                fallbacks[state] = Fallback("nan", f"the {whose} gave numbers that are not finite")
                continue
            assert state.grower is not None
            assert state.rows is not None
            rows = state.grower.grow(top)
            if rows is not None:
                num_written = len(rows.parents) - len(rows.tokens)
                asked.append((state, Segment(state.rows, rows.tokens, rows.parents, "all", num_written)))
        growing = list(zip([state for state, _ in asked], _run(forward, asked), strict=True))
    return fallbacks


def _run(forward: ForwardRows, asked: Sequence[tuple[DraftModelState, Segment]]) -> list[TopTokens]:
    """A forward, if there is anything to run, paid by the sequences according to their rows."""
    if not asked:
        return []
    started = time.perf_counter()
    tops = forward(asked)
    seconds, num_rows = time.perf_counter() - started, sum(len(segment.tokens) for _, segment in asked)
    for state, segment in asked:
        state.note_forward(seconds * len(segment.tokens) / num_rows, len(segment.tokens))
    return tops
