"""Log probabilities of drawn tokens and of prompt tokens, from raw logits.

They are of the model's own distribution: log-softmax at temperature 1, before penalties, bias, filters and grammar.
Invariant: a row's values depend on that row alone.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.core.token_logprobs import TokenLogprobs
from decoding.core.tree import IntArray
from decoding.kernels.cpu.sampling.row import highest, mass
from decoding.kernels.numba_kernel import kernel
from decoding.sampling.top_tokens import top_tokens


def token_logprobs(rows_RV: torch.Tensor, tokens: IntArray, num_top: int) -> list[TokenLogprobs]:
    """The logprobs of each row's token and of its `num_top` most likely tokens. rows_RV: float32, on the host; tokens:
    int32 [R].

    Differences of logits are float64; the normaliser is that of `top_tokens`.
    """
    if len(tokens) == 0:
        return []
    if num_top == 0:
        return _own_logprobs(rows_RV.numpy(), tokens)
    top = top_tokens(rows_RV, num_top)
    ids_RK = torch.from_numpy(top.ids).long()
    own_R1 = rows_RV.gather(1, torch.from_numpy(tokens).long()[:, None])
    ranks = ((rows_RV > own_R1).sum(1) + 1).tolist()
    best_logprob_R = np.log(top.probabilities[:, 0].astype(np.float64))
    values_RK = torch.cat((own_R1, rows_RV.gather(1, ids_RK)), dim=1).double().numpy()
    logprobs_RK = values_RK - values_RK[:, 1:2] + best_logprob_R[:, None]
    return told(tokens, logprobs_RK[:, 0], ranks, top.ids[:, :num_top], logprobs_RK[:, 1 : 1 + num_top])


def told(
    tokens: IntArray,
    logprobs_R: NDArray[np.float64],
    ranks: list[int],
    ids_RK: IntArray,
    top_logprobs_RK: NDArray[np.float64],
) -> list[TokenLogprobs]:
    """The records of tokens, each with the most likely tokens of its row."""
    columns = tokens.tolist(), logprobs_R.tolist(), ranks, ids_RK.tolist(), top_logprobs_RK.tolist()
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(ids, top_logprobs, strict=True)))
        for token, logprob, rank, ids, top_logprobs in zip(*columns, strict=True)
    ]


def warm_up() -> None:
    """Compile the kernel of `token_logprobs` for num_top 0."""
    _own_logprobs(np.zeros((1, 1), np.float32), np.zeros(1, np.int32))


def _own_logprobs(rows_RV: NDArray[np.float32], tokens: IntArray) -> list[TokenLogprobs]:
    """`token_logprobs` for num_top 0, in one compiled call, since the step waits for it."""
    logprobs_R, ranks_R = np.empty(len(tokens), np.float64), np.empty(len(tokens), np.int64)
    _fill(rows_RV, tokens, logprobs_R, ranks_R)
    return [
        TokenLogprobs(token, logprob, rank, ())
        for token, logprob, rank in zip(tokens.tolist(), logprobs_R.tolist(), ranks_R.tolist(), strict=True)
    ]


@kernel(borrows=True)
def _fill(
    rows_RV: NDArray[np.float32],
    tokens_R: NDArray[np.int32],
    logprobs_R: NDArray[np.float64],
    ranks_R: NDArray[np.int64],
) -> None:
    for r in range(len(rows_RV)):
        row = rows_RV[r]
        own, best, num_higher = row[tokens_R[r]], highest(row), 0
        for token in range(len(row)):
            num_higher += row[token] > own
        best_probability = np.float32(1.0 / mass(row, best, np.float32(1.0)))  # rounded as in `top_tokens`
        logprobs_R[r] = np.float64(own) - np.float64(best) + math.log(np.float64(best_probability))
        ranks_R[r] = 1 + num_higher
