"""Replaces the linear layers of a model by ones that hold a packed or a rounded matrix.

Invariant: originals are dropped one by one, and a head and an embedding that are tied stay one matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from decoding.config import Weights
from decoding.weights.kinds import Kind
from decoding.weights.linear import Embedding, Linear
from decoding.weights.matrix import FEWEST_OUTPUTS, Matrix, Target
from decoding.weights.numbers.onednn_floats import limit_rows
from decoding.weights.readers import choose_readers
from decoding.weights.rounding import rounded_kinds

# Shape suffixes: I input width, O output width.
MULTIPLIED_BY_HAND = ("dt_proj",)  # of Mamba-1
CPU = torch.device("cpu")


def linears_of(model: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor, torch.Tensor | None]]:
    """Every linear layer of `model` as (parent, name, weight, bias), but those whose weight modelling code multiplies
    itself. Layers may be replaced while iterating."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear and type(child) is not Conv1D:  # subclasses may compute something else
                continue
            if name in MULTIPLIED_BY_HAND:
                continue
            parameters = {key: parameter.detach() for key, parameter in child.named_parameters()}
            weight = parameters["weight"]
            weight_OI = weight.t() if isinstance(child, Conv1D) else weight  # GPT-2 keeps the transpose
            yield parent, name, weight_OI, parameters.get("bias")


def pack_linears(model: nn.Module) -> int:
    """Replace every linear layer of `model` by a packed one; return how many. Originals are dropped.

    A trial with one layer of each shape finds the row limit of all layers of that shape.
    """
    packed: list[Any] = []
    for parent, name, weight_OI, bias_O in linears_of(model):
        matrix = Matrix.of(weight_OI, bias_O).packed(Target(weight_OI.dtype, CPU, is_packed=True))
        setattr(parent, name, Linear(matrix))
        packed.append(matrix.numbers)
    limit_rows(packed)
    choose_readers(packed)
    return len(packed)


def round_weights(weights: Weights, model: PreTrainedModel) -> str:
    """Replace the linear layers of `model`, the head included, and where single rows of the head's kind are looked up
    the embedding; the name of what they have become. Originals are dropped."""
    kind, of_tokens = rounded_kinds(weights, model.device, model.dtype)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    table_VE, tokens = embedding.weight.detach(), None
    if type(head) is nn.Linear and len(head.weight) >= FEWEST_OUTPUTS:
        weight_VE, bias_V = head.weight.detach(), None if head.bias is None else head.bias.detach()
        matrix = _rounded(weight_VE, bias_V, of_tokens)
        model.set_output_embeddings(Linear(matrix))
        tokens = matrix if weight_VE.data_ptr() == table_VE.data_ptr() else None
    round_linears(model, kind)
    if of_tokens.rounding and type(embedding) is nn.Embedding:
        model.set_input_embeddings(Embedding(tokens or _rounded(table_VE, None, of_tokens)))
    return kind.name


def round_linears(model: nn.Module, kind: Kind, but: str = "") -> None:
    """Replace the linear layers of `model`. but: the name of layers that are not replaced."""
    for parent, name, weight_OI, bias_O in linears_of(model):
        if len(weight_OI) >= FEWEST_OUTPUTS and name != but:
            setattr(parent, name, Linear(_rounded(weight_OI, bias_O, kind)))


def _rounded(weight_OI: torch.Tensor, bias_O: torch.Tensor | None, kind: Kind) -> Matrix:
    return Matrix.of(weight_OI, bias_O).rounded(kind).packed(Target(weight_OI.dtype, CPU, is_packed=True))
