"""GTO on tiny heads: trees are grown and scored as decoding does, and gradients flow through the ratio alone."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from decoding.drafting.eagle.network import Attend, EagleHead
from decoding.training.heads.acceptance import acceptance, accepted_lengths, walk
from decoding.training.heads.fresh_head import new_head
from decoding.training.heads.gto import GtoLoss, Policy, branch_log_likelihood, gto_loss
from decoding.training.heads.options import GtoOptions, TreeShape
from decoding.training.heads.rewards import tree_rewards
from decoding.training.heads.roll import log_probabilities, read, roll, start
from decoding.training.heads.target import OnlineTarget, Reading
from decoding.training.heads.trees import Trees, grow, merge
from tests.models import tiny
from tests.training.heads.lessons import TREE, VOCAB, answers, head_of, target_of

ANSWER = answers()[4]
WIDE = TreeShape(top_k=20, num_nodes=80, num_levels=2)  # a random head finds something in so many nodes
OPTIONS = GtoOptions(tree=WIDE, group_size=4, num_groups=2)
GROUPS = np.array([[5, 6, 7, 8], [14, 15, 16, 17]])


def policy_of(head: EagleHead, reading: Reading) -> Policy:
    ids = torch.from_numpy(np.append(ANSWER.tokens[1:], 0).astype(np.int64))[None]
    return Policy(head, read(head, reading.features_TF[None], ids))


def loss_of(head: EagleHead, reference: EagleHead, target: OnlineTarget, options: GtoOptions = OPTIONS) -> GtoLoss:
    with target.reading([ANSWER.tokens]) as (reading,):
        return gto_loss(policy_of(head, reading), policy_of(reference, reading), target, reading, GROUPS, options)


def moved(head: EagleHead, size: float = 0.05) -> EagleHead:
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.requires_grad:
                weight += size * torch.randn(weight.shape, generator=random)
    return head


def paths_of(trees: Trees, row: int) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(trees.tokens_PL[row].tolist(), trees.parents_PL[row].tolist(), strict=True):
        paths.append(((*paths[parent],) if parent >= 0 else ()) + (token,))
    return paths


def test_a_tree_is_what_a_search_without_batches_finds() -> None:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head = head_of(target)
    with target.reading([ANSWER.tokens]) as (reading,), torch.no_grad():
        context = policy_of(head, reading).context
        found = grow(head, context, torch.tensor([4, 12]), TREE)
        for place, row in enumerate((4, 12)):
            level, pool = [((), 0.0)], []
            for _ in range(TREE.num_levels):
                candidates = []
                for path, score in level:
                    way = start(context, torch.tensor([[row]]))
                    for token in path:
                        way = roll(head, context, way, torch.tensor([[token]]))
                    best = log_probabilities(head, way.hidden_BRE)[0, 0].topk(TREE.top_k)
                    pairs = zip(best.values.tolist(), head.target_ids[best.indices].tolist(), strict=True)
                    candidates += [((*path, token), score + log_q) for log_q, token in pairs]
                pool += candidates
                level = sorted(candidates, key=lambda each: -each[1])[: TREE.top_k]
            expected = {path for path, _ in sorted(pool, key=lambda each: -each[1])[: TREE.num_nodes]}
            assert set(paths_of(found, place)) == expected
            assert len(paths_of(found, place)) == TREE.num_nodes


def test_the_targets_chances_in_a_tree_are_those_of_each_path_run_alone() -> None:
    model = tiny("llama", vocab_size=VOCAB)
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head = head_of(target)
    with target.reading([ANSWER.tokens]) as (reading,):
        trees = grow(head, policy_of(head, reading).context, torch.tensor([4, 15]), WIDE)
        forests = [merge((trees,), row) for row in range(2)]
        scored = target.score(reading, [4, 15], forests)
        again = target.score(reading, [15], forests[1:])
    assert (scored[1].probabilities == again[0].probabilities).all()
    for place, row in enumerate((4, 15)):
        for node, path in enumerate(paths_of(trees, place)):
            ids = torch.tensor([[*ANSWER.tokens[: row + 2].tolist(), *path[:-1]]])
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, -1]
            assert scored[place].probabilities[node] == pytest.approx(float(logits.softmax(-1)[path[-1]]), abs=1e-4)
            assert scored[place].is_likeliest[node] == (int(logits.argmax()) == path[-1])
    assert any(each.is_likeliest.any() for each in scored)
    assert not all(each.is_likeliest.all() for each in scored)


def test_at_the_first_step_every_advantage_is_zero_and_so_is_the_gradient() -> None:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head = head_of(target)
    found = loss_of(head, new_head(target, head.target_ids, 0), target)
    found.loss.backward()
    assert float(found.loss.detach()) == 0
    assert found.reward == found.reference_reward > 0
    assert all(weight.grad is None or not weight.grad.any() for weight in head.parameters())


def test_gradients_are_those_of_the_likelihood_ratio_with_all_else_held_still() -> None:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head = moved(head_of(target))
    reference = new_head(target, head.target_ids, 0)
    options = replace(OPTIONS, clip=10.0)  # nothing is cut off
    found = loss_of(head, reference, target, options)
    found.loss.backward()
    assert found.reward != found.reference_reward
    assert found.accepted > 0
    assert head.fc.weight.grad is not None
    assert head.fc.weight.grad.any()
    assert head.embed_tokens.weight.grad is None
    assert all(weight.grad is None for weight in reference.parameters())
    step = 1e-4 * head.fc.weight.grad / head.fc.weight.grad.norm()
    with torch.no_grad():  # so small a step leaves the trees as they are, hence the advantages
        head.fc.weight -= step
        lower = loss_of(head, reference, target, options)
        head.fc.weight += 2 * step
        higher = loss_of(head, reference, target, options)
        slope = float(higher.loss - lower.loss) / 2e-4
    assert [lower.reward, higher.reward] == pytest.approx([found.reward] * 2, rel=1e-3)
    assert slope == pytest.approx(float(head.fc.weight.grad.norm()), rel=0.05)


def test_a_branchs_log_likelihood_is_the_sum_along_it_and_empty_ones_have_none() -> None:
    target = target_of(tiny("llama", vocab_size=VOCAB))
    head = head_of(target)
    tokens = head.target_ids[torch.tensor([[3, 8], [5, 1], [0, 0]])]
    with target.reading([ANSWER.tokens]) as (reading,), torch.no_grad():
        policy = policy_of(head, reading)
        found = branch_log_likelihood(policy, torch.tensor([4, 9, 9]), tokens, torch.tensor([2, 1, 0]))
        way = start(policy.context, torch.tensor([[4]]))
        first = log_probabilities(head, way.hidden_BRE)[0, 0, 3]
        way = roll(head, policy.context, way, tokens[None, :1, 0])
        both = first + log_probabilities(head, way.hidden_BRE)[0, 0, 8]
        other = log_probabilities(head, start(policy.context, torch.tensor([[9]])).hidden_BRE)[0, 0, 5]
    torch.testing.assert_close(found, torch.stack((both, other, torch.tensor(0.0))))


class TargetAsHead(nn.Module):
    """The target itself in a head's place, for a target without attention, whose last token tells all."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model, self.fc = model, nn.Linear(1, 1)
        self.target_ids = torch.arange(VOCAB)

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def forward(self, ids: Tensor, _hidden: Tensor, _positions: Tensor, attend: Attend) -> Tensor:
        attend(*(torch.zeros(len(ids), 1, ids.shape[1], 2) for _ in range(3)))
        out = self.model.model(input_ids=ids.reshape(-1, 1), use_cache=False).last_hidden_state
        return out.reshape(*ids.shape, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.lm_head(hidden)
        return logits


def without_attention(sharpness: float) -> PreTrainedModel:
    model = tiny("llama", vocab_size=VOCAB)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
        model.lm_head.weight *= sharpness
    return model


def test_a_head_that_is_the_target_reaches_the_maximal_reward() -> None:
    target = target_of(without_attention(3.0))
    others = [head_of(target), *(new_head(target, torch.arange(40), seed) for seed in (1, 2))]
    twin: EagleHead = TargetAsHead(without_attention(3.0))  # type: ignore[assignment]
    rows, shape = [4, 9, 15], TreeShape(top_k=10, num_nodes=20, num_levels=3)
    with target.reading([ANSWER.tokens]) as (reading,):
        found = [grow(each, policy_of(each, reading).context, torch.tensor(rows), shape) for each in (twin, *others)]
        forests = [merge(tuple(found), place) for place in range(len(rows))]
        scored = target.score(reading, rows, forests)
        after = reading.logits_TV[[row + 1 for row in rows]].double().softmax(-1)
    for reward in ("expected", "greedy"):
        values = []
        for place, trees in enumerate(found):
            each = [one.probabilities if reward == "expected" else one.is_likeliest.astype(float) for one in scored]
            chances = np.stack([one[forest.places[place]] for one, forest in zip(each, forests, strict=True)])
            values.append(tree_rewards(trees, chances, "max", 1.0))
        assert all((values[0] >= other).all() for other in values[1:])
        assert (values[0] > values[1]).any()
        assert reward == "expected" or values[0].tolist() == [shape.num_levels] * len(rows)
    with torch.no_grad():
        next_after = without_attention(3.0)(torch.arange(VOCAB)[:, None]).logits[:, 0].double().softmax(-1)
    for place in range(len(rows)):  # of all trees of as many nodes none covers more of the target's probability
        chances = scored[place].probabilities[forests[place].places[0]]
        covered = sum(math.prod(chances[list(line)]) for line in lines_of(found[0], place))
        all_paths = [
            float(after[place, path[0]]) * math.prod(float(next_after[a, b]) for a, b in pairwise(path))
            for depth in (1, 2, 3)
            for path in product(range(VOCAB), repeat=depth)
            if depth < 3 or float(after[place, path[0]] * next_after[path[0], path[1]]) > 1e-3
        ]
        assert covered == pytest.approx(sum(sorted(all_paths, reverse=True)[: shape.num_nodes]), rel=1e-4)


def lines_of(trees: Trees, row: int) -> list[list[int]]:
    """Of each node, the nodes from the root's child down to it."""
    lines: list[list[int]] = []
    for node, parent in enumerate(trees.parents_PL[row].tolist()):
        lines.append([*(lines[parent] if parent >= 0 else []), node])
    return lines


def test_acceptance_along_a_reply_is_what_a_walk_by_hand_accepts() -> None:
    target = target_of(without_attention(3.0))
    head = head_of(target)
    lengths = accepted_lengths(head, target, ANSWER, TREE)
    assert len(lengths) == len(ANSWER.reply) - 1
    with target.reading([ANSWER.tokens]) as (reading,):
        rows = np.arange(ANSWER.num_prompt - 1, len(ANSWER.tokens) - 2)
        trees = grow(head, policy_of(head, reading).context, torch.from_numpy(rows), TREE)
    for place, row in enumerate(rows.tolist()):
        text, paths = ANSWER.tokens[row + 2 :].tolist(), set(paths_of(trees, place))
        expected = max(depth for depth in range(TREE.num_levels + 1) if depth == 0 or tuple(text[:depth]) in paths)
        assert lengths[place] == expected
    assert lengths.any()
    assert (walk(np.array([2, 0, 0, 0, 1, 0])).num_steps, walk(np.array([2, 0, 0, 0, 1, 0])).num_emitted) == (3, 6)
    assert acceptance(head, target, [ANSWER], TREE).tau == len(lengths) / walk(lengths).num_steps
