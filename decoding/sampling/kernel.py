"""The sampler's compiled loops: a row's most likely tokens, and argmax(log p + g) over its filtered law.

Knows nothing of requests or trees. `sampling.reference_choose` says the same in tensors.
Invariant: no loop's order of summation depends on how many rows there are, so a row is a row anywhere.
"""

from __future__ import annotations

import math
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.sampling.noise import MAX_NOISE, gumbel, gumbel_of_word, philox_words

# R rows to draw, V vocabulary, K most likely tokens

UNREACHED = -1
SIGNIFICANT_GAP = 8.0  # nats below the best at which the search for a nucleus starts
EXPONENT_FLOOR = np.float32(-87.0)  # exp of less is not a normal float32


@nb.njit(cache=True, inline="always", fastmath={"contract", "nnan"})
def _exp(x: np.float32) -> np.float32:
    """exp(x) for x <= 0, float32, branch-free so that loops over it become vector code."""
    y = max(x, EXPONENT_FLOOR) * np.float32(1.4426950408889634)
    whole = np.floor(y + np.float32(0.5))
    r = (y - whole) * np.float32(0.6931471805599453)
    p = np.float32(1 / 720) * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(0.5)
    p = p * r + np.float32(1.0)
    p = p * r + np.float32(1.0)
    power_of_two = np.int32((np.int32(whole) + 127) << 23).view(np.float32)
    return np.float32(p * power_of_two)


@nb.njit(cache=True, fastmath={"nnan", "nsz", "reassoc"})
def _highest(row: NDArray[np.float32]) -> np.float32:
    best = np.float32(-np.inf)
    for token in range(len(row)):
        best = max(best, row[token])
    return best


@nb.njit(cache=True)
def _first_of(row: NDArray[np.float32], value: np.float32) -> int:
    for token in range(len(row)):
        if row[token] == value:
            return token
    return 0  # a row of NaN: any token, the model is broken


@nb.njit(cache=True, fastmath={"contract", "nnan", "nsz", "reassoc"})
def _mass(row: NDArray[np.float32], best: np.float32, scale: np.float32) -> float:
    """Sum of exp((row - best) * scale), in float64 over blocks that are summed in float32."""
    total = 0.0
    for start in range(0, len(row), 1024):
        part = np.float32(0.0)
        for token in range(start, min(start + 1024, len(row))):
            part += _exp((row[token] - best) * scale)
        total += np.float64(part)
    return total


@nb.njit(cache=True)
def top_rows(logits_RV: NDArray[np.float32], ids_RK: NDArray[np.int32], probabilities_RK: NDArray[np.float32]) -> None:
    """Fill in the most likely tokens of every row and their probabilities at temperature 1."""
    num_top = ids_RK.shape[1]
    values = np.empty(num_top, np.float32)
    for r in range(len(logits_RV)):
        row, ids = logits_RV[r], ids_RK[r]
        values[:] = -np.inf
        ids[:] = 0
        for token in range(len(row)):
            value = row[token]
            if value > values[num_top - 1]:
                slot = num_top - 1
                while slot > 0 and value > values[slot - 1]:
                    values[slot] = values[slot - 1]
                    ids[slot] = ids[slot - 1]
                    slot -= 1
                values[slot] = value
                ids[slot] = token
        mass = _mass(row, values[0], np.float32(1.0))
        for slot in range(num_top):
            probabilities_RK[r, slot] = math.exp(np.float64(values[slot]) - np.float64(values[0])) / mass


@nb.njit(cache=True)
def own_rows(
    logits_RV: NDArray[np.float32],
    tokens_R: NDArray[np.int32],
    logprobs_R: NDArray[np.float64],
    ranks_R: NDArray[np.int64],
) -> None:
    """Fill in what every row says of its token: its log probability at temperature 1, its rank, 1 for the highest."""
    for r in range(len(logits_RV)):
        row = logits_RV[r]
        own, best, num_higher = row[tokens_R[r]], _highest(row), 0
        for token in range(len(row)):
            num_higher += row[token] > own
        best_probability = np.float32(1.0 / _mass(row, best, np.float32(1.0)))  # rounded as in `top_rows`
        logprobs_R[r] = np.float64(own) - np.float64(best) + math.log(np.float64(best_probability))
        ranks_R[r] = 1 + num_higher


