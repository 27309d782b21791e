"""Owns the order in which answers are learned, and the target's distributions to learn.

Invariant: the answers of a micro-batch depend only on (seed, its number), so a resumed run sees the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.drafting.block.network import BlockHead
from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.answers import Answer
from decoding.training.heads.target import Reading
from decoding.training.heads.ttt import Lesson


def choose_answers(answers: Sequence[Answer], number: int, count: int, seed: int) -> list[Answer]:
    """The answers of micro-batch `number`, counted from 0. Each epoch takes all answers in a new random order."""
    chosen = []
    for place in range(number * count, (number + 1) * count):
        epoch, rest = divmod(place, len(answers))
        order = np.random.default_rng((seed, epoch)).permutation(len(answers))
        chosen.append(answers[order[rest]])
    return chosen


def lesson_of(answers: Sequence[Answer], readings: Sequence[Reading], head: EagleHead | BlockHead) -> Lesson:
    """The answers as one padded batch with the target's features and distributions, on the head's device."""
    parts = [_rows_of(*pair, head) for pair in zip(answers, readings, strict=True)]
    longest = max(len(answer.tokens) for answer in answers)
    return Lesson(*(torch.stack([_padded(each, longest) for each in rows]) for rows in zip(*parts, strict=True)))


def _rows_of(
    answer: Answer, reading: Reading, head: EagleHead | BlockHead
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    device = head.fc.weight.device
    logits_TV = reading.logits_TV.to(device)
    rows_T = torch.arange(len(answer.tokens), device=device)
    is_learned_T = (rows_T >= answer.num_prompt - 1) & (rows_T < len(answer.tokens) - 1)
    return (
        torch.from_numpy(answer.tokens.astype(np.int64)).to(device),
        reading.features_TF.to(device),
        logits_TV[:, head.target_ids].softmax(-1),
        is_learned_T,
        head.t2d[logits_TV.argmax(-1)],
    )


def _padded(rows: Tensor, length: int) -> Tensor:
    padded = rows.new_zeros((length, *rows.shape[1:]))
    padded[: len(rows)] = rows
    return padded
