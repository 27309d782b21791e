"""How many numbers a model has and how many bytes they take, packed and rounded ones included."""

from __future__ import annotations

import math
from itertools import chain

from torch import nn

from decoding.model.device.packed_linear import PackedDeviceLinear
from decoding.model.device.packed_matrix import PackedMatrix
from decoding.model.linear.grouped import GroupedEmbedding, GroupedLinear, PackedGroups
from decoding.model.linear.int8 import Int8Linear


def num_weights_in(model: nn.Module) -> int:
    """The numbers of all weights; a head that is tied to the embedding counts once."""
    return sum(each.numel() for each in model.parameters()) + sum(math.prod(each.shape) for each in _packed_in(model))


def num_bytes_in(model: nn.Module) -> int:
    """The bytes of all weights, those that other libraries keep packed in buffers included."""
    own = sum(each.nbytes for each in chain(model.parameters(), model.buffers()))
    return own + sum(each.num_bytes for each in _packed_in(model))


def _packed_in(model: nn.Module) -> set[PackedGroups | PackedMatrix | Int8Linear]:
    """Each once: an embedding and a head may share one."""
    return {
        each if isinstance(each, Int8Linear) else each.packed
        for each in model.modules()
        if isinstance(each, GroupedLinear | GroupedEmbedding | PackedDeviceLinear | Int8Linear)
    }
