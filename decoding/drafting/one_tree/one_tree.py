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
from decoding.drafting.draft_model.growth import Top
from decoding.drafting.draft_model.state import DraftRows
from decoding.drafting.harvest import teach_prompt, teach_text, teach_tree
from decoding.drafting.one_tree.grower import Rounds, grow_from_stores, grow_on, learn_path, learn_text, plant
from decoding.drafting.one_tree.opening import Asked, allocate_heard, allocate_scratch
from decoding.drafting.sources import Sources
from decoding.drafting.tree.candidates import COUPLED, draft_law
from decoding.drafting.tree.growth import Growth, allocate, limits_of
from decoding.drafting.tree.nodes import best_nodes, gain_of, part_of
from decoding.stores.context import ContextIndex
from decoding.stores.evidence import NUM_SOURCES
from decoding.stores.judge import MOST_FRUITLESS, Levels, below, note_fruitful, note_fruitless, regain_hope
from decoding.stores.successor_table import NUM_SUCCESSORS

FAMILIES = frozenset({Source.CONTEXT, Source.ADJACENCY, Source.NGRAM, Source.DRAFT_MODEL})
_ROOT: IntArray = np.zeros(1, np.int32)
_NO_TOP = Top(np.zeros((0, NUM_SUCCESSORS), np.int32), np.zeros((0, NUM_SUCCESSORS), np.float32))
_OVERGROWTH = 4  # nodes to choose from, for each that is wanted
_LONGEST_CHAIN = 16
_TAUGHT = 4  # steps without a tree before a look back, whose rows are harvested
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
        self._levels = Levels(below(session, 64.0, 0.02, 16.0), session, server)
        self._index = ContextIndex(request.max_total)
        self._law = draft_law(request.sampling, COUPLED)
        self._scratch = allocate_scratch()
        self._allocate(16)
        self._under_way: tuple[Growth, Asked, Rounds] | None = None
        self._num_nodes = 1
        self._has_asked = False  # the draft model, for the tree under way
        self._run, self._row_parents, self._kept = _ROOT, _ROOT[:0], _ROOT
        self._nap = 0  # steps left without a tree
        self._num_known = request.num_tokens  # tokens at the last look back
        self._unseen: int | None = None  # the first root since that had no tree
        self._missed: list[tuple[int, TopTokens]] = []  # roots since, and what followed them
        self._foretold = np.zeros(NUM_SOURCES, np.int64)

    @property
    def num_top(self) -> int:
        """How many of the target's likeliest tokens are wanted of each row: none early in a long nap."""
        return NUM_SUCCESSORS if self._has_stores and self._nap <= _TAUGHT else 0

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        teach_prompt(self._stores.ngrams, self._request.tokens, start, top)

    def wants_model(self, budget: DraftBudget) -> bool:
        """Whether its rounds promise more than the tree of the stores alone, which then stands if they do not."""
        if budget.round_price == 0:
            self._catch_up()
            return True
        if self._nap > 0:
            return False
        promise = self._promise(budget)
        is_wanted = promise > budget.least_gain and promise > self._grow_from_stores(budget)
        if not is_wanted:
            regain_hope(self._levels.request, self._levels.server)
            regain_hope(self._levels.session, self._levels.server)
        return is_wanted

    def begin(self, budget: DraftBudget, most_rows: int, most_depth: int) -> None:
        plant(*self._set_out(budget, most_rows, most_depth))
        self._has_asked = True

    def grow(self, top: TopTokens) -> DraftRows | None:
        assert self._under_way is not None, "no tree was begun"
        growth, asked, rounds = self._under_way
        first_row, said = len(self._row_parents) - len(self._run), Top(top.ids, top.probabilities)
        self._num_nodes, self._run = grow_on(growth, asked, rounds, self._num_nodes, self._run, first_row, said)
        if len(self._run) == 0:
            return None
        self._row_parents = np.concatenate((self._row_parents, rounds.rows[growth.nodes.parents[self._run]]))
        return DraftRows(growth.nodes.tokens[self._run], self._row_parents)

    def propose(self, budget: DraftBudget) -> DraftTree:
        """The tree that has grown in this step, now if the draft model has no part in it; the root alone where a tree
        is not worth its price."""
        self._nap = min(self._nap, _nap_after(MOST_FRUITLESS, budget))
        if self._nap > 0:
            self._nap -= 1
            return root_only(int(self._request.tokens[-1]))
        if self._under_way is None:
            self._grow_from_stores(budget)
        nodes = self._buffers.nodes
        self._kept = best_nodes(nodes.scores, self._num_nodes, budget.max_nodes)
        if gain_of(nodes.scores, self._kept, budget.min_chance) <= budget.least_gain:
            if not self._has_asked:
                self._under_way = None
            self._kept = _ROOT
            self._nap = _nap_after(note_fruitless(self._levels), budget)
            return root_only(int(self._request.tokens[-1]))
        note_fruitful(self._levels)
        tokens, parents, sources, names = part_of(nodes, self._kept)
        return DraftTree(tokens, parents, sources, names=names)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        root_at, self._num_known = self._num_known - 1, self._request.num_tokens
        if self._under_way is None:
            self._unseen = root_at if self._unseen is None else self._unseen
            if top is not None:
                self._missed.append((root_at, top))
            if len(self._missed) > _TAUGHT:
                self._catch_up()
            return
        growth, asked, rounds = self._under_way
        self._under_way = None
        path = tree.of_nodes(self._kept)[verdict.path]
        if self._state is not None:
            rows = rounds.rows[path[1:]]
            self._state.keep(rows[rows >= 0])
        self._foretold += learn_path(growth, asked, rounds, self._levels, path, verdict.tokens)
        teach_tree(self._stores.ngrams, growth.tokens, tree, verdict, top)

    @property
    def foretold(self) -> dict[str, int]:
        """By source, how many of the tokens that came it had thought likeliest, drafted or not."""
        self._catch_up()
        asked = self._families if self._state is not None else self._families - {Source.DRAFT_MODEL}
        return {source.name.lower(): int(self._foretold[source]) for source in sorted(asked)}

    def _catch_up(self) -> None:
        """Judge the sources on what came while no tree was grown, and teach the store what followed it."""
        if self._unseen is None:
            return
        tokens = self._request.tokens
        first, self._unseen = max(self._unseen, len(tokens) - 1 - _MOST_JUDGED), None
        growth, asked, rounds = self._set_out(DraftBudget(0), 0, 0, tokens[: first + 1])
        self._under_way = None
        self._foretold += learn_text(growth, asked, rounds, self._levels, tokens[first + 1 :])
        if self._missed:
            roots = np.array([root_at for root_at, _ in self._missed])
            ids, probabilities = [top.ids for _, top in self._missed], [top.probabilities for _, top in self._missed]
            said = TopTokens(np.concatenate(ids), np.concatenate(probabilities))
            self._missed.clear()
            teach_text(self._stores.ngrams, tokens, roots, said)

    def _grow_from_stores(self, budget: DraftBudget) -> float:
        """A tree without the draft model; what it promises beyond the price of its nodes."""
        self._num_nodes = 1
        if not self._has_stores:
            return 0.0
        self._catch_up()
        growth, asked, rounds = self._set_out(budget, 0, 0)
        self._num_nodes, gain = grow_from_stores(growth, asked, rounds)
        return gain

    def _promise(self, budget: DraftBudget) -> float:
        """What a chain that the draft model alone grows, as long as pays, promises beyond its price, in tokens."""
        best = total = 0.0
        chance, hope = 1.0, float(self._levels.request.hope[0])
        for _ in range(min(budget.max_nodes, _LONGEST_CHAIN)):
            chance *= hope
            total += chance - budget.min_chance - budget.row_price - budget.round_price
            best = max(best, total)
        return best

    def _set_out(
        self, budget: DraftBudget, most_rows: int, most_depth: int, tokens: IntArray | None = None
    ) -> tuple[Growth, Asked, Rounds]:
        """What a tree grows by and into; tokens: up to the root, None for all."""
        if budget.max_nodes > self._room:
            self._allocate(budget.max_nodes)
        tokens = self._request.tokens if tokens is None else tokens
        self._index.extend(tokens)
        limits = limits_of(budget, self._request.speculation.max_depth)
        growth = Growth(tokens, limits, *self._buffers)
        asked = Asked(
            self._index.arrays,
            self._stores.ngrams.arrays,
            self._state.vocab_size if self._state is not None else 0,
            self._law,
            self._levels.request,
            self._heard,
            self._scratch,
            _NO_TOP,
            Source.CONTEXT in self._families,
            Source.ADJACENCY in self._families,
            Source.NGRAM in self._families,
        )
        hope, prices = float(self._levels.request.hope[0]), (float(budget.round_price), float(budget.row_price))
        rounds = Rounds(self._rows, hope, *prices, min(most_rows, limits.max_nodes), most_depth)
        self._num_nodes, self._has_asked = 1, False
        self._run, self._row_parents = _ROOT, _ROOT[:0]
        self._under_way = growth, asked, rounds
        return self._under_way

    def _allocate(self, max_nodes: int) -> None:
        num_nodes = 2 + _OVERGROWTH * max_nodes
        self._room = max_nodes
        self._buffers = allocate(num_nodes)
        self._heard = allocate_heard(num_nodes)
        self._rows = np.zeros(num_nodes, np.int32)


def _nap_after(num_fruitless: int, budget: DraftBudget) -> int:
    """Steps without a tree after so many in a row that were not worth their price: twice as many each time, and the
    more, the more tokens it costs to look whether one is. After the most it costs 1 in 128."""
    return int(budget.least_gain * 2 ** (num_fruitless + 1))
