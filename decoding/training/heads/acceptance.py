"""Measures the acceptance length of a head's trees along replies that the target has already given, without an engine.

The target would draw the reply's tokens again, greedy or not, so a walk accepts the same tokens as serving would.
Knows nothing of time. Invariant: tau is emitted tokens, without the prefill's, over target forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.drafting.block.network import BlockHead
from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.block.block_acceptance import accepted_in_blocks
from decoding.training.heads.options import TreeShape
from decoding.training.heads.rewards import branch_lengths
from decoding.training.heads.roll import read
from decoding.training.heads.target import OnlineTarget
from decoding.training.heads.texts.answers import Answer
from decoding.training.heads.trees import Trees, grow

CHAIN = TreeShape(top_k=1, num_nodes=8, num_levels=8)
ROWS_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Outcome:
    """Sums over replies."""

    num_steps: int = 0
    num_emitted: int = 0

    @property
    def tau(self) -> float:
        return self.num_emitted / max(1, self.num_steps)

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.num_steps + other.num_steps, self.num_emitted + other.num_emitted)


def by_temperature(
    head: EagleHead | BlockHead, target: OnlineTarget, answers: Sequence[Answer], shape: TreeShape
) -> dict[str, float]:
    """The acceptance lengths of one shape of trees, by the temperature of the answers."""
    found = {}
    for temperature in sorted({answer.temperature for answer in answers}):
        some = [answer for answer in answers if answer.temperature == temperature]
        found[f"{temperature:g}"] = round(acceptance(head, target, some, shape).tau, 3)
    return found


def acceptance(
    head: EagleHead | BlockHead, target: OnlineTarget, answers: Sequence[Answer], shape: TreeShape
) -> Outcome:
    """Draft along every reply with trees of one shape."""
    total = Outcome()
    for answer in answers:
        if isinstance(head, BlockHead):
            lengths = accepted_in_blocks(head, target, answer, shape)
        else:
            lengths = accepted_lengths(head, target, answer, shape)
        total += walk(lengths)
    return total


@torch.no_grad()
def accepted_lengths(head: EagleHead, target: OnlineTarget, answer: Answer, shape: TreeShape) -> NDArray[np.int64]:
    """int64 [t]: the accepted length of the tree after each token of the reply except the last."""
    device, tokens = head.fc.weight.device, answer.tokens.astype(np.int64)
    with target.reading([answer.tokens]) as (reading,):
        next_ids_1T = torch.from_numpy(np.append(tokens[1:], 0))[None].to(device)
        context = read(head, reading.features_TF[None].to(device), next_ids_1T)
    lengths = []
    rows = np.arange(answer.num_prompt - 1, len(tokens) - 2)
    for first in range(0, len(rows), ROWS_AT_ONCE):
        some = rows[first : first + ROWS_AT_ONCE]
        trees = grow(head, context, torch.from_numpy(some).to(device), shape)
        lengths.append(_matched(trees, tokens, some))
    return np.concatenate(lengths) if lengths else np.empty(0, np.int64)


def walk(lengths: NDArray[np.int64]) -> Outcome:
    """Walk along a reply: each step takes the accepted tokens, then one of the target's own."""
    place = num_steps = 0
    while place < len(lengths):
        place += int(lengths[place]) + 1
        num_steps += 1
    return Outcome(num_steps, len(lengths))


def _matched(trees: Trees, tokens: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [P]: the depth down to which each row's tree holds the tokens that follow its root."""
    depths_PL = branch_lengths(trees, np.ones(trees.tokens_PL.shape)).astype(np.int64)
    places_PL = rows[:, None] + 1 + depths_PL
    is_text_PL = places_PL < len(tokens)
    is_text_PL &= trees.tokens_PL == tokens[np.minimum(places_PL, len(tokens) - 1)]
    matched: NDArray[np.int64] = branch_lengths(trees, is_text_PL.astype(np.float64)).max(1).astype(np.int64)
    return matched
