from itertools import pairwise

import numpy as np
import pytest

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source
from decoding.costs.price import DraftBudget, NodePrice
from decoding.drafting.drafter import Drafter
from decoding.drafting.registry import available, check, start
from decoding.errors import RequestRejected
from decoding.sampling.verify import walk
from decoding.stores.ngram import find_successors
from decoding.stores.session import Session, lone_session

VOCABULARY = 12


def new_session() -> Session:
    return lone_session(2**20)


def make_request(prompt: list[int], max_tokens: int = 200, **speculation: object) -> Request:
    return Request(
        id="test",
        prompt=np.array(prompt, np.int32),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        speculation=SpeculationParams(**speculation),  # type: ignore[arg-type]
    )


class ScriptedTarget:
    """A target whose next token is likely to follow a cycle, so that some drafts are right and some wrong."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def top(self, tokens: np.ndarray, width: int = 10) -> TopTokens:
        shift = np.where(self.random.random(len(tokens)) < 0.7, 1, self.random.integers(2, 9, len(tokens)))
        ids = (tokens[:, None] + shift[:, None] + np.arange(width)) % VOCABULARY
        probabilities = np.tile(
            np.float32(0.6) * np.float32(0.5) ** np.arange(width, dtype=np.float32), (len(tokens), 1)
        )
        return TopTokens(ids.astype(np.int32), probabilities.astype(np.float32))


def check_tree(tree: DraftTree, request: Request, budget: int) -> None:
    tree.check_integrity()
    assert tree.num_drafted <= budget
    assert tree.tokens[0] == request.tokens[-1]
    assert np.all((tree.tokens >= 0) & (tree.tokens < VOCABULARY))
    assert np.all(tree.sources[1:] != Source.ROOT)
    if request.speculation.max_depth is not None:
        assert tree.depths().max() <= request.speculation.max_depth


def run(drafter: Drafter, request: Request, target: ScriptedTarget, budgets: list[int]) -> tuple[list[DraftTree], int]:
    """Decode with the scripted target; returns the trees and how many drafted nodes were accepted."""
    drafter.observe_prefill(0, target.top(request.tokens))
    trees, accepted = [], 0
    for budget in budgets:
        tree = drafter.propose(DraftBudget(budget))
        check_tree(tree, request, budget)
        top = target.top(tree.tokens)
        verdict = walk(tree, top.ids[:, 0].copy())
        accepted += request.extend(verdict.tokens) - 1
        if request.finish_reason is not None:
            break
        drafter.observe(tree, verdict, top if drafter.num_top else None)
        trees.append(tree)
    return trees, accepted


@pytest.mark.parametrize("method", available(has_draft_model=False))
@pytest.mark.parametrize("max_depth", [None, 0, 1, 5])
@pytest.mark.parametrize(
    "without", [(), ("best_first",), ("branches",), ("bypass", "bigram"), ("context_match", "best_first")]
)
def test_trees_keep_their_promises_for_any_budget(method: str, max_depth: int | None, without: tuple[str, ...]) -> None:
    random = np.random.default_rng(7)
    stores, target = new_session(), ScriptedTarget(3)
    largest = accepted = 0
    for _ in range(3):
        prompt = random.integers(0, VOCABULARY, int(random.integers(1, 60))).tolist()
        options = {"max_depth": max_depth, "without": frozenset(without), "branching": int(random.integers(1, 6))}
        request = make_request(prompt, max_nodes=64, **options)
        budgets = random.integers(0, 65, 40).tolist()
        trees, right = run(start(method, request, stores), request, target, budgets)
        largest = max(largest, *(tree.num_drafted for tree in trees))
        accepted += right
    if method != "none" and max_depth is None:
        assert largest > (4 if method == "suffix" else 10)  # which drafts no more nodes than tokens match
        assert accepted > 10


@pytest.mark.parametrize("method", available(has_draft_model=False))
def test_no_path_is_longer_than_the_budget_says(method: str) -> None:
    request, target = make_request(list(range(VOCABULARY)) * 9), ScriptedTarget(3)
    drafter = start(method, request, new_session())
    drafter.observe_prefill(0, target.top(request.tokens))
    tree = drafter.propose(DraftBudget(32, max_depth=2))
    assert tree.depths().max() == (0 if method == "none" else 2)


@pytest.mark.parametrize("method", available(has_draft_model=False))
def test_budget_zero_and_a_one_token_prompt_give_the_plain_step(method: str) -> None:
    request = make_request([3])
    drafter = start(method, request, new_session())
    for budget in (0, 8):
        tree = drafter.propose(DraftBudget(budget))
        assert (len(tree), tree.tokens[0], tree.parents[0]) == (1, 3, -1)


@pytest.mark.parametrize("method", ["spine", "isotropic"])
def test_sixty_nodes_means_sixty(method: str) -> None:
    request, stores = make_request(list(range(VOCABULARY)) * 3), new_session()
    trees, _ = run(start(method, request, stores), request, ScriptedTarget(1), [60] * 8)
    assert {tree.num_drafted for tree in trees} == {60}


def teach(stores: Session, rows: dict[tuple[int, int], list[int]], probabilities: list[float]) -> None:
    """Successors of (previous, token) pairs; previous -1 for the unigram tier alone."""
    for (previous, token), successors in rows.items():
        stores.ngrams.harvest(
            np.array([[-1, -1, previous, token]], np.int32),
            np.array([successors], np.int32),
            np.array([probabilities[: len(successors)]], np.float32),
        )


def test_algorithm_one_lays_the_spine_and_branches_root_and_spine_by_the_harmonic_rule() -> None:
    stores = new_session()
    # 1 2 3 occurred once, followed by 4 5 6 ...: no consensus of occurrences, suffix of 3, so no bypass
    request = make_request([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], without=frozenset({"best_first"}))
    for token in (3, 4, 5, 6):
        teach(stores, {(-1, token): [token + 1, 20, 21, 22, 23, 24]}, [0.4, 0.2, 0.1, 0.1, 0.1, 0.1])
    tree = start("spine", request, stores).propose(DraftBudget(12))
    tree.check_integrity()
    # budget 12, running acceptance 0.3: ratio 0.30, spine of 3; 9 left: 4 for spine branches, 5 for the root
    assert tree.tokens[:4].tolist() == [3, 4, 5, 6]
    assert tree.parents[:4].tolist() == [-1, 0, 1, 2]
    assert tree.sources[1:4].tolist() == [Source.CONTEXT] * 3
    # the root leaves out 4, its next spine token; harmonic shares 4/1/1.83, 4/2/1.83, 4/3/1.83 -> 2, 1, 1
    assert tree.tokens[4:9].tolist() == [20, 21, 22, 23, 24]
    assert tree.parents[4:9].tolist() == [0] * 5
    assert tree.tokens[9:].tolist() == [20, 21, 20, 20]
    assert tree.parents[9:].tolist() == [1, 1, 2, 3]
    assert set(tree.sources[4:].tolist()) == {int(Source.ADJACENCY)}


def test_algorithm_one_counts_branch_depth_from_the_branch_itself() -> None:
    stores = new_session()
    request = make_request([*range(100, 130), 1, 100, 101, 102], without=frozenset({"best_first"}))
    for token in [*range(100, 130), *range(50, 60)]:  # one successor each: branches are chains 50, 51, ...
        teach(stores, {(-1, token): [50 if token >= 100 else token + 1]}, [1.0])
    tree = start("spine", request, stores).propose(DraftBudget(160))
    ends = tree.depths()[tree.tokens == 55]
    assert sorted(ends.tolist()) == list(range(6, 27))  # one branch of depth 6 off the root and each spine node
    assert 56 not in tree.tokens


def test_what_branches_leave_of_the_budget_lengthens_the_spine() -> None:
    request = make_request([*range(100, 130), 1, 100, 101, 102], without=frozenset({"best_first"}))
    tree = start("spine", request, new_session()).propose(DraftBudget(30))  # a ratio of 0.30 alone would give 9
    assert tree.tokens[1:].tolist() == list(range(103, 123))


def test_a_trusted_match_is_drafted_as_one_chain() -> None:
    request = make_request([*range(1, 11), 7, *range(1, 11)], without=frozenset({"best_first"}))
    tree = start("spine", request, new_session()).propose(DraftBudget(9))
    assert tree.tokens[1:].tolist() == [7, 1, 2, 3, 4, 5, 6, 7, 8]
    assert tree.parents.tolist() == list(range(-1, 9))


def test_best_first_trees_grow_by_adding_nodes_and_prefer_the_likely() -> None:
    request, stores = make_request(list(range(VOCABULARY)) * 3), new_session()
    start("spine", request, stores).observe_prefill(0, ScriptedTarget(5).top(request.tokens))
    trees = [start("spine", request, stores).propose(DraftBudget(budget)) for budget in (1, 4, 16, 60)]
    for small, large in pairwise(trees):
        size = len(small)
        assert np.array_equal(small.tokens, large.tokens[:size])
        assert np.array_equal(small.parents, large.parents[:size])
    assert trees[0].tokens[1] == 0  # the cycle goes on
    assert Source.CONTEXT in trees[0].named_by(1)


def test_ablations_leave_out_what_they_name() -> None:
    def tree_without(*parts: str) -> DraftTree:
        request, stores = make_request(list(range(VOCABULARY)) * 3, without=frozenset(parts)), new_session()
        drafter = start("spine", request, stores)
        drafter.observe_prefill(0, ScriptedTarget(5).top(request.tokens))
        return drafter.propose(DraftBudget(40))

    assert Source.CONTEXT not in tree_without("context_match").sources
    spine_only = tree_without("branches", "bypass")
    on_spine = spine_only.sources[spine_only.parents] == Source.CONTEXT
    assert not np.any(on_spine & (spine_only.sources == Source.ADJACENCY))
    assert Source.CONTEXT in spine_only.sources


def test_isotropic_nodes_have_at_most_k_children_and_fill_level_by_level() -> None:
    request, stores = make_request(list(range(VOCABULARY)), branching=3), new_session()
    drafter = start("isotropic", request, stores)
    drafter.observe_prefill(0, ScriptedTarget(2).top(request.tokens))
    tree = drafter.propose(DraftBudget(39))
    assert np.bincount(tree.depths()).tolist() == [1, 3, 9, 27]
    assert np.bincount(tree.parents[1:]).tolist() == [3] * 13


def test_recycle_drafts_the_published_eighty_node_tree() -> None:
    request, stores = make_request(list(range(VOCABULARY))), new_session()
    drafter = start("recycle", request, stores)
    drafter.observe_prefill(0, ScriptedTarget(2).top(request.tokens, 8))
    tree = drafter.propose(DraftBudget(100))
    assert np.bincount(tree.depths()).tolist() == [1, 8, 21, 25, 15, 8, 3]
    assert np.array_equal(drafter.propose(DraftBudget(20)).tokens, tree.tokens[:21])


def test_recycle_is_warm_across_the_requests_of_a_session() -> None:
    stores = new_session()
    first = make_request(list(range(VOCABULARY)))
    start("recycle", first, stores).observe_prefill(0, ScriptedTarget(2).top(first.tokens, 8))
    assert start("recycle", make_request([5]), stores).propose(DraftBudget(8)).num_drafted == 8


def test_lookup_copies_the_earliest_match_of_the_longest_of_three_two_and_one_tokens() -> None:
    def drafted(*tokens: int, **options: object) -> list[int]:
        tree = start("lookup", make_request(list(tokens), **options), new_session()).propose(DraftBudget(12))
        return tree.tokens[1:].tolist()

    assert drafted(1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3, max_nodes=2) == [9, 1, 2, 3, 8, 1, 2, 3]
    assert drafted(3, 5, 2, 3, 6, 2, 3) == [6, 2, 3]
    assert drafted(4, 1, 2, 4) == [1, 2, 4]
    assert drafted(1, 2, 3) == []
    assert len(drafted(*range(20), *range(20))) == 12  # the whole budget
    assert len(drafted(*range(20), *range(20), max_nodes=12)) == 12


def test_harvested_bigrams_follow_parent_links() -> None:
    stores = new_session()
    request = make_request([1, 2], without=frozenset({"best_first"}))
    drafter = start("spine", request, stores)
    tree = DraftTree(
        np.array([2, 3, 4, 5], np.int32), np.array([-1, 0, 0, 1], np.int32), np.array([0, 2, 2, 2], np.int8)
    )
    drafter.propose(DraftBudget(0))
    top = TopTokens(np.tile(np.arange(10, dtype=np.int32), (4, 1)), np.full((4, 10), 0.1, np.float32))
    verdict = walk(tree, np.array([9, 9, 9, 9], np.int32))
    request.extend(verdict.tokens)
    drafter.observe(tree, verdict, top)
    assert stores.ngrams.num_entries[1] == 4
    for pair in ((1, 2), (2, 3), (2, 4), (3, 5)):
        entry, tier = find_successors(stores.ngrams.arrays, *pair)
        assert entry >= 0
        assert tier == 1


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"method": "medusa"}, "speculation.method"),
        ({"without": frozenset({"branches", "roots"})}, "speculation.without"),
        ({"without": frozenset({"refill"})}, "speculation.without"),
        ({"sources": frozenset({"context", "rumour"})}, "speculation.sources"),
        ({"sources": frozenset({"bonus"})}, "speculation.sources"),
        ({"sources": frozenset({"context"}), "method": "recycle"}, "speculation.sources"),
        ({"sources": frozenset({"context"}), "without": frozenset({"best_first"})}, "speculation.sources"),
        ({"branching": 0}, "speculation.branching"),
        ({"branching": 11}, "speculation.branching"),
        ({"consensus": "majority"}, "speculation.consensus"),
        ({"max_nodes": -1}, "speculation.max_nodes"),
        ({"max_depth": -1}, "speculation.max_depth"),
    ],
)
def test_what_no_method_honours_is_refused_by_name(options: dict[str, object], param: str) -> None:
    with pytest.raises(RequestRejected) as refusal:
        check(SpeculationParams(**options))  # type: ignore[arg-type]
    assert refusal.value.param == param
    check(SpeculationParams(without=frozenset({"branches"}), consensus="lengths", max_nodes=0))
    check(SpeculationParams(sources=frozenset({"context", "prediction", "grammar", "draft_model"}), method="stand"))


def test_a_spine_leaves_out_what_is_less_likely_than_its_price() -> None:
    request = make_request([1, 2, 3, 4, 5, 6] * 5)
    drafters = [start("spine", request, new_session()) for _ in range(4)]
    budgets = [DraftBudget(60, NodePrice(min_chance)) for min_chance in (0.0, 0.3, 0.99, 1.1)]
    sizes = [each.propose(budget).num_drafted for each, budget in zip(drafters, budgets, strict=True)]
    assert sizes[0] >= sizes[1] >= sizes[2] >= sizes[3] == 0
    assert sizes[0] == 60 > sizes[2]
