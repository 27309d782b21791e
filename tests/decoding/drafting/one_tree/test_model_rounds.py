"""The draft model's part in one tree: rounds that pay, rows that are kept, and steps that it sits out."""

from __future__ import annotations

import numpy as np

from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source
from decoding.costs.price import DraftBudget, NodePrice
from decoding.drafting.draft_model.state import DraftModelState, GrowthRequest
from decoding.drafting.one_tree.one_tree import OneTree
from decoding.drafting.sources import Sources
from tests.decoding.drafting.draft_model.test_draft_model import (
    DraftBench,
    assert_rows_are_of_the_tokens,
    length_of,
    verdict_on,
)
from tests.decoding.drafting.draft_model.test_draft_model import (
    request_of as tiny_request_of,
)
from tests.decoding.drafting.one_tree.growing import (
    SHARED_VOCAB,
    Law,
    drafter_of,
    grow,
    names_of,
    new_session,
    paths_of,
    request_of,
    teach,
    tops_of,
    verify,
)

MODEL_ONLY = frozenset({Source.DRAFT_MODEL})


def chain_law(probability: float) -> Law:
    """One token of this probability after everything, and one beside it."""
    return lambda path: {len(path) + 20: probability, 60: (1 - probability) / 2}


def rounds_at(round_price: float, row_price: float = 0.0, probability: float = 0.95) -> list[int]:
    drafter = drafter_of(new_session(), request_of([3, 9]), MODEL_ONLY, has_model=True)
    return grow(drafter, chain_law(probability), DraftBudget(16, NodePrice(0.0), round_price, row_price))[1]


def block_of(probabilities: list[float]) -> TopTokens:
    """What a block names: at each depth one token of this probability, and one beside it."""
    laws = [{20 + depth: each, 60 + depth: 0.5 * (1 - each)} for depth, each in enumerate(probabilities)]
    return tops_of(lambda path: laws[len(path)], [(0,) * depth for depth in range(len(laws))])


def test_a_block_grows_whole_at_once_of_what_is_said_of_each_depth() -> None:
    drafter = drafter_of(new_session(), request_of([3, 9]), MODEL_ONLY, has_model=True, block_len=6)
    budget = DraftBudget(16, NodePrice(0.01), round_price=0.3, row_price=0.01, block_len=6)
    assert drafter.prepare(budget)
    drafter.begin(budget, 64, 4)
    assert drafter.grow(block_of([0.9, 0.9, 0.8, 0.7, 0.7])) is None
    tree = drafter.propose(budget)
    tree.check_integrity()
    paths = paths_of(tree)
    assert (20, 21, 22, 23, 24) in paths
    assert (60, 21) in paths or (20, 61) in paths
    assert all(token in (20 + depth, 60 + depth) for path in paths for depth, token in enumerate(path))
    assert max(map(len, paths)) == 5


def test_a_block_is_not_asked_for_where_it_promises_less_than_its_one_round() -> None:
    for round_price, is_asked in ((0.5, True), (9.0, False)):
        drafter = drafter_of(new_session(), request_of([3, 9]), MODEL_ONLY, has_model=True, block_len=6)
        budget = DraftBudget(16, NodePrice(0.01), round_price, 0.01, block_len=6)
        assert drafter.prepare(budget) == is_asked


def test_how_far_a_block_can_be_trusted_is_learned_for_each_depth() -> None:
    """The first token comes as often as it is said to, the second never."""
    drafter = drafter_of(new_session(), request := request_of([3, 9]), MODEL_ONLY, has_model=True, block_len=3)
    sizes, budget = [], DraftBudget(4, NodePrice(0.1), block_len=3)
    for _ in range(60):
        drafter.begin(budget, 64, 1)
        drafter.grow(block_of([0.9, 0.9]))
        tree = drafter.propose(budget)
        sizes.append(max(map(len, paths_of(tree))))
        verify(drafter, request, tree, lambda token: 20 if token != 20 else 7)
    assert sizes[0] == 2
    assert sizes[-1] == 1


def test_rounds_end_where_they_promise_less_than_they_cost() -> None:
    counts = [len(rounds_at(price)) for price in (0.0, 0.4, 50.0)]
    assert counts[0] > counts[1] > counts[2] == 0


def test_dear_rows_are_fewer() -> None:
    counts = [sum(rounds_at(0.0, row_price, probability=0.7)) for row_price in (0.0, 0.15, 1.0)]
    assert counts[0] > counts[1] > counts[2] == 0


