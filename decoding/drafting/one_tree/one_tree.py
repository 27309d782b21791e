"""The drafter that grows one tree from every source: its request's part of the grower, and what is learned of it.

Owns a request's context index, its acceptance model and the tree under way. The draft model, its slots and the rounds
are `draft_model`'s. Invariant: whatever comes of a probe, every source learns from the token that follows.
"""

from __future__ import annotations

import numpy as np

from decoding.core.picture import end_of_pictures
from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Source, Verdict, root_only
from decoding.costs.acceptance import Brought
from decoding.costs.price import NOTHING, DraftBudget, model_gain, price_of
from decoding.costs.trials import HOPE
from decoding.drafting.draft_model.growth import Rounds, Top
from decoding.drafting.draft_model.state import LONG_READ, DraftRows
from decoding.drafting.one_tree.buffers import (
    LONGEST_FORESEEN,
    NUM_KEPT,
    NUM_NODES,
    SHORTEST_COPIED,
    Sides,
    Stores,
    new_buffers,
    new_room,
    write_stores,
)
from decoding.drafting.one_tree.grower import NO_ROUNDS, best_part, grow_from_stores, grow_on, plant
from decoding.drafting.one_tree.probe import learn_text, learn_tree, probe
from decoding.drafting.sources import Sources
from decoding.stores.acceptance_model import catch_up
from decoding.stores.context import ContextIndex
from decoding.stores.evidence import FORCED
from decoding.stores.successor_table import NUM_SUCCESSORS

FAMILIES = frozenset({Source.CONTEXT, Source.ADJACENCY, Source.NGRAM, Source.DRAFT_MODEL})
PATIENCE = 16  # probes in a row that found nothing worth drafting, until some are left out
FIRST_NAP, LONGEST_NAP = 2, 32  # tokens
_ROOT: IntArray = np.zeros(1, np.int32)
_OVERGROWTH = 4  # nodes to choose from, for each that is wanted
_PROMPT_END = 8  # tokens of the prompt that are kept with the reply, so that its first ones are found
_TOKENS_AHEAD = 32  # that there is room for at once
_READING = 128  # tokens at most for which what the draft model has to read is of use


