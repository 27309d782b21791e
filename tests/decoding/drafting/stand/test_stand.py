"""STAND drafts the candidates the target's own noise favours, along paths, within its budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source
from decoding.costs.price import DraftBudget
from decoding.drafting.registry import check
from decoding.drafting.stand.stand import StandDrafter
from decoding.drafting.stand.static_tree import StaticTree
from decoding.errors import RequestRejected
from decoding.kernels.cpu.sampling.noise import gumbel
from decoding.sampling.verify import walk
from decoding.stores.session import Session, lone_session
from tests.decoding.stores.tables import successors

VOCAB = 23
SEED = 2**63 + 12345
PROMPT = np.array([3, 5, 7, 5, 3, 11], np.int32)


def new_session() -> Session:
    return lone_session(2**20)


def law_after(token: int, width: int = 10) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """What the pretended target expects after `token`, whatever came before."""
    random = np.random.default_rng(token)
    weights = -np.sort(-random.dirichlet(np.full(VOCAB, 0.6)))[:width]
    return random.permutation(VOCAB)[:width].astype(np.int32), weights.astype(np.float32)


def top_of(tokens: NDArray[np.int32], width: int = 10) -> TopTokens:
    rows = [law_after(int(token), width) for token in tokens]
    return TopTokens(np.stack([ids for ids, _ in rows]), np.stack([weights for _, weights in rows]))


def drafter_of(
    session: Session, prompt: NDArray[np.int32] = PROMPT, tree: StaticTree | None = None, **options: Any
) -> tuple[StandDrafter, Request]:
    names = {"temperature", "top_p", "top_k", "min_p"}
    sampling = SamplingParams(max_tokens=64, seed=SEED, **{key: options.pop(key) for key in names & set(options)})
    speculation = SpeculationParams(method="stand", **options)
    request = Request(id="test", prompt=prompt, sampling=sampling, speculation=speculation)
    return StandDrafter(request, session, tree), request


def taught_session() -> Session:
    """A session in which every token has been seen, each in three contexts."""
    session = new_session()
    for shift in range(3):
        text = np.roll(np.arange(VOCAB, dtype=np.int32), shift)
        drafter, _ = drafter_of(session, text)
        drafter.observe_prefill(0, top_of(text))
    return session


def expected_order(token: int, position: int, temperature: float, kept: int = 10) -> list[int]:
    """Candidates after `token` by log q + g, in plain numpy."""
    ids, weights = law_after(token)
    scores = np.log(weights[:kept].astype(np.float64)) / temperature
    noise = [gumbel(np.uint64(SEED), position, int(candidate)) for candidate in ids[:kept]]
    return [int(ids[slot]) for slot in np.argsort(-(scores + noise))]


def children_of(tree: DraftTree, node: int) -> list[int]:
    return [int(token) for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == node]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_children_come_in_the_order_of_the_targets_own_noise(temperature: float) -> None:
    drafter, request = drafter_of(taught_session(), temperature=temperature)
    tree = drafter.propose(DraftBudget(60))
    tree.check_integrity()
    assert tree.num_drafted == 60
    assert set(tree.sources[1:].tolist()) == {Source.NGRAM}
    checked = 0
    for node, (token, depth) in enumerate(zip(tree.tokens, tree.depths(), strict=True)):
        children = children_of(tree, node)
        expected = expected_order(int(token), request.num_tokens + int(depth), temperature)
        assert children == expected[: len(children)]
        checked += len(children) > 1
    assert checked > 5


def test_independent_candidates_ignore_the_targets_noise_and_deterministic_ones_all_noise() -> None:
    session = taught_session()
    orders = {}
    for candidates in ("coupled", "independent", "deterministic"):
        drafter, _ = drafter_of(session, candidates=candidates)
        orders[candidates] = children_of(drafter.propose(DraftBudget(80)), 0)
    assert len({tuple(order) for order in orders.values()}) == 3
    assert orders["deterministic"] == law_after(int(PROMPT[-1]))[0][:8].tolist()


def test_independent_draws_follow_q() -> None:
    session = taught_session()
    ids, weights = law_after(int(PROMPT[-1]))
    firsts = []
    for seed in range(4000):
        sampling = SamplingParams(max_tokens=4, seed=seed)
        speculation = SpeculationParams(method="stand", candidates="independent")
        request = Request(id="test", prompt=PROMPT, sampling=sampling, speculation=speculation)
        firsts.append(int(StandDrafter(request, session).propose(DraftBudget(1)).tokens[1]))
    observed = np.array([firsts.count(int(token)) for token in ids])
    expected = weights / weights.sum() * len(firsts)
    assert (((observed - expected) ** 2) / expected).sum() < 27.9  # chi-square of 9 degrees, p = 0.001


@pytest.mark.parametrize(
    ("options", "kept"),
    [({"top_k": 3}, 3), ({"temperature": 0.0}, 8), ({"top_p": 0.5}, None), ({"min_p": 0.3}, None)],
)
def test_tokens_that_the_filters_drop_are_not_drafted(options: dict[str, Any], kept: int | None) -> None:
    ids, weights = law_after(int(PROMPT[-1]))
    if "top_p" in options:
        kept = int((np.cumsum(weights) - weights < 0.5 * weights.sum()).sum())
    if "min_p" in options:
        kept = int((weights >= 0.3 * weights[0]).sum())
    assert kept is not None
    drafter, request = drafter_of(taught_session(), max_depth=1, **options)
    drafted = children_of(drafter.propose(DraftBudget(80)), 0)
    assert sorted(drafted) == sorted(ids[:kept].tolist())
    if request.sampling.temperature == 0:
        assert drafted == ids[:kept].tolist()


def test_look_ups_follow_parent_links_not_flat_order() -> None:
    session = new_session()
    teacher, _ = drafter_of(session, np.array([1, 2, 3], np.int32))
    rows = {(1, 2, 3): 10, (2, 3, 10): 20, (3, 10, 20): 21, (1, 2, 9): 11, (2, 3, 11): 19}
    contexts = np.array([(-1, *context) for context in rows], np.int32)
    ids = np.array([[token, 22] for token in rows.values()], np.int32)
    session.ngrams.harvest(contexts, ids, np.tile(np.array([0.9, 0.05], np.float32), (len(rows), 1)))
    tree = teacher.propose(DraftBudget(80))
    paths = {tuple(path_tokens(tree, node)) for node in range(len(tree))}
    assert (10, 20, 21) in paths
    assert (22,) in paths  # never seen after 3: nothing below it, although 2, 3, 10 comes before it in flat order
    assert not any(path[0] == 22 and len(path) > 1 for path in paths if path)


def path_tokens(tree: DraftTree, node: int) -> list[int]:
    tokens = []
    while node > 0:
        tokens.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return tokens[::-1]


def test_a_harvested_tree_teaches_every_row_under_its_own_path() -> None:
    session = taught_session()
    drafter, request = drafter_of(session)
    tree = drafter.propose(DraftBudget(20))
    verdict = walk(tree, np.full(len(tree), -5, np.int32))
    request.extend(np.array([4], np.int32))
    drafter.observe(tree, verdict, top_of(tree.tokens))
    session.ngrams.check_integrity()
    text = PROMPT.tolist()
    for node in range(len(tree)):
        context = np.array([-1, -1, -1, *text, *path_tokens(tree, node)], np.int32)[-4:]
        ids, _, ngram = successors(session.ngrams, context)
        assert ngram == 4
        assert ids.tolist() == law_after(int(tree.tokens[node]))[0].tolist()


STATIC = StaticTree(made={}, parents=[-1, 0, 0, 1, 1, 2, 3], ranks=[0, 0, 1, 0, 1, 0, 0])


def test_a_static_tree_is_filled_slot_by_slot_and_cut_to_the_budget() -> None:
    session = taught_session()
    for budget in range(7):
        drafter, _ = drafter_of(session, tree=STATIC)
        tree = drafter.propose(DraftBudget(budget))
        assert tree.parents.tolist() == STATIC.parents[: budget + 1]
        for node in range(1, len(tree)):
            token, depth = int(tree.tokens[tree.parents[node]]), int(tree.depths()[node])
            expected = expected_order(token, len(PROMPT) + depth - 1, 1.0)
            assert tree.tokens[node] == expected[STATIC.ranks[node]]


def test_slots_without_a_candidate_stay_empty() -> None:
    session = new_session()
    ids = np.array([[1, 2, 3, 4], [2, -1, -1, -1]], np.int32)
    probabilities = np.array([[0.4, 0.3, 0.2, 0.1], [1.0, 0, 0, 0]], np.float32)
    contexts = np.array([[-1, -1, -1, 11], [-1, -1, 11, 1]], np.int32)
    session.ngrams.harvest(contexts, ids, probabilities)  # after 1 comes 2 alone; after 2, 3 and 4 nothing is known
    drafter, _ = drafter_of(session, tree=STATIC, temperature=0.0)
    tree = drafter.propose(DraftBudget(6))
    assert tree.parents.tolist() == [-1, 0, 0, 1]
    assert tree.tokens[1:].tolist() == [1, 2, 2]


def test_max_depth_holds() -> None:
    session = taught_session()
    drafter, _ = drafter_of(session, max_depth=2)
    tree = drafter.propose(DraftBudget(60))
    assert tree.depths().max() == 2
    assert tree.num_drafted > 20


def test_nothing_is_drafted_from_an_empty_store() -> None:
    drafter, _ = drafter_of(new_session())
    assert len(drafter.propose(DraftBudget(60))) == 1


def test_an_unknown_way_of_drawing_is_refused_by_name() -> None:
    with pytest.raises(RequestRejected) as caught:
        check(SpeculationParams(method="stand", candidates="best"))
    assert caught.value.param == "speculation.candidates"
