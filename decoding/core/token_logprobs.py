"""The log probabilities reported for one token. Pure data; `logprobs` computes it."""

from __future__ import annotations

import msgspec


class TokenLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Natural logarithms of the model's own distribution: temperature 1, nothing filtered, biased or forbidden.

    rank: 1 plus the number of more likely tokens. top: (id, logprob) of the most likely tokens, best first, ties to the
    smaller id; the token itself is in it only if it is one of these. A reply may have a million entries: garbage
    collection, which stops a process while it lasts, passes these by.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]
