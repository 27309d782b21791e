"""Modules that hold one matrix each, in place of transformers' linear layers and embeddings; and what a model's take.

Knows no kinds. Invariant: a head and an embedding that are tied hold the same matrix.
"""

from __future__ import annotations

import sys
from itertools import chain
from math import prod

import torch
from torch import nn

from decoding.weights.matrix import Matrix


class Linear(nn.Module):
    """Replaces an `nn.Linear`."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix
        self.out_features, self.in_features = matrix.shape
        self.weight = torch.empty(0, dtype=matrix.dtype, device=matrix.device)  # modelling code reads both of it
        self._multiply = matrix.rows if matrix.columns_S is not None else matrix.numbers.multiply

    def __call__(self, input: torch.Tensor) -> torch.Tensor:  # skips nn.Module's hooks, which cost microseconds
        return self._multiply(input)


class Embedding(nn.Module):
    """Replaces an `nn.Embedding`. scale: what it looks up is multiplied by it, as Gemma 3's is."""

    def __init__(self, matrix: Matrix, scale: torch.Tensor | None = None) -> None:
        super().__init__()
        self.matrix = matrix
        self.num_embeddings, self.embedding_dim = matrix.shape
        self.weight = torch.empty(0, dtype=matrix.dtype, device=matrix.device)  # modelling code reads both of it
        self.scale = None if scale is None else scale.to(matrix.dtype)

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        """int64 [...] to [..., E]"""
        found = self.matrix.row(input)
        return found if self.scale is None else found * self.scale

    @property
    def unscaled(self) -> Embedding:
        return self if self.scale is None else Embedding(self.matrix)


def held_by(module: nn.Module | None) -> Matrix | None:
    """The matrix that a module of this file holds; None of other modules."""
    found: Matrix | None = None if module is None else vars(module).get("matrix")
    return found


def matrix_of(module: nn.Module) -> Matrix | None:
    """The matrix that a module multiplies by, or looks up, and does nothing else; None if it does, or is not packed."""
    if type(module) is nn.Embedding:
        return Matrix.of(module.weight.detach())
    return held_by(module) if getattr(module, "scale", None) is None else None


def matrices_in(model: nn.Module) -> list[Matrix]:
    """Those that its modules hold, each once."""
    held = (held_by(module) for module in model.modules())
    return list({id(matrix.numbers): matrix for matrix in held if matrix is not None}.values())


def num_weights_in(model: nn.Module) -> int:
    """The numbers of all weights; a head that is tied to the embedding counts once."""
    own = sum(each.numel() for each in model.parameters())
    return own + sum(prod(matrix.shape) for matrix in matrices_in(model))


def num_bytes_in(model: nn.Module) -> int:
    """The bytes of all weights, those that other libraries keep packed in buffers included."""
    own = sum(each.nbytes for each in chain(model.parameters(), model.buffers()))
    return own + sum(matrix.nbytes for matrix in matrices_in(model))


def num_few_rows(model: nn.Module) -> int:
    """The most rows that all matrices in `model` multiply without oneDNN. Beyond it rows must be padded, see
    `row_counts`."""
    padded = [matrix.few_rows for matrix in matrices_in(model) if matrix.numbers.code_shape is not None]
    return min(padded, default=sys.maxsize)


def num_packed_shapes(model: nn.Module) -> int:
    """The number of different shapes that oneDNN compiles code for."""
    shapes = {matrix.numbers.code_shape for matrix in matrices_in(model)}
    return len(shapes - {None})
