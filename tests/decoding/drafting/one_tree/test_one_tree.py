"""One tree from every source: who names a node, what it is worth, and what is learned of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from decoding.core.tree import Source
from decoding.costs.price import DraftBudget, NodePrice
from decoding.kernels.cpu.sampling.noise import gumbel
from decoding.stores.acceptance_model import measured_models, unmeasured_model
from decoding.stores.session import Session
from decoding.stores.session_store import SessionLimits, SessionStore
from tests.decoding.drafting.one_tree.growing import (
    chance_of,
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

COPYING = [1, 2, 3, 4, 5, 9, 1, 2, 3]  # 1 2 3 was followed by 4 before
STORES = ("context", "adjacency", "ngram")


def taught_session() -> Session:
    session = new_session()
    teach(session, {(1, 2, 3): {4: 0.8, 6: 0.1}, (7, 3): {4: 0.5, 8: 0.4}, (4,): {5: 0.9}})
    return session


def test_sources_that_name_the_same_token_give_one_node_named_by_all_of_them() -> None:
    tree = drafter_of(taught_session(), request_of(COPYING, max_depth=2)).propose(DraftBudget(16))
    tree.check_integrity()
    names = names_of(tree)
    assert names[(4,)] == {Source.CONTEXT, Source.ADJACENCY, Source.NGRAM}
    assert names[(6,)] == {Source.ADJACENCY, Source.NGRAM}
    assert names[(4, 5)] == {Source.CONTEXT, Source.ADJACENCY}
    assert len(names) == len(paths_of(tree))
    assert all(Source(int(tree.sources[node])) in tree.named_by(node) for node in range(1, len(tree)))


def test_the_draft_models_word_for_a_node_counts_with_the_others() -> None:
    drafter = drafter_of(taught_session(), request_of(COPYING, max_depth=2), has_model=True)
    tree, _ = grow(drafter, lambda path: {4: 0.6, 7: 0.3} if not path else {30: 1.0}, DraftBudget(16))
    names = names_of(tree)
    assert names[(4,)] == {Source.CONTEXT, Source.ADJACENCY, Source.NGRAM, Source.DRAFT_MODEL}
    assert names[(7,)] == {Source.DRAFT_MODEL}
    assert names[(6,)] == {Source.ADJACENCY, Source.NGRAM}


def test_a_token_that_two_sources_name_is_likelier_than_one_that_the_other_denies() -> None:
    for models in (None, measured_models()):
        agreeing, denying = new_session(models), new_session(models)
        teach(agreeing, {(1, 2, 3): {4: 0.8}})
        teach(denying, {(1, 2, 3): {6: 0.8}})
        request = request_of(COPYING)
        agreed = chance_of(agreeing, request, 4)
        assert agreed > chance_of(denying, request, 4)
        assert agreed > chance_of(denying, request, 6)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_chances_of_siblings_sum_to_at_most_one(temperature: float) -> None:
    random = np.random.default_rng(4)
    for models in (None, measured_models()):
        for seed in range(4):
            session = new_session(models)
            for context in ((1, 2, 3), (9, 3), (1, 2, 3)):
                law = random.dirichlet(np.full(9, 0.3)).tolist()
                teach(session, {context: dict(zip(random.permutation(20)[:9].tolist(), law, strict=True))})
            request = request_of(COPYING, temperature, seed, max_depth=1)
            siblings = paths_of(drafter_of(session, request).propose(DraftBudget(64)))
            assert len(siblings) > 4
            total = sum(chance_of(session, request, token) for (token,) in siblings)
            assert 0 < total <= 1 + 0.001


@pytest.mark.parametrize("name", STORES)
def test_each_source_can_draft_alone_and_be_left_out(name: str) -> None:
    source = Source[name.upper()]
    session = taught_session()
    alone = drafter_of(session, request_of(COPYING, sources=[name])).propose(DraftBudget(16))
    assert alone.num_drafted > 0
    assert {frozenset(each) for each in names_of(alone).values()} == {frozenset([source])}
    others = [other for other in STORES if other != name]
    without = drafter_of(session, request_of(COPYING, sources=others)).propose(DraftBudget(16))
    assert without.num_drafted > 0
    assert all(source not in each for each in names_of(without).values())


def test_a_method_of_one_family_uses_no_other_source_and_what_is_asked_of_that() -> None:
    session = taught_session()
    family = frozenset({Source.ADJACENCY, Source.NGRAM})
    tree = drafter_of(session, request_of(COPYING), family).propose(DraftBudget(16))
    assert {source for each in names_of(tree).values() for source in each} == family
    none_left = drafter_of(session, request_of(COPYING, sources=["context"]), family)
    assert none_left.propose(DraftBudget(16)).num_drafted == 0
    assert none_left.finish() == {}


def test_the_draft_model_is_asked_for_nothing_where_it_is_not_among_the_sources() -> None:
    request = request_of(COPYING, sources=STORES)
    drafter = drafter_of(taught_session(), request, has_model=True)
    assert set(drafter.finish()) == set(STORES)


def test_nothing_is_drafted_that_is_worth_less_than_its_price() -> None:
    session, request = taught_session(), request_of(COPYING)
    prices = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
    trees = [drafter_of(session, request).propose(DraftBudget(32, NodePrice(price))) for price in prices]
    for cheap, dear in pairwise(trees):
        assert set(paths_of(dear)) <= set(paths_of(cheap))
    sizes = [tree.num_drafted for tree in trees]
    assert sizes[0] > sizes[3] > sizes[5] == 0
    assert all(chance_of(session, request, path[0]) >= 0.05 - 0.001 for path in paths_of(trees[2]))


def test_a_larger_budget_adds_nodes_and_takes_none_out() -> None:
    session, request = taught_session(), request_of([1, 2, 3, 4, 5, 6, 7] * 4)
    trees = [drafter_of(session, request).propose(DraftBudget(budget)) for budget in (0, 1, 2, 5, 11, 40)]
    assert [tree.num_drafted for tree in trees[:5]] == [0, 1, 2, 5, 11]
    for small, large in pairwise(trees):
        assert np.array_equal(small.tokens, large.tokens[: len(small)])
        assert np.array_equal(small.parents, large.parents[: len(small)])


@pytest.mark.parametrize("probes", [False, True])
def test_a_tree_that_is_not_verified_is_no_part_of_the_next(probes: bool) -> None:
    """As where the grammar forbids all of it: the step is a plain one then, from which nothing is learned."""
    request = request_of(COPYING)
    drafter = drafter_of(taught_session(), request)
    assert (4,) in paths_of(drafter.propose(DraftBudget(8)))
    request.extend(np.array([4], np.int32))
    if probes:
        drafter.probe()
    tree = drafter.propose(DraftBudget(8))
    assert tree.tokens[0] == 4
    assert (5,) in paths_of(tree)


def test_a_path_is_never_deeper_than_asked() -> None:
    for max_depth in (0, 1, 3):
        drafter = drafter_of(taught_session(), request_of([1, 2, 3, 4, 5, 6, 7] * 4, max_depth=max_depth))
        assert drafter.propose(DraftBudget(40)).depths().max() == max_depth


def test_a_copy_goes_on_along_the_text_and_loops_are_found_again() -> None:
    tree = drafter_of(new_session(), request_of([1, 2, 3, 4, 5] * 3)).propose(DraftBudget(12))
    assert tree.tokens[1:].tolist() == [1, 2, 3, 4, 5] * 2 + [1, 2]
    assert tree.parents.tolist() == list(range(-1, 12))


def test_what_follows_a_node_is_looked_up_along_its_path() -> None:
    session = new_session()
    teach(session, {(2, 3): {10: 0.5, 11: 0.4}, (3, 10): {20: 0.9}, (3, 11): {21: 0.9}})
    drafter = drafter_of(session, request_of([2, 3], sources=["adjacency"]))
    assert set(paths_of(drafter.propose(DraftBudget(8)))) == {(10,), (11,), (10, 20), (11, 21)}


PLAIN = DraftBudget(4, NodePrice(1.0))  # nothing is worth that
WRONG_OFTEN, RIGHT_OFTEN = 2, 1  # what the target adds to a token, where the store says that 1 is added


def successor_session(weight: float) -> Session:
    """After every token t of 50 comes t + 1, or so the store says."""
    session = new_session()
    teach(session, {(token,): {(token + 1) % 50: weight} for token in range(50)})
    return session


def live(session: Session, added: int, budget: DraftBudget, steps: int = 60) -> tuple[int, int]:
    """Nodes likelier than not, before and after a reply in which the target adds `added` to each token."""
    likelier = DraftBudget(4, NodePrice(0.5))
    request = request_of([0], sources=["adjacency"])
    before = drafter_of(session, request_of([0], sources=["adjacency"])).propose(likelier).num_drafted
    drafter = drafter_of(session, request)
    for _ in range(steps):
        tree = drafter.propose(budget)
        assert budget is not PLAIN or tree.num_drafted == 0
        verify(drafter, request, tree, lambda token: (token + added) % 50)
    return before, drafter.propose(likelier).num_drafted


@pytest.mark.parametrize("budget", [DraftBudget(4), PLAIN], ids=["drafted", "plain"])
def test_a_source_that_is_always_wrong_loses_its_nodes_and_one_that_is_right_gains(budget: DraftBudget) -> None:
    """Whether its tokens were drafted or the steps were plain."""
    before, after = live(successor_session(0.95), WRONG_OFTEN, budget)
    assert after == 0 < before
    before, after = live(successor_session(0.25), RIGHT_OFTEN, budget)
    assert before == 0 < after


def test_what_was_predicted_is_counted_whoever_drafted_and_whether_or_not() -> None:
    for budget in (DraftBudget(4), PLAIN):
        request = request_of([0])
        drafter = drafter_of(successor_session(0.95), request)
        for _ in range(6):
            verify(drafter, request, drafter.propose(budget), lambda token: (token + 1) % 50)
        num_predicted = drafter.finish()
        assert num_predicted["adjacency"] == request.num_output > 0
        assert num_predicted["context"] == num_predicted["ngram"] == 0


def test_of_a_run_that_the_replys_end_cuts_what_is_given_out_counts_alone() -> None:
    whole = request_of([0], sources=["adjacency"])
    request = replace(whole, sampling=replace(whole.sampling, max_tokens=3))
    drafter = drafter_of(successor_session(0.95), request)
    assert verify(drafter, request, drafter.propose(DraftBudget(8)), lambda token: (token + 1) % 50) == 8
    assert request.finish_reason is not None
    assert drafter.finish() == {"adjacency": 3}


def test_what_the_target_says_is_in_the_store_for_the_next_step() -> None:
    session = new_session()
    request = request_of([0])
    drafter = drafter_of(session, request)
    accepted = 0
    for _ in range(40):
        accepted += verify(drafter, request, drafter.propose(DraftBudget(8)), lambda token: (token + 1) % 6, True)
    session.ngrams.check_integrity()
    assert request.num_output == 40 + accepted > 100


def test_requests_start_from_their_session_and_sessions_from_the_server() -> None:
    store = SessionStore(SessionLimits(2**20, 2**24, 2**24))
    store.acceptance_models = (unmeasured_model(), unmeasured_model())
    laws = {(token,): {(token + 1) % 50: 0.95} for token in range(50)}
    lived, fresh = store.open("alice", "lived"), store.open("bob", "fresh")
    for session in (lived, fresh):
        teach(session, laws)
    asked = request_of([0], sources=["adjacency"])
    fresh_before = chance_of(fresh, asked, 1)
    live(lived, WRONG_OFTEN, DraftBudget(4), steps=200)
    again = chance_of(lived, asked, 1)
    assert again < 0.4
    late = store.open("carol", "late")
    teach(late, laws)
    assert again < chance_of(late, asked, 1) < fresh_before
    assert chance_of(late, request_of([0], 1.0, sources=["adjacency"]), 1) > 0.9, (
        "sampled requests are learned from apart"
    )


@pytest.mark.parametrize("source", ["adjacency", "draft_model"])
def test_with_temperature_the_requests_own_noise_says_who_comes_first(source: str) -> None:
    law = {10: 0.3, 11: 0.25, 12: 0.25, 13: 0.2}
    session = new_session()
    teach(session, {(3,): law})
    firsts, num_sure = set(), 0
    for seed in range(60):
        request = request_of([2, 3], 1.0, seed, sources=[source], max_depth=1)
        scores = {token: np.log(share) + gumbel(np.uint64(seed), 2, token) for token, share in law.items()}
        best = max(scores, key=lambda token: scores[token])
        weights = np.exp(np.array(list(scores.values())) - scores[best])
        if weights.max() / weights.sum() < 0.5:
            continue  # a close race, whose leaders are of one class
        drafter = drafter_of(session, request, has_model=source == "draft_model")
        tree = (
            drafter.propose(DraftBudget(1))
            if source == "adjacency"
            else grow(drafter, lambda _: law, DraftBudget(1))[0]
        )
        assert paths_of(tree) == [(best,)]
        firsts.add(best)
        num_sure += 1
    assert num_sure > 15
    assert firsts == set(law)


def test_without_temperature_the_seed_changes_nothing() -> None:
    session = taught_session()
    trees = [drafter_of(session, request_of(COPYING, 0.0, seed)).propose(DraftBudget(16)) for seed in (1, 2)]
    assert paths_of(trees[0]) == paths_of(trees[1])


def test_a_tree_of_no_budget_is_the_root_alone_and_is_learned_from_too() -> None:
    request = request_of([0], sources=["adjacency"])
    drafter = drafter_of(successor_session(0.95), request)
    for _ in range(5):
        tree = drafter.propose(DraftBudget(0))
        assert tree.num_drafted == 0
        verify(drafter, request, tree, lambda token: (token + 1) % 50)
    assert drafter.finish()["adjacency"] == 5


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_random_stores_budgets_and_prices_give_valid_trees_and_the_same_ones_again(
    seed: int, temperature: float
) -> None:
    num_drafted = num_accepted = 0
    for number in range(3):
        trees = [list(_random_life(1000 * seed + number, temperature)) for _ in range(2)]
        for one, other in zip(*trees, strict=True):
            assert np.array_equal(one[0], other[0])
            assert np.array_equal(one[1], other[1])
        num_drafted += sum(len(tokens) - 1 for tokens, _, _ in trees[0])
        num_accepted += sum(accepted for _, _, accepted in trees[0])
    assert num_drafted > 100
    assert 0 < num_accepted < num_drafted


def _random_life(seed: int, temperature: float) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """tokens, parents and accepted nodes of a reply's trees; everything but the tokens' laws is drawn."""
    random = np.random.default_rng(seed)
    session = new_session()
    request = request_of(
        random.integers(0, 12, int(random.integers(1, 50))).tolist(),
        temperature,
        seed,
        max_depth=[None, 0, 1, 6][int(random.integers(0, 4))] if seed % 2 else None,
    )
    drafter = drafter_of(session, request, has_model=True)
    drafter.observe_prefill(0, tops_of(lambda path: _law(seed, path), [(int(token),) for token in request.tokens]))
    lived = []
    for _ in range(15):
        budget = DraftBudget(
            int(random.integers(0, 40)),
            NodePrice(random.choice([0.0, 0.02, 0.2]), 0.0, int(random.integers(0, 4))),
            random.choice([0.0, 0.05, 0.5]),
            random.choice([0.0, 0.01]),
            others=random.choice([0.0, 0.1]),
        )
        if random.random() < 0.7 and budget.max_nodes > 0:
            most_rows = int(random.integers(0, 30))
            tree, rounds = grow(drafter, lambda path: _law(seed, path), budget, most_rows, int(random.integers(0, 8)))
            assert sum(rounds) <= min(most_rows, budget.max_nodes)
        else:
            tree = drafter.propose(budget)
        tree.check_integrity()
        assert tree.num_drafted <= budget.max_nodes
        assert tree.tokens[0] == request.tokens[-1]
        depth = request.speculation.max_depth
        assert depth is None or tree.depths().max() <= depth
        assert all(int(tree.sources[node]) in tree.named_by(node) for node in range(1, len(tree)))
        accepted = verify(drafter, request, tree, partial(_next_token, request.num_tokens), True)
        lived.append((tree.tokens, tree.parents, accepted))
    session.ngrams.check_integrity()
    return lived


def _next_token(position: int, token: int) -> int:
    """The next one of twelve, or now and then the same again."""
    return (token + ((token * 7 + position) % 5 > 0)) % 12


def _law(seed: int, path: tuple[int, ...]) -> dict[int, float]:
    """What the draft model says: often that the last token plus one comes."""
    random = np.random.default_rng([seed, *path])
    likeliest = (path[-1] + 1) % 12 if path else int(random.integers(0, 12))
    return {likeliest: 0.6, (likeliest + 1) % 12: 0.2, (likeliest + 2) % 12: 0.1, 110: 0.05}


def test_a_tree_that_promises_much_is_cut_where_its_own_rate_makes_nodes_too_dear() -> None:
    session = new_session()
    teach(session, {(token,): {token + 1: 0.9, 40 + token: 0.09} for token in range(1, 12)})
    request = request_of([1], sources=["adjacency"])
    free = drafter_of(session, request).propose(DraftBudget(64, NodePrice(0.05)))
    rated = drafter_of(session, request).propose(DraftBudget(64, NodePrice(0.05), others=0.0, fixed=1.0))
    among_many = drafter_of(session, request).propose(DraftBudget(64, NodePrice(0.05), others=15.0, fixed=16.0))
    assert 1 < len(rated) < len(among_many) < len(free)
    assert set(paths_of(rated)) < set(paths_of(among_many)) < set(paths_of(free))


@pytest.mark.parametrize("num_spare", [1, 4, 9])
def test_nodes_for_which_a_step_has_rows_to_spare_are_the_likeliest(num_spare: int) -> None:
    session = new_session()
    teach(session, {(token,): {token + 1: 0.9, 40 + token: 0.09} for token in range(1, 12)})
    request = request_of([1], sources=["adjacency"])
    alone = drafter_of(session, request).propose(DraftBudget(num_spare))
    spare = drafter_of(session, request).propose(DraftBudget(64, NodePrice(1.5, 0.0, num_spare)))
    assert paths_of(spare) == paths_of(alone)
    mixed = drafter_of(session, request).propose(DraftBudget(64, NodePrice(0.3, 0.0, num_spare)))
    worth = drafter_of(session, request).propose(DraftBudget(64, NodePrice(0.3)))
    assert set(paths_of(mixed)) == set(paths_of(alone)) | set(paths_of(worth))


def test_a_text_is_learned_from_while_nothing_is_drafted() -> None:
    session = new_session()
    request = request_of([30, 31, 32])
    drafter = drafter_of(session, request)
    for token in range(40):
        drafter.probe()
        request.extend(np.array([token], np.int32))
    assert drafter.finish()["ngram"] == 0
    again = drafter_of(session, request_of([9, 10, 11, 12]))
    again.probe()
    assert paths_of(again.propose(DraftBudget(3)))[:2] == [(13,), (13, 14)]
    assert again.propose(DraftBudget(3)).named_by(1) == [Source.CONTEXT]


def test_earlier_replies_of_the_session_are_copied_also_while_they_come() -> None:
    session, prompt = new_session(), [50, 51, 52]
    first = request_of(prompt, sources=["context"])
    drafter = drafter_of(session, first)
    reply = list(range(20))
    for token in reply:
        drafter.probe()
        first.extend(np.array([token], np.int32))
    drafter.probe()
    meanwhile = drafter_of(session, request_of(prompt, sources=["context"])).propose(DraftBudget(30))
    assert paths_of(meanwhile)[-1] == tuple(reply), "the prompt's end finds the reply's beginning"
    assert drafter.finish()["context"] == 0
    deeper = drafter_of(session, request_of([8, 9, 3, 4, 5, 6], sources=["context"])).propose(DraftBudget(3))
    assert paths_of(deeper) == [(7,), (7, 8), (7, 8, 9)]
    own = drafter_of(session, request_of([5, 6, 70, 4, 5, 6], sources=["context"])).propose(DraftBudget(1))
    assert paths_of(own) == [(7,)], "more tokens are shared with the reply"
    own = drafter_of(session, request_of([3, 4, 5, 6, 70, 4, 5, 6], sources=["context"])).propose(DraftBudget(1))
    assert paths_of(own) == [(70,)], "the request's own text first where as many are"
    other = drafter_of(new_session(), request_of(prompt, sources=["context"])).propose(DraftBudget(30))
    assert paths_of(other) == []


def test_what_a_draft_model_has_to_read_is_part_of_its_price() -> None:
    budget = DraftBudget(8, NodePrice(0.05), round_price=0.1, row_price=0.2)
    for num_tokens in (4, 3000):
        drafter = drafter_of(new_session(), request_of(list(range(num_tokens))), has_model=True)
        assert drafter.prepare(budget) == (num_tokens == 4)
