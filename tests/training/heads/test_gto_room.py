"""How much a better order of a head's candidates would bring, on heads whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.fresh_head import new_head
from decoding.training.heads.gto_room import Ordered, _differs, _is_beginning, _is_pruned, figures, main
from decoding.training.heads.options import GtoOptions, TreeShape
from decoding.training.heads.rewards import Accepted, longest_accepted
from decoding.training.heads.trees import Trees
from tests.training.heads.lessons import answers, head_of, target_of
from tests.training.heads.test_gto import TargetAsHead, without_attention

# Two children of the root, the first with two of its own, of which the second has one.
TREES = Trees(np.array([[5, 6, 7, 8, 9]]), np.array([[-1, -1, 0, 0, 3]]))
OPTIONS = GtoOptions(tree=TreeShape(top_k=6, num_nodes=12, num_levels=3), group_size=4, num_groups=2)
ORDERS = ("present order", "the best 60 of the candidates")


def test_expected_tokens_are_the_sum_of_all_paths_chances() -> None:
    chances = np.array([[0.6, 0.3, 0.5, 0.25, 0.4]])
    accepted = longest_accepted(TREES, chances > 0.5)
    assert Ordered(TREES, chances, accepted).expected_P[0] == pytest.approx(0.6 + 0.3 + 0.3 + 0.15 + 0.06)


def test_greedy_paths_are_found_in_trees_and_accepted_branches_on_them() -> None:
    assert _is_pruned(TREES, np.array([[5, 8, 9]])).tolist() == [0]
    assert _is_pruned(TREES, np.array([[5, 8, 7]])).tolist() == [1]
    assert _is_pruned(TREES, np.array([[6, 8, 9]])).tolist() == [1]
    greedy = np.array([[5, 8, 9], [5, 8, 9], [5, 8, 9]])
    accepted = Accepted(np.array([[5, 8], [5, 7], [0, 0]]), np.array([2, 2, 0]))
    assert _is_beginning(accepted, greedy).tolist() == [1, 0, 1]
    other = Accepted(np.array([[5, 8, 9], [5, 7, 0], [5, 0, 0]]), np.array([3, 2, 1]))
    assert _differs(accepted, other).tolist() == [1, 0, 1]
    assert _differs(other, accepted).tolist() == [1, 0, 1]


def test_a_head_that_is_the_target_has_no_room_and_another_has_some() -> None:
    target = target_of(without_attention(3.0))
    twin: EagleHead = TargetAsHead(without_attention(3.0))  # type: ignore[assignment]
    head = head_of(target)
    perfect = figures([twin], target, answers()[2:4], OPTIONS)
    for kind in ("expected tokens", "greedy tokens"):
        present, oracle = (perfect[f"{kind}, {order}"] for order in ORDERS)
        assert present == pytest.approx(oracle, abs=1e-3)
    assert perfect["accepted branch is the greedy path's beginning"] == 1
    other = figures([head, new_head(target, head.target_ids, 7)], target, answers()[2:4], OPTIONS)
    present, oracle = (other[f"expected tokens, {order}"] for order in ORDERS)
    assert 0 < present < oracle < perfect["expected tokens, present order"]
    assert other["greedy tokens, present order"] <= other["greedy tokens, the best 60 of the candidates"]
    assert 0 <= other["accepted branch differs from the reference's"] <= 1
    assert other["reward's deviation in a group"] > 0
    same = figures([head, head], target, answers()[2:4], OPTIONS)
    assert same["reward above the reference's"] == same["accepted branch differs from the reference's"] == 0


def test_the_command_prints_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = np.arange(20, 60, dtype=np.int32)
    named = {"tokens": tokens, "lengths": [len(tokens)], "prompts": [8], "temperatures": [0.0]}
    np.savez(tmp_path / "held-out-00000.npz", **named)
    asked = ["--head", "gosling", "--data", str(tmp_path), "--groups", "1", "--group-size", "4", "--threads", "1"]
    assert main(asked) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["expected tokens, present order"] <= told["expected tokens, the best 60 of the candidates"] + 1e-6
