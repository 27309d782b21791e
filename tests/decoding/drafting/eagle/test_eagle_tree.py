"""EAGLE-2's tree against a plain telling of its rule: a beam of ten a depth, then the likeliest nodes of all."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decoding.cache.kv_store import KvStore
from decoding.core.layer import LayerSpec
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree
from decoding.costs.price import DraftBudget
from decoding.drafting.draft_model.dynamic import ModelDrafter
from decoding.drafting.draft_model.state import DraftModelState
from decoding.drafting.eagle.eagle_tree import BEAM, MOST_DEPTH, NUM_NODES, eagle_rules
from decoding.sampling.verify import walk
from decoding.stores.successor_table import NUM_SUCCESSORS

ROOT = 5
Path = tuple[int, ...]


def said_after(path: Path, peak: float) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ten tokens and their falling probabilities after a path. peak: the larger, the surer."""
    generator = np.random.default_rng([*path, 1])
    weights = np.sort(generator.exponential(size=NUM_SUCCESSORS) ** peak)[::-1]
    ids = generator.permutation(50)[:NUM_SUCCESSORS].astype(np.int32)
    return ids, (0.9 * weights / weights.sum()).astype(np.float32)


def by_the_rule(peak: float, num_nodes: int = NUM_NODES, most_depth: int = MOST_DEPTH) -> set[Path]:
    """The paths of the tree's nodes."""
    pool: list[tuple[float, Path]] = []
    beam: list[tuple[float, Path]] = [(0.0, (ROOT,))]
    for _ in range(most_depth):
        level = [
            (score + math.log(share), (*path, token))
            for score, path in beam
            for token, share in zip(*(each.tolist() for each in said_after(path, peak)), strict=True)
        ]
        pool += level
        beam = sorted(level, reverse=True)[:BEAM]
    return {path for _, path in sorted(pool, reverse=True)[:num_nodes]}


@dataclass(eq=False)
class NotingState(DraftModelState):
    """Notes the rows that are to be kept."""

    kept: list[int] = field(default_factory=list)

    def keep(self, rows: NDArray[np.int32]) -> None:
        self.kept += rows.tolist()


def new_state(temperature: float = 0.0, max_depth: int | None = None) -> NotingState:
    request = Request(
        id="one",
        prompt=np.array([3, ROOT], np.int32),
        sampling=SamplingParams(max_tokens=20, temperature=temperature, seed=3),
        speculation=SpeculationParams(method="eagle", max_depth=max_depth),
    )
    layer = LayerSpec(index=0, num_query_heads=1, num_kv_heads=1, key_dim=1, value_dim=1, scaling=1.0)
    return NotingState(request, KvStore([layer], 1, torch.float32, torch.device("cpu")), 50)


def drafter_of(temperature: float = 0.0, max_depth: int | None = None) -> ModelDrafter:
    return drafter_over(new_state(temperature, max_depth))


def drafter_over(state: NotingState) -> ModelDrafter:
    return ModelDrafter(state.request, state, eagle_rules(state.request.speculation))


def grow(drafter: ModelDrafter, budget: DraftBudget, peak: float, most_rows: int = 70) -> tuple[DraftTree, list[int]]:
    """The tree, and how many rows each forward had."""
    drafter.begin(budget, most_rows, 100)
    paths: list[Path] = []
    asked_paths: list[Path] = [(ROOT,)]
    sizes = []
    while True:
        said = [said_after(path, peak) for path in asked_paths]
        asked = drafter.grow(TopTokens(np.stack([ids for ids, _ in said]), np.stack([shares for _, shares in said])))
        if asked is None:
            break
        num_written = len(paths)
        sizes.append(len(asked.tokens))
        for token, parent in zip(asked.tokens.tolist(), asked.parents[num_written:].tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else (ROOT,)), token))
        asked_paths = paths[num_written:]
    tree = drafter.propose(budget)
    tree.check_integrity()
    return tree, sizes


def paths_of(tree: DraftTree) -> set[Path]:
    paths: list[Path] = [(int(tree.tokens[0]),)]
    for token, parent in zip(tree.tokens[1:].tolist(), tree.parents[1:].tolist(), strict=True):
        paths.append((*paths[parent], token))
    return set(paths[1:])


@pytest.mark.parametrize("peak", [0.1, 1.0, 3.0, 6.0])
def test_the_tree_is_that_of_the_rule(peak: float) -> None:
    tree, sizes = grow(drafter_of(), DraftBudget(NUM_NODES), peak)
    assert paths_of(tree) == by_the_rule(peak)
    assert tree.num_drafted == NUM_NODES
    assert all(size <= BEAM for size in sizes)


def test_flat_heads_make_shallow_trees_and_sure_ones_deep_ones() -> None:
    depths = [grow(drafter_of(), DraftBudget(NUM_NODES), peak)[0].depths().max() for peak in (0.1, 6.0)]
    assert depths[0] <= 2
    assert depths[1] == MOST_DEPTH


@pytest.mark.parametrize("max_nodes", [0, 1, 7, 30])
@pytest.mark.parametrize("max_depth", [0, 1, 3])
def test_budget_and_depth_are_kept(max_nodes: int, max_depth: int) -> None:
    tree, sizes = grow(drafter_of(max_depth=max_depth), DraftBudget(max_nodes), 3.0)
    assert paths_of(tree) == by_the_rule(3.0, max_nodes, max_depth)
    assert len(sizes) < max(max_depth, 1)


def test_rows_never_exceed_the_room_there_is() -> None:
    tree, sizes = grow(drafter_of(), DraftBudget(NUM_NODES), 3.0, most_rows=23)
    assert sizes[:3] == [10, 10, 3]
    assert sum(sizes) == 23
    assert tree.num_drafted == NUM_NODES


def test_a_request_that_samples_ranks_by_the_noise_of_its_own_draws() -> None:
    trees = [paths_of(grow(drafter_of(temperature), DraftBudget(20), 1.0)[0]) for temperature in (0.0, 1.0, 1.0)]
    assert trees[1] == trees[2]
    assert trees[0] != trees[1]


def test_rows_of_the_accepted_path_are_told_and_a_tree_is_proposed_once() -> None:
    state = new_state()
    drafter = drafter_over(state)
    tree, _ = grow(drafter, DraftBudget(NUM_NODES), 6.0)
    children = np.full(len(tree), -1, np.int32)
    for node in range(len(tree) - 1, 0, -1):
        children[tree.parents[node]] = tree.tokens[node]
    drafter.observe(tree, walk(tree, children), None)
    assert len(state.kept) == MOST_DEPTH - 1
    assert state.kept == sorted(set(state.kept))
    assert drafter.propose(DraftBudget(NUM_NODES)).num_drafted == 0
