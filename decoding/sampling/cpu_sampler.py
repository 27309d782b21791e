"""The target's own token on the CPU: argmax(log p + g) over one row, compiled.

p is the row's distribution by the request's `law`, g is `noise`, absent at temperature 0.
Knows nothing of trees. `reference` says the same in tensors. Invariant: a token depends on row, law and position.
"""

from __future__ import annotations

import math

import numba as nb
import numpy as np
import torch
from numpy.typing import NDArray

from decoding.sampling.law import Law, nucleus
from decoding.sampling.logits_row import checked_highest, exp, first_of
from decoding.sampling.noise import MAX_NOISE, gumbel, gumbel_of_word, philox_words


class CpuSampler:
    """Of one sequence in one step. position: of the token that comes next, in prompt and reply."""

    def __init__(self, law: Law, position: int) -> None:
        self._law = law
        self._position = position

    def draw(self, logits_V: torch.Tensor, _node: int, /) -> int:
        token = int(draw_token(logits_V.numpy(), self._law, self._position))
        self._position += 1
        return token


@nb.njit(cache=True)
def draw_token(row: NDArray[np.float32], law: Law, position: int) -> int:
    """The token at `position`. Raises BrokenLogits."""
    best = checked_highest(row, position)
    if law.temperature == 0.0:
        return first_of(row, best)
    if law.top_k > 0 or law.top_p < 1.0:
        return _draw_among(row, best, nucleus(row, best, law), law, position)
    return _draw_from_all(row, best, law, position)


@nb.njit(cache=True)
def _draw_among(row: NDArray[np.float32], best: np.float32, kept: NDArray[np.int64], law: Law, position: int) -> int:
    """Noise for the kept tokens only, however large the vocabulary."""
    floor = math.log(law.min_p) if law.min_p > 0.0 else -np.inf
    winner, most = kept[0], -np.inf
    for token in kept:
        score = (np.float64(row[token]) - np.float64(best)) / law.temperature
        if score >= floor:
            score += gumbel(law.seed, position, token)
            if score > most:
                winner, most = token, score
    return winner


@nb.njit(cache=True)
def _draw_from_all(row: NDArray[np.float32], best: np.float32, law: Law, position: int) -> int:
    """Noise for the whole vocabulary, leaving out blocks of four in which no token can win."""
    floor = math.log(law.min_p) if law.min_p > 0.0 else -np.inf
    first = first_of(row, best)
    winner, most = first, gumbel(law.seed, position, first)
    for block in range((len(row) + 3) // 4):
        last = min(4 * block + 4, len(row))
        top = row[4 * block]
        for token in range(4 * block + 1, last):
            top = max(top, row[token])
        reach = (np.float64(top) - np.float64(best)) / law.temperature
        if reach < floor or reach + MAX_NOISE < most:
            continue
        words = philox_words(law.seed, position, block)
        for token in range(4 * block, last):
            word = words[token - 4 * block]
            score = (np.float64(row[token]) - np.float64(best)) / law.temperature
            # noise above d needs a uniform u with 1 - u < exp(-d), which is cheaper to ask than two logarithms
            shortfall = np.float32(min(score - most, 0.0))
            if score < floor or (1.0 - np.float64(word) * 2.0**-32) > np.float64(exp(shortfall)) * 1.0001 + 2.0**-32:
                continue
            score += gumbel_of_word(word)
            if score > most or (score == most and token < winner):
                winner, most = token, score
    return winner
