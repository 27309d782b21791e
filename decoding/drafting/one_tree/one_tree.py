"""The drafter that grows one tree from every source: its request's part of the grower, and what is learned of it.

Owns a request's context index, its judge and the tree under way. The draft model, its slots and the rounds are
`draft_model`'s. Invariant: whatever was drafted, every source is judged on every token that came.
"""

from __future__ import annotations

import numpy as np

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Source, Verdict, root_only
from decoding.costs.price import DraftBudget
from decoding.drafting.draft_model.state import DraftRows
from decoding.drafting.harvest import teach_prompt
from decoding.drafting.one_tree.desk import LAYOUT, MOST_MISSED, Desk, Sides, Terms, new_desk, new_room, write_desk
from decoding.drafting.one_tree.grower import best_part, grow_from_stores, grow_on, plant
from decoding.drafting.one_tree.learning import Verified, learn_text, learn_tree
from decoding.drafting.sources import Sources
from decoding.drafting.tree.by_address import Kept
from decoding.drafting.tree.candidates import COUPLED, draft_law
from decoding.stores.context import ContextIndex
from decoding.stores.judge import MOST_FRUITLESS, Levels, below, note_fruitful, note_fruitless, regain_hope
from decoding.stores.ngram import LONGEST_NGRAM
from decoding.stores.successor_table import NUM_SUCCESSORS

FAMILIES = frozenset({Source.CONTEXT, Source.ADJACENCY, Source.NGRAM, Source.DRAFT_MODEL})
_ROOT: IntArray = np.zeros(1, np.int32)
_NO_LAWS = np.zeros((0, NUM_SUCCESSORS), np.int32), np.zeros((0, NUM_SUCCESSORS), np.float32)
_OVERGROWTH = 4  # nodes to choose from, for each that is wanted
_ANY_DEPTH = np.iinfo(np.int32).max
_LONGEST_CHAIN = 16
_TAUGHT = 4  # last steps of a nap, whose rows are harvested
_MOST_JUDGED = 8  # of the tokens that came meanwhile