def test_where_nodes_are_dear_the_draft_model_is_asked_which_of_the_stores_are_worth_it() -> None:
    """What they do not know is too rare to be worth a node; which of what they name will come is worth a round."""
    for round_price, is_asked in ((0.05, True), (0.5, False)):
        session = new_session()
        teach(session, {(20,): {21: 0.5, 50: 0.3}})
        drafter = drafter_of(session, request_of([3, 9]), has_model=True)
        _, rounds = grow(drafter, chain_law(0.95), DraftBudget(8, NodePrice(0.5), round_price))
        assert bool(rounds) == is_asked


def test_never_more_rows_than_there_is_room_for_nor_deeper_than_the_model_reads() -> None:
    for most_rows, most_depth in ((0, 8), (1, 8), (5, 8), (16, 0), (16, 2)):
        drafter = drafter_of(new_session(), request_of([3, 9]), MODEL_ONLY, has_model=True)
        tree, rounds = grow(drafter, chain_law(0.95), DraftBudget(16), most_rows, most_depth)
        assert sum(rounds) <= most_rows
        assert len(rounds) <= most_depth
        assert tree.depths().max() == len(rounds) + 1
        assert set(tree.sources[1:].tolist()) == {Source.DRAFT_MODEL}


def test_a_tree_goes_on_from_the_stores_where_the_draft_model_is_not_asked_further() -> None:
    session = new_session()
    teach(session, {(20,): {40: 0.9}, (40,): {41: 0.9}})
    drafter = drafter_of(session, request_of([3, 9]), has_model=True)
    tree, rounds = grow(drafter, chain_law(0.9), DraftBudget(8, NodePrice(0.0), 50.0))
    assert rounds == []
    names = names_of(tree)
    assert names[(20,)] == {Source.DRAFT_MODEL}
    assert names[(20, 40)] == names[(20, 40, 41)] == {Source.ADJACENCY}


def grown(step: int, round_price: float, row_price: float) -> tuple[DraftTree, list[int]]:
    """The draft model says 20, 21, 22 and so on, the stores that `step` comes after each; 0: they know nothing."""
    session = new_session()
    teach(session, {(token,): {token + step: 0.97} for token in range(20, 32) if step})
    drafter = drafter_of(session, request_of([3, 19]), has_model=True)
    return grow(drafter, chain_law(0.97), DraftBudget(48, NodePrice(0.02), round_price, row_price))


def test_what_the_stores_go_on_with_is_run_ahead_of_the_tree_in_the_same_round() -> None:
    tree, rounds = grown(1, 0.1, 0.001)
    alone, rounds_alone = grown(0, 0.1, 0.001)
    assert rounds[0] > 8
    assert set(rounds_alone) == {1}
    assert len(rounds) < len(rounds_alone) - 8
    chain = [tuple(range(20, end)) for end in range(21, 29)]
    assert set(chain) <= set(paths_of(alone)) & set(paths_of(tree))
    assert all(names_of(tree)[path] == {Source.ADJACENCY, Source.DRAFT_MODEL} for path in chain[1:])


def test_rows_are_run_ahead_only_where_they_cost_less_than_the_round_they_may_save() -> None:
    assert max(grown(1, 0.02, 0.001)[1]) > 1
    assert set(grown(1, 0.02, 0.03)[1]) <= {1}


def test_rows_that_are_run_ahead_in_vain_leave_the_tree_to_the_draft_model() -> None:
    tree, rounds = grown(40, 0.1, 0.001)
    assert max(rounds) > 1
    assert {tuple(range(20, end)) for end in range(21, 26)} <= set(paths_of(tree))


def test_a_token_that_the_target_does_not_have_is_not_drafted() -> None:
    drafter = drafter_of(new_session(), request_of([3, 9]), has_model=True)
    tree, _ = grow(drafter, lambda _path: {SHARED_VOCAB: 0.6, SHARED_VOCAB - 1: 0.3}, DraftBudget(8), most_rows=0)
    assert paths_of(tree) == [(SHARED_VOCAB - 1,)]


