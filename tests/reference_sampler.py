"""Draws the target's own token in plain tensor operations: slow, and obviously right.

Gives the same tokens as `decoding/sampling/cpu_sampler.py`.
"""

from __future__ import annotations

import math

import torch

from decoding.errors import BrokenLogits
from decoding.kernels.cpu.sampling.noise import gumbel_rows
from decoding.sampling.law import Law

# Shape suffix: V vocabulary


class ReferenceSampler:
    """Draws for one sequence in one step. position: of the next token, counted from the prompt's first."""

    def __init__(self, law: Law, position: int) -> None:
        self._law = law
        self._position = position

    def draw(self, logits_V: torch.Tensor, _node: int, /) -> int:
        token = reference_draw_token(logits_V, self._law, self._position)
        self._position += 1
        return token


def reference_draw_token(logits_V: torch.Tensor, law: Law, position: int) -> int:
    """`cpu_sampler.draw_token`, by sorting the whole row. Raises BrokenLogits."""
    drawn = logits_V.argmax() if law.temperature == 0 else _scores(logits_V, law, position).argmax()
    token, best = torch.stack((drawn.double(), logits_V.max().double())).tolist()
    if not math.isfinite(best):
        raise BrokenLogits(position)
    return int(token)


def _scores(logits_V: torch.Tensor, law: Law, position: int) -> torch.Tensor:
    """float64 [V]: log p + g up to a constant; minus infinity for tokens that the law drops."""
    device, vocab_size = logits_V.device, len(logits_V)
    numbers = torch.tensor((law.temperature, law.top_p, law.min_p), dtype=torch.float64)
    temperature, top_p, min_p = numbers.to(device)  # some devices round a division by a host's number differently
    scaled_V = logits_V.double() / temperature
    scaled_V -= scaled_V.max()
    sorted_V, order_V = torch.sort(scaled_V, descending=True, stable=True)
    is_beyond_k_V = torch.arange(vocab_size, device=device) >= (law.top_k or vocab_size)
    weights_V = sorted_V.exp().masked_fill(is_beyond_k_V, 0.0)
    before_V = weights_V.cumsum(-1) - weights_V  # mass of the more likely tokens
    is_beyond_p_V = (before_V >= top_p * weights_V.sum()) & (top_p < 1)
    is_dropped_V = is_beyond_k_V | is_beyond_p_V | (sorted_V < min_p.log())
    is_kept_V = torch.zeros_like(is_dropped_V).scatter_(0, order_V, ~is_dropped_V)
    seed = torch.tensor([int(law.seed)], dtype=torch.uint64).view(torch.int64).to(device)
    noise_V = gumbel_rows(seed, torch.tensor([position], device=device), vocab_size)[0]
    return (scaled_V + noise_V).masked_fill(~is_kept_V, -math.inf)
