"""A row's most likely tokens with their probabilities at temperature 1, from raw logits: what drafters harvest."""

from __future__ import annotations

import math

import numba as nb
import numpy as np
import torch
from numpy.typing import NDArray

from decoding.core.top_tokens import TopTokens
from decoding.sampling.logits_row import mass

# R rows, V vocabulary, K most likely tokens


def top_tokens(logits_RV: torch.Tensor, num_top: int) -> TopTokens:
    """The `num_top` most likely tokens of every row with their probabilities at temperature 1."""
    num_top = min(num_top, logits_RV.shape[1])
    if logits_RV.device.type != "cpu":
        log_norm = torch.logsumexp(logits_RV, dim=-1, keepdim=True)
        best = torch.topk(logits_RV, num_top, dim=-1)
        return TopTokens(best.indices.int().cpu().numpy(), (best.values - log_norm).exp().cpu().numpy())
    ids = np.empty((len(logits_RV), num_top), np.int32)
    probabilities = np.empty((len(logits_RV), num_top), np.float32)
    _fill(logits_RV.numpy(), ids, probabilities)
    return TopTokens(ids, probabilities)


@nb.njit(cache=True)
def _fill(logits_RV: NDArray[np.float32], ids_RK: NDArray[np.int32], probabilities_RK: NDArray[np.float32]) -> None:
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
        whole = mass(row, values[0], np.float32(1.0))
        for slot in range(num_top):
            probabilities_RK[r, slot] = math.exp(np.float64(values[slot]) - np.float64(values[0])) / whole
