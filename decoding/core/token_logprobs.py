"""The log probabilities a caller is told of at one token. Pure data; `logprobs` computes it."""

from __future__ import annotations

import msgspec


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural logarithms, of the model's own distribution: temperature 1, nothing filtered, biased or forbidden.

    rank: 1 for the likeliest token; the number of likelier ones plus one. top: (id, logprob) of the likeliest,
    best first, ties to the smaller id; the token itself is among them only if it is one of them.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]