def test_the_draft_model_is_wanted_where_its_price_is_below_what_the_stores_lack() -> None:
    new, known = request_of([3, 9]), request_of([1, 2, 3, 4, 5] * 8)
    cheap, dear = DraftBudget(16, NodePrice(0.02), 0.1, 0.01), DraftBudget(16, NodePrice(0.02), 5.0, 0.01)

    def wants(prompt: list[int], budget: DraftBudget) -> bool:
        return drafter_of(new_session(), request_of(prompt), has_model=True).prepare(budget)

    assert wants(new.tokens.tolist(), cheap)
    assert not wants(new.tokens.tolist(), dear)
    assert not wants(known.tokens.tolist(), cheap), "the copy is sure of itself"
    assert wants(known.tokens.tolist(), DraftBudget(16)), "a forward that costs nothing is always run"


def test_a_draft_model_that_is_often_wrong_is_wanted_no_more() -> None:
    session, request = new_session(), request_of([3])
    drafter = drafter_of(session, request, MODEL_ONLY, has_model=True)
    budget = DraftBudget(8, NodePrice(0.02), 0.2, 0.01)
    assert drafter.prepare(budget)
    for _ in range(80):
        tree, _ = grow(drafter, chain_law(0.9), budget)
        verify(drafter, request, tree, lambda token: (token + 7) % 19)  # which the draft model never says
    assert not drafter.prepare(budget)


def test_what_the_draft_model_predicted_is_counted() -> None:
    request = request_of([3, 9])
    drafter = drafter_of(new_session(), request, has_model=True)
    tree, _ = grow(drafter, chain_law(0.95), DraftBudget(8))
    accepted = verify(drafter, request, tree, lambda token: token + 1 if token >= 20 else 20)
    assert accepted > 1
    assert accepted <= drafter.finish()["draft_model"] <= accepted + 1


class OneTreeBench(DraftBench):
    """Lets one tree grow with a tiny draft model. rows: by step, of each sequence's catching up."""

    def one_tree(self, length: int, seed: int, temperature: float = 0.0) -> tuple[OneTree, DraftModelState]:
        request = tiny_request_of(length, seed, temperature)
        state = self.draft_model.open(request)
        self.tables[state] = self.pool.open()
        return OneTree(request, Sources(new_session(), state)), state

    def step(self, drafter: OneTree, state: DraftModelState, budget: DraftBudget) -> DraftTree:
        """As `Drafting` does: the draft model is left out where it is not wanted."""
        self._make_room(state, state.request.num_tokens)
        if drafter.prepare(budget):
            growth = GrowthRequest(state, self.tables[state], state.request.num_tokens, budget)
            assert not self.draft_model.grow_batch([growth])
        return drafter.propose(budget)


WITH_MODEL, WITHOUT_MODEL = DraftBudget(12), DraftBudget(12, NodePrice(0.0), 50.0)


def test_a_step_without_the_draft_model_is_caught_up_with_in_one_forward_and_the_rows_are_the_same() -> None:
    bench = OneTreeBench()
    drafter, state = bench.one_tree(20, 1)
    for sits_out in (False, True, True, True, False, True, False):
        before, unseen = len(bench.model.batches), state.request.num_tokens - (length_of(state) if state.rows else 0)
        tree = bench.step(drafter, state, WITHOUT_MODEL if sits_out else WITH_MODEL)
        tree.check_integrity()
        batches = bench.model.batches[before:]
        if sits_out:
            assert batches == []
        else:
            assert batches[0].num_tokens == unseen, "all it has missed, at once"
            assert length_of(state) == state.request.num_tokens
        verdict = verdict_on(tree, 2)
        state.request.extend(verdict.tokens)
        drafter.observe(tree, verdict, None)
        assert_rows_are_of_the_tokens([state])


def test_after_every_step_the_draft_model_holds_the_first_tokens_of_each_request() -> None:
    bench = OneTreeBench()
    random = np.random.default_rng(5)
    num_kept = 0
    for seed, temperature in enumerate((0.0, 0.9)):
        drafter, state = bench.one_tree(11 + 9 * seed, seed, temperature)
        for _ in range(9):
            tree = bench.step(drafter, state, DraftBudget(int(random.integers(1, 20))))
            verdict, before = verdict_on(tree, int(random.integers(0, 4))), length_of(state)
            state.request.extend(verdict.tokens)
            drafter.observe(tree, verdict, None)
            num_kept += length_of(state) - before
            assert length_of(state) < state.request.num_tokens
        assert_rows_are_of_the_tokens([state])
    assert num_kept > 3
