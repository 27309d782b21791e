"""Linear layers of a model by ones that hold a packed or a rounded matrix.

Where even a few rows change oneDNN's bits, or it packs nothing or float32 otherwise than our kernel reads it, layers
are panels of our own. Invariant: originals are dropped one by one, and a head and an embedding that are tied stay one
matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from decoding.config import Weights
from decoding.model.replacing.replacer import Place, Rule, places
from decoding.weights.kinds import Kind
from decoding.weights.linear import Embedding, Linear
from decoding.weights.matrix import FEWEST_OUTPUTS, Matrix, Target, fits_panels
from decoding.weights.numbers.float_panels import has_panels
from decoding.weights.numbers.onednn_floats import onednn_packs, row_limit
from decoding.weights.readers import choose_readers
from decoding.weights.rounding import rounded_kinds

# Shape suffixes: I input width, O output width, V vocabulary, E model width.
MULTIPLIED_BY_HAND = ("dt_proj",)  # of Mamba-1
Shape = tuple[object, ...]  # of a weight, its dtype, and whether there is no bias


def is_linear(place: Place) -> bool:
    """Whether a module is a linear layer, but for those whose weight modelling code multiplies itself. Subclasses may
    compute something else."""
    return type(place.module) in (nn.Linear, Conv1D) and place.name not in MULTIPLIED_BY_HAND


def weight_of(place: Place) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight [O, I] of a linear layer, and its bias."""
    parameters = {key: parameter.detach() for key, parameter in place.module.named_parameters()}
    weight = parameters["weight"]
    return weight.t() if isinstance(place.module, Conv1D) else weight, parameters.get("bias")  # GPT-2's is transposed


def linears_of(model: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor, torch.Tensor | None]]:
    """Every linear layer of `model` as (parent, name, weight, bias). Layers may be replaced while iterating."""
    for place in places(model):
        if is_linear(place):
            yield (place.parent, place.name, *weight_of(place))


def packing_rule() -> Rule:
    """Packs linear layers, of which originals are dropped. A trial with one layer of each shape finds the row limit of
    all layers of that shape."""
    limits: dict[Shape, int | None] = {}
    return Rule("linear layers packed", is_linear, lambda place: [_packed(place, limits)], finish=_choose_readers)


def _packed(place: Place, limits: dict[Shape, int | None]) -> Linear:
    """limits: of the shapes that were seen; 0 of those that oneDNN does not multiply."""
    weight_OI, bias_O = weight_of(place)
    matrix, target = Matrix.of(weight_OI, bias_O), Target(weight_OI.dtype, weight_OI.device, is_packed=True)
    shape = (*weight_OI.shape, weight_OI.dtype, bias_O is None)
    if shape not in limits:
        limits[shape] = row_limit(matrix.packed(target).numbers) if onednn_packs(weight_OI.dtype) else 0
    limit = limits[shape]
    if limit == 0 and has_panels(weight_OI.device, weight_OI.dtype) and fits_panels(weight_OI):
        return Linear(matrix.in_panels())
    packed = matrix.packed(target)
    numbers: Any = packed.numbers
    if limit:
        numbers.limit_rows(limit)
    return Linear(packed)


def _choose_readers(layers: list[Linear]) -> None:
    numbers: list[Any] = [layer.matrix.numbers for layer in layers]
    choose_readers([each for each in numbers if each.code_shape is not None])


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
    return Matrix.of(weight_OI, bias_O).rounded(kind).packed(Target(weight_OI.dtype, weight_OI.device, is_packed=True))