@nb.njit(cache=True)
def choose_rows(
    logits_NV: NDArray[np.float32],
    settings_B: NDArray[Any],
    tokens_R: NDArray[np.int32],
    parents_R: NDArray[np.int32],
    chosen_R: NDArray[np.int32],
) -> None:
    """Draw the token after every node a walk reaches; arguments as in `sampling.choose`."""
    start = 0
    for b in range(len(settings_B)):
        asked = settings_B[b]
        position = asked.position  # reached nodes are one path, so each is one position further
        for node in range(start, start + asked.num_nodes):
            if node > start and chosen_R[start + parents_R[node]] != tokens_R[node]:
                chosen_R[node] = UNREACHED
                continue
            row = logits_NV[asked.first_row + node - start]
            best = _highest(row)
            if asked.temperature == 0.0:
                chosen_R[node] = _first_of(row, best)
            elif asked.top_k > 0 or asked.top_p < 1.0:
                kept = nucleus(row, best, asked.temperature, asked.top_k, asked.top_p)
                chosen_R[node] = _draw_among(row, best, kept, asked.temperature, asked.min_p, asked.seed, position)
            else:
                chosen_R[node] = _draw(row, best, asked.temperature, asked.min_p, asked.seed, position)
            position += 1
        start += asked.num_nodes


@nb.njit(cache=True)
def nucleus(
    row: NDArray[np.float32], best: np.float32, temperature: float, top_k: int, top_p: float
) -> NDArray[np.int64]:
    """The tokens that top-k and then top-p keep, most likely first.

    Only tokens within a gap of the best are sorted; the gap doubles until they surely suffice.
    """
    limit = top_k if top_k > 0 else len(row)
    gap = SIGNIFICANT_GAP
    while True:
        near = np.nonzero(row >= best - np.float32(gap * temperature))[0]
        everything = len(near) == len(row) or gap > 1e4
        if len(near) >= limit or everything or top_k == 0:
            order = near[np.argsort(-row[near], kind="mergesort")][:limit]
            if top_p >= 1.0:
                return order
            weights = np.exp((row[order].astype(np.float64) - np.float64(best)) / temperature)
            whole = weights.sum()
            if top_k == 0 and not everything:  # the tail counts too: the near tokens are not all
                whole = _tail_mass(row, best, temperature)
            needed = top_p * whole
            before = 0.0
            for rank in range(len(order)):
                if before >= needed:
                    return order[:rank]
                before += weights[rank]
            if before >= needed or everything or top_k > 0:
                return order
        gap *= 2.0


@nb.njit(cache=True)
def _tail_mass(row: NDArray[np.float32], best: np.float32, temperature: float) -> float:
    return _mass(row, best, np.float32(1.0 / temperature))


@nb.njit(cache=True)
def _draw_among(
    row: NDArray[np.float32],
    best: np.float32,
    kept: NDArray[np.int64],
    temperature: float,
    min_p: float,
    seed: np.uint64,
    position: int,
) -> int:
    """Noise for the kept tokens only, however large the vocabulary."""
    floor = math.log(min_p) if min_p > 0.0 else -np.inf
    winner, highest = kept[0], -np.inf
    for token in kept:
        score = (np.float64(row[token]) - np.float64(best)) / temperature
        if score >= floor:
            score += gumbel(seed, position, token)
            if score > highest:
                winner, highest = token, score
    return winner


@nb.njit(cache=True)
def _draw(
    row: NDArray[np.float32],
    best: np.float32,
    temperature: float,
    min_p: float,
    seed: np.uint64,
    position: int,
) -> int:
    """Noise for the whole vocabulary, leaving out blocks of four in which no token can win."""
    floor = math.log(min_p) if min_p > 0.0 else -np.inf
    first = _first_of(row, best)
    winner, highest = first, gumbel(seed, position, first)
    for block in range((len(row) + 3) // 4):
        last = min(4 * block + 4, len(row))
        most = row[4 * block]
        for token in range(4 * block + 1, last):
            most = max(most, row[token])
        reach = (np.float64(most) - np.float64(best)) / temperature
        if reach < floor or reach + MAX_NOISE < highest:
            continue
        words = philox_words(seed, position, block)
        for token in range(4 * block, last):
            word = words[token - 4 * block]
            score = (np.float64(row[token]) - np.float64(best)) / temperature
            # noise above d needs a uniform u with 1 - u < exp(-d), which is cheaper to ask than two logarithms
            shortfall = np.float32(min(score - highest, 0.0))
            if score < floor or (1.0 - np.float64(word) * 2.0**-32) > np.float64(_exp(shortfall)) * 1.0001 + 2.0**-32:
                continue
            score += gumbel_of_word(word)
            if score > highest or (score == highest and token < winner):
                winner, highest = token, score
    return winner
