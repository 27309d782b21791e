"""One attention layer's shape and mask, which the probe finds at load and every store and backend reads.

Invariant: `num_query_heads` is a multiple of `num_kv_heads`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One attention layer. index: its place in the order in which a forward runs the layers.

    window: a token at position p sees positions above p - window; 0 is unlimited. chunk: a token sees only
    positions of its own chunk of that size; 0 is none. softcap: scores become softcap * tanh(score /
    softcap); 0 is none. sinks: [H] logits that join each softmax without a value, or None.
    """

    index: int
    num_query_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scaling: float
    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        assert self.num_query_heads % self.num_kv_heads == 0, self

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.num_query_heads // self.num_kv_heads
