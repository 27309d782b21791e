"""Gumbel noise as a pure function of (seed, position, token), shared by drafter and target.

Counter-based (Philox4x32-10, Salmon et al. 2011): it has no state, any element can be computed alone, and every device
gives the same bits. The counter is (token // 4, position, stream, step), the key is the 64-bit seed, and a token takes
word `token % 4`. Stream 0, step 0 is the target's own noise; the others are for draws that must not depend on it.
A uniform is (word + 1/2) / 2**32, so noise lies in [-3.14, MAX_NOISE] and is never infinite.
"""

from __future__ import annotations

import math

import numba as nb
import numpy as np
import torch
from numpy.typing import NDArray

from decoding.kernels.numba_kernel import kernel

MAX_NOISE = -math.log(-math.log1p(-(2.0**-33)))  # about 22.87, the largest value a token can draw

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10

_M0, _M1 = np.uint64(_MULTIPLIERS[0]), np.uint64(_MULTIPLIERS[1])
_W0, _W1 = np.uint64(_WEYL[0]), np.uint64(_WEYL[1])
_LOW = np.uint64(_MASK)
_HALF = np.uint64(32)

_NATS_PER_BIT = np.float32(math.log(2.0) * 2.0**-23)  # for one unit of a float32's bits, read as an integer
_MARGIN = 1e-3  # covers float32 rounding, here and in the scores that a bound is added to
_BOUND_OF_NO_BITS = np.float32((31 + 127) * math.log(2.0) + _MARGIN)


@nb.njit(cache=True, inline="always")
def philox_words(
    seed: np.uint64, position: int, block: int, stream: int = 0, step: int = 0
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """The four 32-bit words (in uint64) of tokens 4*block .. 4*block + 3."""
    c0, c1, c2, c3 = np.uint64(block), np.uint64(position), np.uint64(stream), np.uint64(step)
    k0, k1 = seed & _LOW, seed >> _HALF
    for _ in range(_ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@nb.njit(cache=True, inline="always")
def gumbel_of_word(word: np.uint64) -> float:
    """Gumbel(0, 1) noise of one 32-bit word, float64."""
    return -math.log(-math.log((np.float64(word) + 0.5) * 2.0**-32))


@nb.njit(cache=True, inline="always")
def noise_bound(word: np.uint32) -> np.float32:
    """An upper bound of `gumbel_of_word` without a logarithm; it is close where the noise is high.

    -log(-log u) <= -log(1 - u), and a float's bits give its binary logarithm, too low by at most 0.09 (Mitchell 1962).
    """
    left = np.float32(np.int32(~word >> np.uint32(1)))  # (1 - u) * 2**31, rounded down
    return _BOUND_OF_NO_BITS - np.float32(left.view(np.int32)) * _NATS_PER_BIT


@kernel
def fill_words(words: NDArray[np.uint32], seed: np.uint64, position: int, block: int) -> None:
    """Fill in the words of tokens from 4 * block on for the target's own noise. len(words): a multiple of four."""
    for place in range(len(words) // 4):
        four = philox_words(seed, position, block + place)
        for word in range(4):
            words[4 * place + word] = four[word]


@kernel
def gumbel(seed: np.uint64, position: int, token: int, stream: int = 0, step: int = 0) -> float:
    """The noise of one token at one absolute position, float64."""
    words = philox_words(seed, position, token >> 2, stream, step)
    return gumbel_of_word(words[token & 3])


@kernel
def exponential(seed: np.uint64, position: int, token: int) -> float:
    """The target's own noise as an exponential variate, exp(-noise). The token of least variate / probability is
    drawn."""
    return -math.log((np.float64(philox_words(seed, position, token >> 2)[token & 3]) + 0.5) * 2.0**-32)


@kernel
def uniform(seed: np.uint64, position: int, index: int, stream: int, step: int) -> float:
    """A number in (0, 1) of 52 bits, the `index`-th of its position, stream and step."""
    first, second, _, _ = philox_words(seed, position, index, stream, step)
    return (np.float64(first >> np.uint64(6)) * 2.0**26 + np.float64(second >> np.uint64(6)) + 0.5) * 2.0**-52


def gumbel_rows(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """float64 [R, V]: the same noise for whole rows, on the device of its inputs.

    seeds, positions: int64 [R]; a seed above 2**63 is passed as its two's complement.
    """
    device = positions.device
    blocks = torch.arange((vocab_size + 3) // 4, device=device)
    c0 = blocks[None, :].expand(len(positions), -1)
    c1 = (positions & _MASK)[:, None].expand_as(c0)
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = (seeds & _MASK)[:, None], ((seeds >> 32) & _MASK)[:, None]
    for _ in range(_ROUNDS):  # int64 products wrap, which keeps all 64 bits
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        high0, high1 = (p0 >> 32) & _MASK, (p1 >> 32) & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1 & _MASK, high0 ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    words = torch.stack((c0, c1, c2, c3), dim=-1).flatten(1)[:, :vocab_size]
    uniform = (words.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform))
