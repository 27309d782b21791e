"""What a block says of each place once the token before is known: its likeliest tokens, corrected by that token.

A correction of all tokens would read two numbers of the vocabulary's size for each node of a tree; those that a block
calls unlikely stay so. Knows nothing of trees. Invariant: a row's probabilities are of the whole vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.core.top_tokens import TopTokens
from decoding.core.tree import IntArray
from decoding.drafting.block.network import Correction
from decoding.stores.successor_table import NUM_SUCCESSORS

# Shape suffixes: R places of all blocks, V vocabulary, S tokens of a shortlist, N rows that are asked about.
LENGTH = 64


class Shortlist(NamedTuple):
    """Of each place the likeliest tokens and their logits, and the logarithm of what all others weigh."""

    ids_RS: torch.Tensor
    logits_RS: torch.Tensor
    others_R: torch.Tensor

    @classmethod
    def of(cls, logits_RV: torch.Tensor) -> Shortlist:
        """logits_RV: float32."""
        top = logits_RV.topk(min(LENGTH, logits_RV.shape[1]))
        whole_R, known_R = logits_RV.logsumexp(-1), top.values.logsumexp(-1)
        others_R = whole_R + torch.log1p(-(known_R - whole_R).exp().clamp(max=1.0))
        return cls(top.indices, top.values, others_R)

    def after(self, correction: Correction, rows: NDArray[np.int64], before: IntArray) -> TopTokens:
        """Of these places the likeliest tokens, each after the token `before`."""
        with torch.inference_mode():
            device = self.ids_RS.device
            rows_N, before_N = (
                torch.from_numpy(each).to(device, torch.int64, non_blocking=True) for each in (rows, before)
            )
            ids_NS = self.ids_RS[rows_N]
            logits_NS = self.logits_RS[rows_N] + correction(before_N, ids_NS).float()
            whole_N = torch.logaddexp(logits_NS.logsumexp(-1), self.others_R[rows_N])
            top = (logits_NS - whole_N[:, None]).exp().topk(NUM_SUCCESSORS)
            ids = ids_NS.gather(1, top.indices).to("cpu", torch.int32).numpy()
            return TopTokens(ids, top.values.cpu().numpy())
