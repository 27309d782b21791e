"""Log probabilities of drawn tokens, and of prompts, from raw rows of logits.

Of the model's own distribution: log-softmax at temperature 1, before penalties, bias, filters and grammar, so that
they say what the model thinks and not what it was told. Invariant: a row's values depend on that row alone.
"""

from __future__ import annotations

import numpy as np
import torch

from decoding.sampling import top_tokens
from decoding.token_logprobs import TokenLogprobs
from decoding.tree import IntArray


def token_logprobs(rows_RV: torch.Tensor, tokens: IntArray, num_top: int) -> list[TokenLogprobs]:
    """For each row, what it says of its token and of the `num_top` likeliest; float32 rows, int32 [R] tokens.

    Differences of logits are taken in float64; the normaliser is that of `top_tokens`.
    """
    if len(tokens) == 0:
        return []
    top = top_tokens(rows_RV, max(num_top, 1))
    ids_RK = torch.from_numpy(top.ids).long().to(rows_RV.device)
    own_R1 = rows_RV.gather(1, torch.from_numpy(tokens).long().to(rows_RV.device)[:, None])
    ranks = ((rows_RV > own_R1).sum(1) + 1).tolist()
    best_logprob_R = np.log(top.probabilities[:, 0].astype(np.float64))
    values_RK = torch.cat((own_R1, rows_RV.gather(1, ids_RK)), dim=1).double().cpu().numpy()
    logprobs_RK = values_RK - values_RK[:, 1:2] + best_logprob_R[:, None]
    return [
        TokenLogprobs(token, logprobs[0], rank, list(zip(ids, logprobs[1:], strict=True))[:num_top])
        for token, rank, ids, logprobs in zip(
            tokens.tolist(), ranks, top.ids.tolist(), logprobs_RK.tolist(), strict=True
        )
    ]
