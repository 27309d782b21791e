"""Draws the target's own token on the CPU, argmax(log p + g) over one row, and such tokens along a tree; compiled.

p is the row's distribution under the request's `law`; g is `noise`, absent at temperature 0. `reference` computes the
same in tensor operations. Invariant: a token depends only on row, law and position.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.core.tree import DraftTree, IntArray, Verdict
from decoding.kernels.cpu.sampling.noise import MAX_NOISE, fill_words, gumbel, gumbel_of_word, noise_bound
from decoding.kernels.cpu.sampling.row import first_at_least, highest_key, key_of
from decoding.kernels.numba_kernel import kernel
from decoding.sampling.law import Law, checked_highest, nucleus
from decoding.sampling.verify import NO_NODE, child_of

CHUNK = 256  # tokens whose noise is drawn at once


class CpuSampler:
    """Draws for one sequence in one step. position: of the next token, counted from the prompt's first."""

    def __init__(self, law: Law, position: int) -> None:
        self._law = law
        self._position = position

    def draw(self, logits_V: torch.Tensor, _node: int, /) -> int:
        token = int(draw_token(logits_V.numpy(), self._law, self._position))
        self._position += 1
        return token


def draw_along(tree: DraftTree, logits_NV: torch.Tensor, law: Law, position: int) -> Verdict:
    """`verify` with a `CpuSampler`, in one compiled call. Raises BrokenLogits."""
    return Verdict(*_draw_along(tree.tokens, tree.parents, logits_NV.numpy(), law, position))


@kernel
def _draw_along(
    tokens: IntArray, parents: IntArray, logits_NV: NDArray[np.float32], law: Law, position: int
) -> tuple[IntArray, IntArray]:
    path, drawn = np.empty(len(tokens), np.int32), np.empty(len(tokens), np.int32)
    node, depth = 0, 0
    while node != NO_NODE:
        token = draw_token(logits_NV[node], law, position + depth)
        path[depth], drawn[depth] = node, token
        node = child_of(tokens, parents, node, token)
        depth += 1
    return path[:depth], drawn[:depth]


@kernel
def draw_token(row: NDArray[np.float32], law: Law, position: int) -> int:
    """The token at `position`. Raises BrokenLogits."""
    best = checked_highest(row, position)
    if law.temperature == 0.0:
        return first_at_least(row, best)
    if law.top_k > 0 or law.top_p < 1.0:
        return _draw_among(row, best, nucleus(row, best, law), law, position)
    return _draw_from_all(row, best, law, position)


@kernel(borrows=True)
def _draw_among(row: NDArray[np.float32], best: np.float32, kept: NDArray[np.int64], law: Law, position: int) -> int:
    """Draw among the kept tokens; noise is computed for them only."""
    floor = math.log(law.min_p) if law.min_p > 0.0 else -np.inf
    winner, most = kept[0], -np.inf
    for token in kept:
        score = (np.float64(row[token]) - np.float64(best)) / law.temperature
        if score >= floor:
            score += gumbel(law.seed, position, token)
            if score > most:
                winner, most = token, score
    return winner


@kernel
def _draw_from_all(row: NDArray[np.float32], best: np.float32, law: Law, position: int) -> int:
    """Draw among all tokens. Chunks in which no token can win are skipped; elsewhere a cheap bound of the noise rules
    out most tokens, so that its two logarithms are computed for few."""
    floor = math.log(law.min_p) if law.min_p > 0.0 else -np.inf
    winner = first_at_least(row, best)
    most = gumbel(law.seed, position, winner)
    per_temperature = np.float32(min(1.0 / law.temperature, 1e30))  # finite, so that the best's score stays 0
    words, bounds = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.float32)
    for start in range(0, len(row), CHUNK):
        chunk = row[start : start + CHUNK]
        top = np.int32(key_of(highest_key(chunk.view(np.int32)))).view(np.float32)
        reach = (np.float64(top) - np.float64(best)) / law.temperature
        if reach < floor or reach + MAX_NOISE < most:
            continue
        fill_words(words, law.seed, position, start // 4)
        if not _bound_scores(chunk, best, per_temperature, words, bounds, np.float32(most)):
            continue
        for place in range(len(chunk)):
            if bounds[place] >= np.float32(most):
                score = (np.float64(chunk[place]) - np.float64(best)) / law.temperature
                if score >= floor:
                    score += gumbel_of_word(np.uint64(words[place]))
                    if score > most or (score == most and start + place < winner):
                        winner, most = start + place, score
    return winner


@kernel(borrows=True)
def _bound_scores(
    chunk: NDArray[np.float32],
    best: np.float32,
    per_temperature: np.float32,
    words: NDArray[np.uint32],
    bounds: NDArray[np.float32],
    most: np.float32,
) -> bool:
    """Fill `bounds` with an upper bound of each token's score; return whether any reaches `most`."""
    count = 0
    for place in range(len(chunk)):
        bounds[place] = (chunk[place] - best) * per_temperature + noise_bound(words[place])
        count += bounds[place] >= most
    return count > 0