class OneTree:
    """One request's trees. families: of sources that take part; state: of the draft model, where it is one of them."""

    def __init__(self, request: Request, sources: Sources, families: frozenset[Source] = FAMILIES) -> None:
        self._request = request
        self._stores = sources.stores
        families = frozenset(each for each in families if request.speculation.may_use(each.name.lower()))
        self._families = families
        self._has_stores = families != {Source.DRAFT_MODEL}
        self._state = sources.state if Source.DRAFT_MODEL in families else None
        if self._state is not None:
            self._state.grow_with(self)
        session, server = sources.stores.judges(request.sampling.temperature > 0)
        self._foresight = sources.foresight
        self._levels = Levels(below(session, 64.0, 0.02, 16.0), session, server)
        self._index = ContextIndex(request.max_total)
        self._desk = self._new_desk()
        self._at = self._desk.address
        self._terms = Terms()
        self._is_under_way = False
        self._has_asked = False  # the draft model, for the tree under way
        self._run, self._row_parents, self._kept = _ROOT, _ROOT[:0], _ROOT
        self._spent = 0.0  # tokens, on the draft model
        self._num_known = request.num_tokens  # tokens at the last look for a tree
        self._wake_at = 0  # tokens: until there are so many there is no tree
        self._unseen: int | None = None  # the first root since that had no tree
        self._num_missed = 0  # roots since, of which is known what followed them

    @property
    def num_top(self) -> int:
        """How many of the target's likeliest tokens are wanted of each row: none early in a long nap."""
        return NUM_SUCCESSORS if self._has_stores and self._wake_at - self._num_known <= _TAUGHT else 0

    @property
    def is_napping(self) -> bool:
        """Whether it need not know of the next step, which will be plain."""
        return self._wake_at - self._request.num_tokens > _TAUGHT and self._sleeps

    @property
    def _sleeps(self) -> bool:
        """Whether a nap holds: it ends by itself, or where the reply is found to follow its prediction."""
        is_sure = self._foresight is not None and self._foresight.is_sure
        return self._request.num_tokens < self._wake_at and not is_sure

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        teach_prompt(self._stores.ngrams, self._request.tokens, start, top)

    def wants_model(self, budget: DraftBudget) -> bool:
        """Whether its rounds promise more than the tree of the stores alone, which then stands if they do not."""
        if budget.round_price == 0:
            self._catch_up()
            return True
        if self._sleeps:
            return False
        promise = self._promise(budget)
        is_wanted = promise > budget.least_gain and promise > self._grow_from_stores(budget)
        if not is_wanted:
            regain_hope(self._levels.request, self._levels.server)
            regain_hope(self._levels.session, self._levels.server)
        return is_wanted

    def begin(self, budget: DraftBudget, most_rows: int, most_depth: int) -> None:
        self._set_out(budget, most_rows, most_depth)
        plant(self._at, self._request.num_tokens)
        self._has_asked = True

    def grow(self, top: TopTokens) -> DraftRows | None:
        assert self._is_under_way, "no tree was begun"
        first_row, room = len(self._row_parents) - len(self._run), self._desk.record.room
        self._spent += self._terms.round_price + self._terms.row_price * len(self._run)
        self._run = grow_on(self._at, self._terms, self._run, first_row, top.ids, top.probabilities)
        if len(self._run) == 0:
            return None
        nodes = room.buffers.nodes
        self._row_parents = np.concatenate((self._row_parents, room.rows[nodes.parents[self._run]]))
        return DraftRows(nodes.tokens[self._run], self._row_parents)

    def propose(self, budget: DraftBudget) -> DraftTree:
        """The tree that has grown in this step, now if the draft model has no part in it; the root alone where a tree
        is not worth its price."""
        self._num_known = self._request.num_tokens
        self._wake_at = min(self._wake_at, self._num_known + _nap_after(MOST_FRUITLESS, budget))
        if self._sleeps:
            return root_only(int(self._request.tokens[-1]))
        if not self._is_under_way:
            self._grow_from_stores(budget)
        gain, self._kept, *parts = best_part(self._at, self._terms, self._spent + budget.least_gain)
        if gain <= budget.least_gain:
            self._is_under_way = self._has_asked
            self._kept = _ROOT
            self._wake_at = self._num_known + 1 + _nap_after(note_fruitless(self._levels), budget)
            return root_only(int(self._request.tokens[-1]))
        note_fruitful(self._levels)
        tokens, parents, sources, names = parts
        return DraftTree(tokens, parents, sources, names=names)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        if not self._is_under_way:
            self._note_missed(top)
            return
        self._is_under_way = False
        path = tree.of_nodes(self._kept)[verdict.path]
        if self._state is not None:
            rows = self._desk.record.room.rows[path[1:]]
            self._state.keep(rows[rows >= 0])
        laws = _NO_LAWS if top is None else (top.ids, top.probabilities)
        self._reserve(len(laws[0]))
        learn_tree(self._at, Verified(tree.tokens, tree.parents, verdict.path, verdict.tokens, *laws), path)

    @property
    def foretold(self) -> dict[str, int]:
        """By source, how many of the tokens that came it had thought likeliest, drafted or not."""
        self._catch_up()
        asked = self._families if self._state is not None else self._families - {Source.DRAFT_MODEL}
        if self._foresight is not None and self._foresight.has_prediction:
            asked |= {Source.PREDICTION}
        return {source.name.lower(): int(self._desk.record.foretold[source]) for source in sorted(asked)}

    def _note_missed(self, top: TopTokens | None) -> None:
        """A step went by without a tree: what came is looked at later."""
        self._unseen = self._num_known - 1 if self._unseen is None else self._unseen
        if top is None:
            return
        missed, width = self._desk.record.missed, top.ids.shape[1]
        missed.roots[self._num_missed] = self._num_known - 1
        missed.ids[self._num_missed, :width] = top.ids[0]
        missed.probabilities[self._num_missed, :width] = top.probabilities[0]
        self._num_missed += 1
        if self._num_missed == MOST_MISSED:
            self._catch_up()

    def _catch_up(self) -> None:
        """Judge the sources on what came while no tree was grown, and teach the store what followed it."""
        if self._unseen is None:
            return
        num_tokens = self._request.num_tokens
        first = max(self._unseen, num_tokens - 1 - _MOST_JUDGED)
        self._reserve(self._num_missed)
        learn_text(self._at, first, num_tokens, self._num_missed)
        self._unseen, self._num_missed = None, 0

    def _grow_from_stores(self, budget: DraftBudget) -> float:
        """A tree without the draft model; what it promises beyond the price of its nodes."""
        self._set_out(budget)
        if not self._has_stores and self._foresight is None:
            plant(self._at, self._request.num_tokens)
            return 0.0
        return grow_from_stores(self._at, self._request.num_tokens, self._terms)

    def _promise(self, budget: DraftBudget) -> float:
        """What a chain that the draft model alone grows, as long as pays, promises beyond its price, in tokens."""
        best = total = 0.0
        chance, hope = 1.0, float(self._levels.request.hope[0])
        for _ in range(min(budget.max_nodes, _LONGEST_CHAIN)):
            chance *= hope
            total += chance - budget.min_chance - budget.row_price - budget.round_price
            best = max(best, total)
        return best

    def _set_out(self, budget: DraftBudget, most_rows: int = 0, most_depth: int = 0) -> None:
        """A tree is about to grow."""
        self._catch_up()
        prices = float(budget.min_chance), float(budget.round_price), float(budget.row_price)
        rate = float(budget.others), float(budget.fixed)
        self._terms = Terms(budget.max_nodes, *prices, min(most_rows, budget.max_nodes), most_depth, *rate)
        self._reserve(0, budget.max_nodes)
        if self._foresight is not None:
            self._foresight.write(self._desk.record.foreseen, budget.max_nodes)
        self._run, self._row_parents, self._spent = _ROOT, _ROOT[:0], 0.0
        self._is_under_way, self._has_asked = True, False

    def _reserve(self, num_rows: int, max_nodes: int = 0) -> None:
        """Make room for the request's tokens, so many rows in the store, and a tree of so many nodes."""
        self._index.reserve(self._request.tokens)
        self._stores.ngrams.reserve(LONGEST_NGRAM * num_rows)
        desk, context, ngrams = self._desk.record, self._index.arrays, self._stores.ngrams.arrays
        num_nodes = 2 + _OVERGROWTH * max_nodes
        if desk.context is not context or desk.ngrams is not ngrams or num_nodes > len(desk.room.rows):
            room = desk.room if num_nodes <= len(desk.room.rows) else new_room(num_nodes)
            self._desk.keep(desk._replace(context=context, ngrams=ngrams, room=room))

    def _new_desk(self) -> Kept[Desk]:
        request, families, depth = self._request, self._families, self._request.speculation.max_depth
        sides = Sides(
            Source.CONTEXT in families,
            Source.ADJACENCY in families,
            Source.NGRAM in families,
            0 if self._state is None else self._state.vocab_size,
            _ANY_DEPTH if depth is None else depth,
        )
        law, stores = draft_law(request.sampling, COUPLED), (self._index.arrays, self._stores.ngrams.arrays)
        return Kept(LAYOUT, write_desk, new_desk(request.buffer, law, sides, self._levels, stores))


def _nap_after(num_fruitless: int, budget: DraftBudget) -> int:
    """Steps without a tree after so many in a row that were not worth their price: twice as many each time, and the
    more, the more tokens it costs to look whether one is. After the most it costs 1 in 128."""
    return int(budget.least_gain * 2 ** (num_fruitless + 1))
