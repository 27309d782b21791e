"""What the draft model keeps of one sequence, and what passes between it and the tree that grows there.

Knows nothing of models. Invariant: the committed rows are the first tokens of the sequence, in the blocks that hold
the target's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from decoding.cache.block_pool import BlockTable
from decoding.cache.kv_store import KvRows, KvStore
from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import IntArray
from decoding.costs.price import DraftBudget

LONG_READ = 16  # tokens of a forward; a step adds no more than a path and a bonus token


class DraftRows(NamedTuple):
    """Rows to forward next. tokens: int32 [n], the new ones; parents: int32 [w + n], of all rows of the tree so far."""

    tokens: IntArray
    parents: IntArray


class Grower(Protocol):
    """A tree that grows from what the draft model says of it."""

    def prepare(self, budget: DraftBudget) -> bool:
        """Set out on the next tree; whether the draft model's part in it is worth its forwards. Where it is not, the
        draft model reads up later."""

    def begin(self, budget: DraftBudget, most_rows: int, most_depth: int) -> None:
        """Start a tree at the last token; `most_rows` may be asked for, none deeper than `most_depth`."""

    def grow(self, top: TopTokens) -> DraftRows | None:
        """Take in what follows the rows asked for last (at first: the root), and ask for more, or for none. Of a block
        it is all at once what follows each depth, from the root on."""


class DraftCost(NamedTuple):
    """What the draft model took for one sequence in a step: its share of the seconds of so many forwards, by the tokens
    that it ran in them."""

    seconds: float = 0.0
    num_forwards: int = 0
    num_tokens: int = 0

    @property
    def is_usual(self) -> bool:
        """False where it read much that is read once, and the seconds do not tell what drafting costs."""
        return self.num_tokens <= LONG_READ * self.num_forwards

    @property
    def usual_seconds(self) -> float:
        """Those that tell what drafting costs."""
        return self.seconds if self.is_usual else 0.0


NO_COST = DraftCost()


@dataclass(slots=True, eq=False)
class DraftModelState:
    """One sequence's part of the draft model. vocab_size: of the tokens that target and draft model both have;
    reads_tokens_alone: whether its rows are made of nothing else, so that those of a tree stay as they are once they
    are accepted, and one may be run in a forward with its parent's. block_len: as of a `DraftBudget`; what names a
    block has no rows of its own that stay. is_block: whether it says in one go what follows each depth, whatever the
    path."""

    request: Request
    store: KvStore
    vocab_size: int
    reads_tokens_alone: bool = True
    block_len: int = 1
    is_block: bool = False
    grower: Grower | None = None
    rows: KvRows | None = None
    _cost: DraftCost = NO_COST

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
        if self.block_len > 1:
            return 0
        return self.request.num_tokens - (self.rows.length if self.rows is not None else 0)

    def note_forward(self, seconds: float, num_tokens: int) -> None:
        """A draft forward, of which this sequence's tokens took `seconds`."""
        cost = self._cost
        self._cost = DraftCost(cost.seconds + seconds, cost.num_forwards + 1, cost.num_tokens + num_tokens)

    def take_cost(self) -> DraftCost:
        """The cost since it was last taken."""
        cost, self._cost = self._cost, NO_COST
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


class KeptTokens(NamedTuple):
    """The tokens of one sequence that stay after a step. rows: int64 [k], where they are in the step's batch; slots:
    int64 [k], where they are in the cache; positions: int64 [k], in the sequence."""

    rows: NDArray[np.int64]
    slots: NDArray[np.int64]
    positions: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fallback:
    """The draft model can do nothing more for a sequence. reason: of `stats.REFUSAL_REASONS`; `sentence` says why."""

    reason: str
    sentence: str


class Proposer(Protocol):
    """What drafts for all sequences together: a draft model or a head. reads_features: whether it drafts from what the
    target computed, of every step."""

    reads_features: bool

    def open(self, request: Request) -> DraftModelState:
        """What is kept of a new sequence."""

    def keep_features(self, kept: Iterable[KeptTokens]) -> None:
        """The target's last forward is through; kept: of each sequence the tokens of it that stay. Read by those alone
        that draft from what the target computed."""

    def grow_batch(self, requests: Sequence[GrowthRequest]) -> dict[DraftModelState, Fallback]:
        """Bring every sequence up to date and grow the trees of those that are and have a budget, for their growers to
        propose; which ones it can do nothing more for."""
