"""GTO's rewards, advantages and clipped loss against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from decoding.training.heads.gto import clipped_loss, draw_groups
from decoding.training.heads.options import GtoOptions
from decoding.training.heads.rewards import advantages, branch_lengths, is_leaf, longest_accepted, tree_rewards
from decoding.training.heads.trees import Trees, merge

# Two children of the root, the first with two of its own, of which the second has one: leaves 1, 2 and 4.
TREES = Trees(np.array([[5, 6, 7, 8, 9]]), np.array([[-1, -1, 0, 0, 3]]))
CHANCES = np.array([[0.6, 0.3, 0.5, 0.25, 0.4]])


def test_a_branchs_length_sums_the_chances_of_its_beginnings() -> None:
    expected = [[0.6, 0.3, 0.6 + 0.3, 0.6 + 0.15, 0.6 + 0.15 + 0.06]]
    np.testing.assert_allclose(branch_lengths(TREES, CHANCES), expected)
    assert is_leaf(TREES).tolist() == [[False, True, True, False, True]]


def test_a_reward_is_the_smooth_maximum_over_branches_or_their_longest_or_mean() -> None:
    lengths = [0.3, 0.9, 0.81]
    for eta in (1.0, 3.0):
        smooth = math.log(sum(math.exp(eta * each) for each in lengths)) / eta
        assert tree_rewards(TREES, CHANCES, "lse", eta)[0] == pytest.approx(smooth)
    assert tree_rewards(TREES, CHANCES, "max", 1.0)[0] == pytest.approx(0.9)
    assert tree_rewards(TREES, CHANCES, "mean", 1.0)[0] == pytest.approx(sum(lengths) / 3)


def test_the_greedy_form_counts_matching_tokens_and_the_longest_branch_is_read_off() -> None:
    likeliest = np.array([[True, False, False, True, True]])
    assert tree_rewards(TREES, likeliest.astype(float), "max", 1.0)[0] == 3
    accepted = longest_accepted(TREES, likeliest)
    assert (accepted.tokens_PD.tolist(), accepted.lengths_P.tolist()) == ([[5, 8, 9]], [3])
    broken = np.array([[True, False, False, False, True]])  # the last matches, its parent does not
    assert longest_accepted(TREES, broken).tokens_PD.tolist() == [[5]]
    none = longest_accepted(TREES, np.zeros((1, 5), np.bool_))
    assert (none.tokens_PD.shape, none.lengths_P.tolist()) == ((1, 0), [0])


def test_advantages_are_debiased_and_standardised_within_a_group() -> None:
    found = advantages(np.array([[2.0, 3.0, 5.0], [1.0, 1.0, 1.0]]), np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]), 0.5)
    spread = math.sqrt(((1 - 7 / 3) ** 2 + (2 - 7 / 3) ** 2 + (4 - 7 / 3) ** 2) / 3)
    np.testing.assert_allclose(found[0], [(each - 7 / 3) / (spread + 0.5) for each in (1, 2, 4)])
    assert found[1].tolist() == [0, 0, 0]
    assert advantages(np.array([[4.0]]), np.array([[1.0]]), 1e-6).tolist() == [[0.0]]  # m = 1 learns nothing


def test_the_clipped_loss_is_worked_out_by_hand_and_stops_pushing_what_has_moved_far_enough() -> None:
    ratios = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.1], requires_grad=True)
    gains = torch.tensor([1.0, 1.0, -1.0, -1.0, 2.0])
    loss = clipped_loss(ratios, gains, 0.2)
    assert float(loss.detach()) == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8 + 2.2) / 5)
    loss.backward()
    assert ratios.grad is not None
    assert (ratios.grad * -5).tolist() == [0.0, 1.0, -1.0, 0.0, 2.0]


def test_groups_are_adjacent_rows_that_do_not_overlap_and_reach_every_place() -> None:
    options, seen = GtoOptions(group_size=4, num_groups=3), set()
    for seed in range(200):
        groups = draw_groups(np.random.default_rng(seed), 10, 26, options)
        assert groups.shape == (3, 4)
        assert (np.diff(groups, axis=1) == 1).all()
        assert len(np.unique(groups)) == 12
        seen |= set(groups.ravel().tolist())
    assert seen == set(range(10, 26))
    assert draw_groups(np.random.default_rng(0), 10, 19, options).shape == (2, 4)
    assert draw_groups(np.random.default_rng(0), 10, 13, options).shape == (0, 4)


def test_what_trees_have_in_common_is_in_their_forest_once() -> None:
    other = Trees(np.array([[6, 5, 8, 1]]), np.array([[-1, -1, 1, 2]]))
    forest = merge((TREES, other), 0)
    assert forest.tokens.tolist() == [5, 6, 7, 8, 9, 1]
    assert forest.parents.tolist() == [-1, -1, 0, 0, 3, 3]
    assert [places.tolist() for places in forest.places] == [[0, 1, 2, 3, 4], [1, 0, 3, 5]]
    assert forest.inner.tolist() == [0, 3]
