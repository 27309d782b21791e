"""The paper's first tree and how it is pruned."""

from __future__ import annotations

import numpy as np

from decoding.drafting.stand.static_tree import StaticTree
from decoding.training.first_tree import initial_tree, pruned


def test_the_first_tree_has_the_papers_size_depth_and_levels() -> None:
    tree = initial_tree()
    assert (len(tree), tree.depth()) == (625, 20)
    depths = np.zeros(len(tree), int)
    for slot in range(1, len(tree)):
        depths[slot] = depths[tree.parents[slot]] + 1
    assert np.bincount(depths)[:9].tolist() == [1, 8, 24, 64, 141, 170, 68, 39, 14]
    assert set(np.bincount(depths)[9:].tolist()) == {8}


def test_pruning_keeps_the_most_accepted_slots_and_every_prefix_is_a_tree() -> None:
    tree = initial_tree()
    random = np.random.default_rng(0)
    counts = random.geometric(0.02, len(tree)).tolist()
    kept = pruned(tree, counts, 80, {"by": "test"})
    assert len(kept) == 81
    for size in (2, 10, 50):  # the constructor checks that it is a tree
        StaticTree(made={}, parents=kept.parents[:size], ranks=kept.ranks[:size])
    assert sum(kept.counts[1:]) > 80 * np.mean(counts)


def test_with_worth_that_falls_along_paths_pruning_is_taking_the_best() -> None:
    tree = initial_tree()
    worth = [10**9]
    for slot in range(1, len(tree)):
        worth.append(worth[tree.parents[slot]] // (2 + tree.ranks[slot]))
    kept = pruned(tree, worth, 40, {})
    assert kept.counts[1:] == sorted(worth[1:], reverse=True)[:40]
