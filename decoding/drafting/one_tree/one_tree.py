"""The drafter that grows one tree from every source: its request's part of the grower, and what is learned of it.

Owns a request's context index, its judge and the tree under way. The draft model, its slots and the rounds are
`draft_model`'s. Invariant: whatever comes of a look for a tree, every source is judged on what follows.
"""

from __future__ import annotations

import math

import numpy as np

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Source, Verdict, root_only
from decoding.costs.price import NO_STAKES, NOTHING, DraftBudget, Stakes, chain_gain, price_of
from decoding.drafting.draft_model.growth import Rounds, Top
from decoding.drafting.draft_model.state import DraftRows
from decoding.drafting.harvest import teach_prompt, teach_tree
from decoding.drafting.one_tree.desk import (
    LONGEST_FORESEEN,
    NUM_KEPT,
    SHORTEST_COPIED,
    Desks,
    Sides,
    Stores,
    new_room,
    write_stores,
)
from decoding.drafting.one_tree.grower import NO_ROUNDS, best_part, grow_from_stores, grow_on, plant
from decoding.drafting.one_tree.learning import learn_text, learn_tree, look
from decoding.drafting.sources import Sources
from decoding.drafting.tree.limits import ANY_DEPTH
from decoding.stores.context import ContextIndex
from decoding.stores.successor_table import NUM_SUCCESSORS

FAMILIES = frozenset({Source.CONTEXT, Source.ADJACENCY, Source.NGRAM, Source.DRAFT_MODEL})
_ROOT: IntArray = np.zeros(1, np.int32)
_OVERGROWTH = 4  # nodes to choose from, for each that is wanted
_PROMPT_END = 8  # tokens of the prompt that are kept with the reply, so that its first ones are found
_TOKENS_AHEAD = 32  # that there is room for at once
_LEAST_WORTH = 0.01  # tokens: what looks are taken to earn at the least, and cost at the most for each token
_READING = 128  # tokens at most for which what the draft model has to read is of use


