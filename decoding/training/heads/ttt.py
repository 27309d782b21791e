"""EAGLE-3's loss with training-time test: from every row the head is rolled seven steps on its own features.

Knows nothing of optimizers or data. Invariant: step i of row t learns the target's distribution after token t+1+i.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.options import TTT_DECAY, TTT_STEPS
from decoding.training.heads.roll import Context, Way, log_probabilities, roll

# Shape suffixes: B sequences, T their tokens, F three target widths, W draft vocabulary, I steps.


@dataclass(frozen=True, slots=True)
class Lesson:
    """A batch of sequences, padded at their ends, and the target's distributions.

    tokens_BT: int64. features_BTF. wanted_BTW: the target's probabilities after each token, over the draft vocabulary
    only. is_learned_BT: bool, whether the next token belongs to the answer. is_known_BT: bool, whether in addition the
    target's most likely token is in the draft vocabulary.
    """

    tokens_BT: Tensor
    features_BTF: Tensor
    wanted_BTW: Tensor
    is_learned_BT: Tensor
    is_known_BT: Tensor


@dataclass(frozen=True, slots=True)
class TttLoss:
    """loss: the sum over steps of 0.8^i times each step's loss. losses_I, agreements_I: float32, for each step, without
    gradient; an agreement is the share of learned rows where the head's most likely token is the target's."""

    loss: Tensor
    losses_I: Tensor
    agreements_I: Tensor


def ttt_loss(head: EagleHead, context: Context, lesson: Lesson, num_steps: int = TTT_STEPS) -> TttLoss:
    """Cross-entropy with the target's distribution over the answers' rows. Rows whose most likely token is outside the
    draft vocabulary are counted but not learned, as in EAGLE's trainer."""
    num_batch, num_rows = lesson.tokens_BT.shape
    first = max(0, int(lesson.is_learned_BT.any(0).int().argmax()) - num_steps)  # prompts are not rolled
    rows_BR = torch.arange(first, num_rows, device=lesson.tokens_BT.device).expand(num_batch, -1)
    way = Way(rows_BR, context.hidden_BTE[:, first:])
    losses, agreements = [], []
    for step in range(num_steps):
        log_q = log_probabilities(head, way.hidden_BRE)
        wanted, learned, known = (
            _shifted(each, step + 1)[:, first:]
            for each in (lesson.wanted_BTW, lesson.is_learned_BT, lesson.is_known_BT)
        )
        known = learned & known
        count = learned.sum().clamp(min=1)
        losses.append(-((wanted * log_q).sum(-1) * known).sum() / count)
        agreements.append(((log_q.argmax(-1) == wanted.argmax(-1)) & known).sum() / count)
        if step + 1 < num_steps:
            way = roll(head, context, way, _shifted(lesson.tokens_BT, step + 2)[:, first:])
    losses_I = torch.stack(losses)
    weights_I = TTT_DECAY ** torch.arange(num_steps, device=losses_I.device)
    return TttLoss((weights_I * losses_I).sum(), losses_I.detach(), torch.stack(agreements).detach())


def next_ids(tokens_BT: Tensor) -> Tensor:
    """int64 [B, T]: the token after each, 0 after the last."""
    return _shifted(tokens_BT, 1)


def _shifted(rows_BT: Tensor, count: int) -> Tensor:
    """Row t + count at place t, zeros (False) at the end."""
    shifted = torch.zeros_like(rows_BT)
    if count < rows_BT.shape[1]:
        shifted[:, :-count] = rows_BT[:, count:]
    return shifted