class OneTree:
    """One request's trees. families: of sources that take part.

    A request whose last 16 probes found nothing worth drafting probes again after 2, 4, 8 ... 32 tokens, and at once
    when its reply comes to follow its prediction. One with a grammar probes at every step.
    """

    def __init__(self, request: Request, sources: Sources, families: frozenset[Source] = FAMILIES) -> None:
        self._request = request
        self._ngrams, self._replies = sources.stores.ngrams, sources.stores.replies
        self.weighs_harvest = families == FAMILIES  # who is asked for by name has nothing to put in their place
        may_use = request.speculation.may_use
        families = frozenset(each for each in families if may_use(each.name.lower()))
        self._families = families
        self._has_stores = not families.isdisjoint({Source.ADJACENCY, Source.NGRAM})
        self._state = sources.state if Source.DRAFT_MODEL in families else None
        if self._state is not None:
            self._state.grow_with(self)
        self._prediction = sources.prediction if may_use("prediction") else None
        self._grammar = sources.grammar if may_use("grammar") else None
        self._index = ContextIndex(request.max_total, SHORTEST_COPIED)
        models = sources.stores.acceptance_models(request.sampling.temperature > 0)
        catch_up(*models)
        self._buffers = new_buffers(request, self._sides, models, self._stores)
        self._buffers.record.counts[NUM_KEPT] = max(
            end_of_pictures(request.pictures), len(request.prompt) - _PROMPT_END
        )
        self._hit_rate = self._buffers.record.levels.request.hit_rate
        self._at = self._buffers.address
        self._budget = NOTHING
        self._rounds = NO_ROUNDS
        self._is_under_way = False
        self._kept = _ROOT
        self._num_rows = 0  # of the draft model, for the tree under way
        self._spent = 0.0  # tokens, on the draft model
        self._num_probed = 0  # tokens at the last probe
        self._num_steps = 0  # probes
        self._alone: Brought | None = None  # what the stores alone were last expected to bring
        self._num_fruitless = 0  # probes in a row, unless the latest one's tree is drafted
        self._was_predicted = False  # whether the reply followed its prediction then
        self._room_until = 0  # tokens
        self._chance = 0.0

    @property
    def num_top(self) -> int:
        """How many of the target's likeliest tokens are wanted of each row."""
        return NUM_SUCCESSORS if self._has_stores and self._budget.harvests else 0

    @property
    def hit_rate(self) -> float:
        return float(self._hit_rate[0])

    @property
    def alone(self) -> Brought | None:
        return self._alone

    @property
    def is_awake(self) -> bool:
        nap = min(FIRST_NAP << (self._num_fruitless - PATIENCE), LONGEST_NAP) if self._num_fruitless >= PATIENCE else 0
        return self._request.num_tokens >= self._num_probed + nap or self._is_startled

    @property
    def is_patient(self) -> bool:
        return self._num_fruitless >= PATIENCE and not self._is_startled

    @property
    def _is_startled(self) -> bool:
        """Whether there is more to draft from than when its probes were in vain."""
        return self._grammar is not None or (self._is_predicted and not self._was_predicted)

    @property
    def _is_predicted(self) -> bool:
        return self._prediction is not None and self._prediction.is_followed

    def probe(self) -> float:
        """Ask the stores how likely the likeliest next token is; what came meanwhile is learned from."""
        num_tokens = self._request.num_tokens
        if num_tokens != self._num_probed:
            self._is_under_way = False  # a tree that the grammar forbade altogether was not verified
            self._reserve(num_tokens)
            if self._prediction is not None or self._grammar is not None:
                self._buffers.record.foreseen.write(self._chains())
            self._chance = probe(self._at, num_tokens)
            self._num_probed, self._was_predicted = num_tokens, self._is_predicted
            self._num_steps += 1
            self._num_fruitless = min(self._num_fruitless + 1, PATIENCE + LONGEST_NAP)
        return self._chance

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        self._ngrams.teach_prompt(self._request.keys, start, top)

    def prepare(self, budget: DraftBudget) -> bool:
        """Whether its rounds promise more than the tree of the stores alone, which grows here and stands if they do
        not, and enough to be worth what the draft model has to read before; in a trial, whether those of a good draft
        model would, and what it has to read is within bounds."""
        if budget.round_price == 0:
            return True
        asked = budget.price, budget.round_price, budget.row_price, budget.block_len
        promise = model_gain(self.hit_rate, *asked)
        hope = max(promise, model_gain(HOPE, *asked)) if budget.is_trial else promise
        if hope <= budget.tree_price or budget.most_rounds < 1:
            return False
        gain = self._grow_from_stores(budget)
        num_nodes = float(self._buffers.record.counts[NUM_NODES])
        self._alone = Brought(1 + gain + price_of(budget.price, num_nodes - 1), num_nodes)
        gain = max(gain, budget.tree_price)  # else nothing is drafted, which costs nothing
        is_worth_it = promise > gain and (promise - gain) * self._num_uses > budget.row_price * self._num_unread
        return is_worth_it or (budget.is_trial and hope > gain and self._num_unread <= budget.readable)

    def begin(self, budget: DraftBudget, most_rows: int, most_depth: int) -> None:
        rounds = Rounds(int(min(most_rows, budget.max_nodes, budget.most_rounds)), most_depth)
        names_all = self._state is not None and self._state.is_block
        self._set_out(budget, NO_ROUNDS if names_all else rounds)
        plant(self._at, self._request.num_tokens)

    def grow(self, top: TopTokens) -> DraftRows | None:
        assert self._is_under_way, "no tree was begun"
        budget, before, run = self._budget, self._num_rows, self._buffers.record.room.run
        self._spent += budget.round_price + budget.row_price * len(top)
        left = Rounds(self._rounds.most_rows - before, self._rounds.most_depth)
        self._num_rows = int(grow_on(self._at, budget, left, Top(top.ids, top.probabilities)))
        if self._num_rows == before:
            return None
        return DraftRows(run.tokens[before : self._num_rows], run.parents[: self._num_rows])

    def propose(self, budget: DraftBudget) -> DraftTree:
        """The tree that has grown in this step, now if the draft model has no part in it; the root alone where a tree
        is not worth its price."""
        self.probe()
        if not self._is_under_way:
            self._grow_from_stores(budget)
        gain, self._kept, *parts = best_part(self._at, self._budget, self._spent)
        if gain <= self._budget.tree_price:
            self._kept, self._is_under_way = _ROOT, not self.weighs_harvest  # what came is learned at the next probe
            return root_only(int(self._request.tokens[-1]))
        tokens, parents, sources, names = parts
        return DraftTree(tokens, parents, sources, names=names)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        if not self._is_under_way:
            return
        self._is_under_way = False
        if tree.num_drafted:
            self._num_fruitless = 0
        verified, path = tree.of_nodes(self._kept), verdict.path
        if self._state is not None and self._num_rows:
            rows = self._buffers.record.room.rows[verified[path[1:]]]
            self._state.keep(rows[rows >= 0])
        num_emitted = self._request.num_tokens - self._num_probed  # a stop may have cut the run
        learn_tree(self._at, verified[path[:num_emitted]], verdict.tokens[:num_emitted])
        if top is not None:
            self._ngrams.teach_tree(self._request.keys[: self._num_probed], tree, verdict, top)

    def finish(self) -> dict[str, int]:
        self._reserve(self._request.num_tokens)
        learn_text(self._at, self._request.num_tokens)
        asked = self._families if self._state is not None else self._families - {Source.DRAFT_MODEL}
        if self._prediction is not None:
            asked |= {Source.PREDICTION}
        return {source.name.lower(): int(self._buffers.record.predicted[source]) for source in sorted(asked)}

    @property
    def _num_unread(self) -> int:
        """Tokens that the draft model has to read before it drafts, but for those of the latest step; none where it was
        asked for by name, and reads in any case."""
        assert self._state is not None
        return max(0, self._state.num_unread - LONG_READ) if self.weighs_harvest else 0

    @property
    def _num_uses(self) -> float:
        """Steps in which a draft model that has read so far may yet be asked."""
        request = self._request
        tokens_a_step = (1 + request.num_output) / self._num_steps
        asked_rate = float(self._buffers.record.levels.request.asked_rate[0])
        return 1 + asked_rate * min(request.max_total - request.num_tokens, _READING) / tokens_a_step

    def _chains(self) -> list[tuple[list[int], list[int]]]:
        """What the request itself knows may come next, the likeliest first: what its grammar forces, then where its
        prediction goes on."""
        forced = [] if self._grammar is None else self._grammar.forced()[:LONGEST_FORESEEN]
        chains = [(forced, [FORCED] * len(forced))] if forced else []
        if self._prediction is not None:
            chains += self._prediction.chains(LONGEST_FORESEEN)
        return chains

    def _grow_from_stores(self, budget: DraftBudget) -> float:
        """A tree without the draft model; what it promises beyond the price of its nodes."""
        self._set_out(budget)
        return grow_from_stores(self._at, self._budget)

    def _set_out(self, budget: DraftBudget, rounds: Rounds = NO_ROUNDS) -> None:
        """A tree is about to grow."""
        self.probe()
        self._budget, self._rounds = budget.within(self._request.speculation.max_depth), rounds
        num_nodes = 2 + _OVERGROWTH * budget.max_nodes
        if num_nodes > len(self._buffers.record.room.rows):
            self._buffers.keep(self._buffers.record._replace(room=new_room(num_nodes)))
            probe(self._at, self._num_probed)  # the root is in the old one
        self._num_rows, self._spent = 0, 0.0
        self._is_under_way = True

    def _reserve(self, num_tokens: int) -> None:
        """Make room for so many of the request's tokens, in its index and in the stores. These, which the session's
        other requests share, may have new arrays."""
        if num_tokens > self._room_until:
            self._room_until = min(num_tokens + _TOKENS_AHEAD, self._request.max_total)
            self._index.reserve(self._request.key_buffer[: self._room_until])
        if Source.CONTEXT in self._families:
            self._replies.reserve(num_tokens - int(self._buffers.record.counts[NUM_KEPT]))
        kept = self._buffers.record.stores
        are_same = kept.context is self._index.arrays and kept.replies is self._replies.arrays
        if not are_same or kept.ngrams is not self._ngrams.arrays:
            write_stores(self._at, self._stores)
            self._buffers.record = self._buffers.record._replace(stores=self._stores)

    @property
    def _stores(self) -> Stores:
        return Stores(self._index.arrays, self._replies.arrays, self._ngrams.arrays)

    @property
    def _sides(self) -> Sides:
        families = self._families
        return Sides(
            Source.CONTEXT in families,
            Source.ADJACENCY in families,
            Source.NGRAM in families,
            0 if self._state is None else self._state.vocab_size,
            self._state is not None and self._state.reads_tokens_alone,
            self._state is not None and self._state.is_block,
        )
