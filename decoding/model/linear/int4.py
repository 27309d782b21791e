"""Packs a full-precision model at load: 4 bits for linear layers, more for the head and the embedding.

Invariant: originals are dropped one by one, and a head and an embedding that are tied stay one matrix.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from transformers import PreTrainedModel

from decoding.kernels.cpu.products.panels import PANEL
from decoding.model.linear.grouped import GroupedEmbedding, GroupedLinear
from decoding.model.linear.groups import Groups, quantized, symmetric
from decoding.model.linear.packed import linears_of

# Shape suffixes: O outputs, I input width, V vocabulary, E model width.
BITS, BITS_OF_TOKENS = 4, 6  # errors of the head and the embedding weigh more: no later layer evens them out
KINDS = {(BITS, 32), (BITS_OF_TOKENS, 32)}  # bits and group
FEWEST_OUTPUTS = PANEL  # smaller layers, such as routers of experts, keep their precision
SLICE = 1 << 18  # the weights that are rounded at a time, so that the search stays in the caches


def pack_int4(model: PreTrainedModel) -> None:
    """Replace the linear layers, the head and the embedding of `model` by packed ones."""
    pack_groups(model, BITS, BITS_OF_TOKENS)


def pack_groups(model: PreTrainedModel, bits: int, bits_of_tokens: int) -> None:
    """As `pack_int4`. bits: of a weight, 8 of a symmetric one; bits_of_tokens: of the head and the embedding."""
    dtype, embedding, head = model.dtype, model.get_input_embeddings(), model.get_output_embeddings()
    table_VE = embedding.weight.detach()
    for parent, name, weight_OI, bias_O in linears_of(model):
        if len(weight_OI) < FEWEST_OUTPUTS:
            continue
        is_head = getattr(parent, name) is head
        layer = _packed(weight_OI, bias_O, bits_of_tokens if is_head else bits, dtype)
        setattr(parent, name, layer)
        if is_head and weight_OI.data_ptr() == table_VE.data_ptr() and type(embedding) is nn.Embedding:
            model.set_input_embeddings(GroupedEmbedding(layer))
    if type(model.get_input_embeddings()) is nn.Embedding:
        model.set_input_embeddings(GroupedEmbedding(_packed(table_VE, None, bits_of_tokens, dtype)))


def _packed(weight_OI: torch.Tensor, bias_O: torch.Tensor | None, bits: int, dtype: torch.dtype) -> GroupedLinear:
    return GroupedLinear(_slices(weight_OI, bits), (weight_OI.shape[0], weight_OI.shape[1]), bias_O, dtype)


def _slices(weight_OI: torch.Tensor, bits: int) -> Iterator[Groups]:
    num_rows = max(1, SLICE // weight_OI.shape[1])
    for start in range(0, len(weight_OI), num_rows):
        rows_OI = weight_OI[start : start + num_rows].float()
        yield symmetric(rows_OI) if bits == 8 else quantized(rows_OI, bits)
