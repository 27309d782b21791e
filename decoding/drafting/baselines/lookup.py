"""Prompt lookup: copy what followed an earlier occurrence of the last tokens (Saxena's PLD).

Owns nothing: it rereads the request's tokens, which costs microseconds per thousand tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.core.picture import tokens_before_pictures
from decoding.core.tree import DraftTree, Source, chain
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import FixedBudgetDrafter
from decoding.kernels.numba_kernel import kernel

_MAX_NGRAM = 3


class LookupDrafter(FixedBudgetDrafter):
    """A chain: the continuation of the earliest match of the last 3, else 2, else 1 tokens.

    A continuation shorter than the budget is copied as far as it goes, as in later versions of the baseline.
    """

    def propose(self, budget: DraftBudget) -> DraftTree:
        tokens, budget = self._request.keys, budget.within(self._request.speculation.max_depth)
        length = min(budget.max_nodes, budget.max_depth)
        start = find_continuation(tokens, _MAX_NGRAM)
        copied = tokens_before_pictures(tokens[start : start + length]) if start > 0 else tokens[:0]
        return chain(int(tokens[-1]), copied, Source.CONTEXT)


@kernel(borrows=True)
def find_continuation(tokens: NDArray[np.int32], max_ngram: int) -> int:
    """Where the earliest earlier occurrence of the longest matching suffix continues; -1 for none.

    tokens: int32 [t]. The suffix lengths tried are max_ngram down to 1.
    """
    num_tokens = len(tokens)
    for ngram in range(min(max_ngram, num_tokens - 1), 0, -1):
        for start in range(num_tokens - ngram):
            matched = 0
            while matched < ngram and tokens[start + matched] == tokens[num_tokens - ngram + matched]:
                matched += 1
            if matched == ngram:
                return start + ngram
    return -1
