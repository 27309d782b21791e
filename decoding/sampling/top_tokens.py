"""A row's most likely tokens with their probabilities at temperature 1, from raw logits. Drafters learn from them."""

from __future__ import annotations

import math

import numba as nb
import numpy as np
import torch
from numpy.typing import NDArray

from decoding.core.top_tokens import TopTokens
from decoding.kernels.cpu.sampling.row import KEY_OF_MINUS_INFINITY, highest_key, key_of, mass
from decoding.kernels.gpu.card import has_kernels
from decoding.kernels.numba_kernel import kernel

# Shape suffixes: R rows, V vocabulary, K most likely tokens
BLOCK = 64  # most blocks of so many tokens hold none of the best, so that one comparison skips them
PARALLEL_LOGITS = 1 << 19  # with fewer logits in all rows, waking another thread costs more than it saves
Floats = NDArray[np.float32]


def top_tokens(logits_RV: torch.Tensor, num_top: int) -> TopTokens:
    """The `num_top` most likely tokens of every row with their probabilities at temperature 1."""
    if has_kernels(logits_RV.device):
        from decoding.sampling.device.launch import likeliest

        return likeliest(logits_RV, num_top)
    return top_tokens_on_host(logits_RV.cpu(), num_top)


def top_tokens_on_host(logits_RV: torch.Tensor, num_top: int) -> TopTokens:
    """The same of logits that are on the host."""
    num_top = min(num_top, logits_RV.shape[1])
    ids = np.empty((len(logits_RV), num_top), np.int32)
    probabilities = np.empty((len(logits_RV), num_top), np.float32)
    is_parallel = logits_RV.numel() > PARALLEL_LOGITS and len(logits_RV) > 1 and torch.get_num_threads() > 1
    fill = _fill_parallel if is_parallel else _fill
    fill(logits_RV.numpy(), ids, probabilities)
    return TopTokens(ids, probabilities)


def warm_up() -> None:
    """Compile the kernels for few rows and for many."""
    nothing = np.zeros((0, 1), np.float32)
    for fill in (_fill, _fill_parallel):
        fill(nothing, np.zeros((0, 1), np.int32), nothing)


@kernel(borrows=True)
def _fill(logits_RV: Floats, ids_RK: NDArray[np.int32], probabilities_RK: Floats) -> None:
    for r in range(len(logits_RV)):
        _fill_row(logits_RV[r], ids_RK[r], probabilities_RK[r])


@nb.njit(cache=True, parallel=True)
def _fill_parallel(logits_RV: Floats, ids_RK: NDArray[np.int32], probabilities_RK: Floats) -> None:
    for r in nb.prange(len(logits_RV)):
        _fill_row(logits_RV[r], ids_RK[r], probabilities_RK[r])


@kernel
def _fill_row(row: Floats, ids: NDArray[np.int32], probabilities: Floats) -> None:
    """Fill in one row's most likely tokens in order, of equal ones the lowest id first."""
    last = len(ids) - 1
    values = np.full(last + 1, -np.inf, np.float32)
    ids[:] = 0
    bits, value_bits, bound = row.view(np.int32), values.view(np.int32), KEY_OF_MINUS_INFINITY
    for start in range(0, len(row), BLOCK):
        if highest_key(bits[start : start + BLOCK]) <= bound:
            continue
        for token in range(start, min(start + BLOCK, len(row))):
            value = row[token]
            if value > values[last]:
                slot = last
                while slot > 0 and value > values[slot - 1]:
                    values[slot] = values[slot - 1]
                    ids[slot] = ids[slot - 1]
                    slot -= 1
                values[slot] = value
                ids[slot] = token
        bound = key_of(value_bits[last])
    whole = mass(row, values[0], np.float32(1.0))
    for slot in range(last + 1):
        probabilities[slot] = math.exp(np.float64(values[slot]) - np.float64(values[0])) / whole