class OneTree:
    """One request's trees. families: of sources that take part. weighs_rows: whether it learns from the target's rows
    only where that is worth its price."""

    def __init__(self, request: Request, sources: Sources, families: frozenset[Source] = FAMILIES) -> None:
        self._request = request
        self._ngrams, self._replies = sources.stores.ngrams, sources.stores.replies
        self.weighs_rows = families == FAMILIES  # who is asked for by name has nothing to put in their place
        families = frozenset(each for each in families if request.speculation.may_use(each.name.lower()))
        self._families = families
        self._has_stores = not families.isdisjoint({Source.ADJACENCY, Source.NGRAM})
        self._state = sources.state if Source.DRAFT_MODEL in families else None
        if self._state is not None:
            self._state.grow_with(self)
        self._foresight = sources.foresight
        self._index = ContextIndex(request.max_total, SHORTEST_COPIED)
        self._index.reserve(request.tokens)
        judges = sources.stores.judges(request.sampling.temperature > 0)
        self._desks = sources.desks or Desks()
        self._desk = self._desks.take(request, self._sides, judges, self._stores)
        self._desk.record.counts[NUM_KEPT] = max(0, len(request.prompt) - _PROMPT_END)
        self._judge = self._desk.record.levels.request
        self._at = self._desk.address
        self._budget = NOTHING
        self._rounds = NO_ROUNDS
        self._is_under_way = False
        self._kept = _ROOT
        self._num_rows = 0  # of the draft model, for the tree under way
        self._spent = self._paid = 0.0  # tokens, on the draft model and on drafting at all
        self._num_seen = 0  # tokens at the last look
        self._room_until = 0  # tokens
        self._chance = 0.0
        self._worth = math.inf  # tokens, of the next look: whoever has found a tree looks at once

    @property
    def num_top(self) -> int:
        """How many of the target's likeliest tokens are wanted of each row."""
        return NUM_SUCCESSORS if self._has_stores and self._budget.harvests else 0

    @property
    def hope(self) -> float:
        """That the token after one that the draft model was run on is among those it thinks likeliest."""
        return float(self._judge.hope[0])

    def is_awake(self, look_price: float) -> bool:
        """Whether to look for a tree: so rarely that looks cost no more than they earn."""
        foresight, num_passed = self._foresight, self._request.num_tokens - self._num_seen
        return num_passed * self._worth > look_price or (foresight is not None and foresight.wakes)

    def look(self, stakes: Stakes = NO_STAKES) -> float:
        """How likely the likeliest next token is, by what the stores say, before any tree is grown; what came meanwhile
        is learned from."""
        num_tokens = self._request.num_tokens
        if num_tokens != self._num_seen:
            self._reserve(num_tokens)
            if self._foresight is not None:
                self._foresight.write(self._desk.record.foreseen, LONGEST_FORESEEN)
            self._chance, worth = look(self._at, num_tokens, stakes)
            self._num_seen, self._worth = num_tokens, max(worth, _LEAST_WORTH)
        return self._chance

    @property
    def has_looked(self) -> bool:
        """Whether it has looked at the last token."""
        return self._num_seen == self._request.num_tokens

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        teach_prompt(self._ngrams, self._request.tokens, start, top)

    def wants_model(self, budget: DraftBudget) -> bool:
        """Whether its rounds promise more than the tree of the stores alone, which then stands if they do not, and
        enough to be worth what it has to read before."""
        if budget.round_price == 0:
            return True
        promise = chain_gain(self.hope, self.hope, budget.model_price)
        least = budget.least_gain + budget.row_price * self._reading
        return promise > least and promise > self._grow_from_stores(budget)

    def begin(self, budget: DraftBudget, most_rows: int, most_depth: int) -> None:
        self._set_out(budget, Rounds(min(most_rows, budget.max_nodes), most_depth))
        plant(self._at, self._request.num_tokens)

    def grow(self, top: TopTokens) -> DraftRows | None:
        assert self._is_under_way, "no tree was begun"
        budget, before, run = self._budget, self._num_rows, self._desk.record.room.run
        self._spent += budget.round_price + budget.row_price * len(top)
        left = Rounds(self._rounds.most_rows - before, self._rounds.most_depth)
        self._num_rows = int(grow_on(self._at, budget, left, Top(top.ids, top.probabilities)))
        if self._num_rows == before:
            return None
        return DraftRows(run.tokens[before : self._num_rows], run.parents[: self._num_rows])

    def propose(self, budget: DraftBudget) -> DraftTree:
        """The tree that has grown in this step, now if the draft model has no part in it; the root alone where a tree
        is not worth its price."""
        if not self._is_under_way:
            self._grow_from_stores(budget)
        self._paid = self._spent + budget.least_gain
        gain, self._kept, *parts = best_part(self._at, self._budget, self._paid)
        if gain <= budget.least_gain:
            self._kept, self._is_under_way = _ROOT, not self.weighs_rows  # what came is judged at the next look
            return root_only(int(self._request.tokens[-1]))
        tokens, parents, sources, names = parts
        return DraftTree(tokens, parents, sources, names=names)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        if not self._is_under_way:
            return
        self._is_under_way, self._worth = False, math.inf
        verified, path = tree.of_nodes(self._kept), verdict.path
        if self._state is not None and self._num_rows:
            rows = self._desk.record.room.rows[verified[path[1:]]]
            self._state.keep(rows[rows >= 0])
        earned = float(verdict.num_accepted - price_of(self._budget.price, tree.num_drafted) - self._paid)
        learn_tree(self._at, verified, path, verdict.tokens, earned)
        teach_tree(self._ngrams, self._request.tokens[: self._num_seen], tree, verdict, top)

    @property
    def foretold(self) -> dict[str, int]:
        """By source, how many of the tokens that came it had thought likeliest, drafted or not."""
        self._reserve(self._request.num_tokens)
        learn_text(self._at, self._request.num_tokens)
        asked = self._families if self._state is not None else self._families - {Source.DRAFT_MODEL}
        if self._foresight is not None and self._foresight.has_prediction:
            asked |= {Source.PREDICTION}
        return {source.name.lower(): int(self._desk.record.foretold[source]) for source in sorted(asked)}

    def close(self) -> None:
        """The request is through, and its desk is for others."""
        self._desks.give_back(self._desk)
        del self._desk, self._at  # which are another's from here on

    @property
    def _reading(self) -> float:
        """Tokens that the draft model has to read before it drafts, for each that they may yet be of use for."""
        assert self._state is not None
        num_left = self._request.max_total - self._request.num_tokens
        return self._state.num_unread / min(num_left, _READING)

    def _grow_from_stores(self, budget: DraftBudget) -> float:
        """A tree without the draft model; what it promises beyond the price of its nodes."""
        self._set_out(budget)
        return grow_from_stores(self._at, self._budget)

    def _set_out(self, budget: DraftBudget, rounds: Rounds = NO_ROUNDS) -> None:
        """A tree is about to grow."""
        self.look()
        self._budget, self._rounds = budget, rounds
        num_nodes = 2 + _OVERGROWTH * budget.max_nodes
        if num_nodes > len(self._desk.record.room.rows):
            self._desk.keep(self._desk.record._replace(room=new_room(num_nodes)))
            self._num_seen = 0  # the root is in the old one
            self.look()
        self._num_rows, self._spent = 0, 0.0
        self._is_under_way = True

    def _reserve(self, num_tokens: int) -> None:
        """Make room for so many of the request's tokens, in its index and in the stores. These, which the session's
        other requests share, may have new arrays."""
        if num_tokens > self._room_until:
            self._room_until = min(num_tokens + _TOKENS_AHEAD, self._request.max_total)
            self._index.reserve(self._request.buffer[: self._room_until])
            self._replies.reserve(_PROMPT_END + _TOKENS_AHEAD)
        kept, stores = self._desk.record.stores, self._stores
        if kept.context is not stores.context or kept.replies is not stores.replies or kept.ngrams is not stores.ngrams:
            write_stores(self._at, stores)
            self._desk.record = self._desk.record._replace(stores=stores)

    @property
    def _stores(self) -> Stores:
        return Stores(self._index.arrays, self._replies.arrays, self._ngrams.arrays)

    @property
    def _sides(self) -> Sides:
        families, depth = self._families, self._request.speculation.max_depth
        return Sides(
            Source.CONTEXT in families,
            Source.ADJACENCY in families,
            Source.NGRAM in families,
            0 if self._state is None else self._state.vocab_size,
            self._state is not None and self._state.reads_tokens_alone,
            ANY_DEPTH if depth is None else depth,
        )
