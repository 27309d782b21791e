"""Linear layers and embeddings whose weights stay packed in small integers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from decoding.model.linear.groups import Groups


class GroupedLinear(nn.Module):
    """Replaces an `nn.Linear` whose inputs and outputs are `dtype`, float32 or bfloat16.

    slices: the rows of the matrix [O, I] in order, packed one by one; all of the same bits and group."""

    def __init__(
        self, slices: Iterable[Groups], shape: tuple[int, int], bias_O: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        raise NotImplementedError


class GroupedEmbedding(nn.Module):
    """Looks up rows of a packed matrix; a tied head shares its memory.

    `linear`: the packed matrix."""

    def __init__(self, linear: GroupedLinear) -> None:
        raise NotImplementedError
