"""The compiled part of `logits_processors`: changes one row of logits.

Knows nothing of requests. `logits_processors.reference_process` computes the same in tensor operations.
Invariant: arithmetic is float64, rounded to float32 once per token and change, so that both give the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.numba_kernel import kernel

# Shape suffixes: V vocabulary, S tokens seen, B biased tokens, W words of a bit mask, A tokens of all bad words


Mask = NDArray[np.uint32]  # [W], bit `token % 32` of word `token // 32` is set for an allowed token


class Penalties(NamedTuple):
    """The penalties of `SamplingParams`."""

    presence: float
    frequency: float
    repetition: float


class BadWords(NamedTuple):
    """Token sequences, concatenated. tokens_A: int32; ends: int64 [n], where each sequence ends in it."""

    tokens_A: NDArray[np.int32]
    ends: NDArray[np.int64]


@kernel(borrows=True)
def penalise(row: NDArray[np.float32], seen_S: NDArray[np.int32], counts_V: NDArray[np.int32], by: Penalties) -> None:
    """Penalise seen tokens: divide positive logits by repetition and multiply others by it; then, if the count is not
    0, subtract frequency * count and presence. seen_S: distinct tokens. counts_V: occurrences in the reply."""
    for token in seen_S:
        value = np.float64(row[token])
        value = value / by.repetition if value > 0.0 else value * by.repetition
        count = counts_V[token]
        if count > 0:
            value = value - by.frequency * count
            value = value - by.presence
        row[token] = np.float32(value)


@kernel(borrows=True)
def add_bias(row: NDArray[np.float32], ids_B: NDArray[np.int64], biases_B: NDArray[np.float64]) -> None:
    for place in range(len(ids_B)):
        row[ids_B[place]] = np.float32(np.float64(row[ids_B[place]]) + biases_B[place])


@kernel(borrows=True)
def forbid_unset(row: NDArray[np.float32], mask_W: Mask) -> None:
    """Leave only tokens whose bit is set."""
    for word in range((len(row) + 31) // 32):
        bits = mask_W[word]
        first, end = 32 * word, min(32 * word + 32, len(row))
        if bits == np.uint32(0):  # the usual case with grammars
            row[first:end] = -np.inf
        elif bits != np.uint32(0xFFFFFFFF):
            for token in range(first, end):
                if not (bits >> np.uint32(token - first)) & np.uint32(1):
                    row[token] = -np.inf


@kernel(borrows=True)
def forbid_bad_words(row: NDArray[np.float32], tail: NDArray[np.int32], words: BadWords) -> None:
    """Forbid the last token of each sequence whose other tokens end `tail`, the text so far."""
    start = 0
    for end in words.ends:
        num_before = end - 1 - start
        matched = num_before <= len(tail)
        back = 0
        while matched and back < num_before:
            matched = tail[len(tail) - 1 - back] == words.tokens_A[end - 2 - back]
            back += 1
        if matched:
            row[words.tokens_A[end - 1]] = -np.inf
        start = end
