"""GTO's loss (section 3.2): trees at groups of adjacent rows, and a clipped likelihood ratio on accepted branches.

Combines trees, rewards and the target's probabilities, which other files compute. Invariant: rewards and advantages
have no gradient; gradients flow only through the likelihood ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.options import GtoOptions
from decoding.training.heads.rewards import FloatArray, advantages, longest_accepted, tree_rewards
from decoding.training.heads.roll import Context, log_probabilities, roll, start
from decoding.training.heads.target import Chances, OnlineTarget, Reading
from decoding.training.heads.trees import Forest, Trees, grow, merge

SCORED_AT_ONCE = 64  # rows with their trees
# Shape suffixes: G groups, M rows of a group, P = G * M rows, L nodes of a tree, D tokens of accepted branches.


@dataclass(frozen=True, slots=True)
class GtoLoss:
    """loss; and, without gradient, the mean rewards of the head's and the reference's trees and the mean accepted
    length."""

    loss: Tensor
    reward: float
    reference_reward: float
    accepted: float


@dataclass(frozen=True, slots=True)
class Policy:
    """A head and its first step over one text."""

    head: EagleHead
    context: Context


def draw_groups(random: np.random.Generator, first: int, end: int, options: GtoOptions) -> NDArray[np.int64]:
    """int64 [G, M]: `num_groups` groups of adjacent rows in first..end-1, or as many as fit. They do not overlap
    (eq. 6-7), and every such choice is equally likely."""
    size = options.group_size
    count = min(options.num_groups, (end - first) // size)
    if count <= 0:
        return np.empty((0, size), np.int64)
    slack = end - first - count * size
    starts = np.sort(random.choice(slack + count, count, replace=False)) + np.arange(count) * (size - 1)
    groups: NDArray[np.int64] = first + starts[:, None] + np.arange(size)
    return groups


def gto_loss(
    policy: Policy,
    reference: Policy,
    target: OnlineTarget,
    reading: Reading,
    groups_GM: NDArray[np.int64],
    options: GtoOptions,
) -> GtoLoss:
    """Eq. 12, averaged over the groups of one text. The root of row i's trees is token i+1."""
    device = policy.context.hidden_BTE.device
    rows_P = torch.from_numpy(groups_GM.reshape(-1)).to(device)
    trees = tuple(grow(each.head, each.context.detach(), rows_P, options.tree) for each in (policy, reference))
    scored = _score_groups(target, reading, groups_GM, trees)
    rewards, references = (
        tree_rewards(each, _chances_of(scored, place, options), options.aggregate, options.temperature)
        for place, each in enumerate(trees)
    )
    likeliest_PL = np.stack([chances.is_likeliest[forest.places[0]] for forest, chances in scored])
    accepted = longest_accepted(trees[0], likeliest_PL)
    lengths_P = torch.from_numpy(accepted.lengths_P).to(device)
    tokens_PD = torch.from_numpy(accepted.tokens_PD).to(device)
    log_likelihood_P = branch_log_likelihood(policy, rows_P, tokens_PD, lengths_P)
    with torch.no_grad():
        log_reference_P = branch_log_likelihood(reference, rows_P, tokens_PD, lengths_P)
    ratios_P = ((log_likelihood_P - log_reference_P) / lengths_P.clamp(min=1)).exp()
    advantages_GM = advantages(rewards.reshape(groups_GM.shape), references.reshape(groups_GM.shape), options.floor)
    advantages_P = torch.from_numpy(advantages_GM.reshape(-1).astype(np.float32)).to(device)
    return GtoLoss(
        clipped_loss(ratios_P, advantages_P, options.clip),
        float(rewards.mean()),
        float(references.mean()),
        float(accepted.lengths_P.mean()),
    )


def clipped_loss(ratios_P: Tensor, advantages_P: Tensor, clip: float) -> Tensor:
    """Eq. 12: -mean min(s A, clip(s, 1 - epsilon, 1 + epsilon) A)."""
    clipped_P = ratios_P.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratios_P * advantages_P, clipped_P * advantages_P).mean()


def branch_log_likelihood(policy: Policy, rows_P: Tensor, tokens_PD: Tensor, lengths_P: Tensor) -> Tensor:
    """float32 [P]: the log likelihood of the first `lengths_P` tokens of each row's branch; 0 for an empty branch."""
    head, context = policy.head, policy.context
    draft_ids_V = head.t2d.cumsum(0) - 1  # ranks: draft ids ascend with the target's
    total_P = torch.zeros(len(rows_P), device=rows_P.device)
    way = start(context, rows_P[None])
    for depth in range(tokens_PD.shape[1]):
        log_q = log_probabilities(head, way.hidden_BRE)[0]
        is_in_P = depth < lengths_P
        said = torch.where(is_in_P, draft_ids_V[tokens_PD[:, depth]], 0)
        total_P = total_P + torch.where(is_in_P, log_q.gather(1, said[:, None])[:, 0], 0.0)
        if depth + 1 < tokens_PD.shape[1]:
            way = roll(head, context, way, tokens_PD[None, :, depth])
    return total_P


def _score_groups(
    target: OnlineTarget, reading: Reading, groups_GM: NDArray[np.int64], trees: tuple[Trees, ...]
) -> list[tuple[Forest, Chances]]:
    """Each row's forest with the target's probabilities, in packed forwards of many rows."""
    rows, scored = groups_GM.reshape(-1).tolist(), list[tuple[Forest, Chances]]()
    for first in range(0, len(rows), SCORED_AT_ONCE):
        some = rows[first : first + SCORED_AT_ONCE]
        forests = [merge(trees, first + place) for place in range(len(some))]
        scored += zip(forests, target.score(reading, some, forests), strict=True)
    return scored


def _chances_of(scored: list[tuple[Forest, Chances]], place: int, options: GtoOptions) -> FloatArray:
    """float64 [P, L]: each node's acceptance probability, which the reward multiplies along branches. place: of the
    head whose trees they are."""
    if options.reward == "greedy":
        return np.stack([chances.is_likeliest[forest.places[place]].astype(np.float64) for forest, chances in scored])
    return np.stack([chances.probabilities[forest.places[place]] for forest, chances in scored])
