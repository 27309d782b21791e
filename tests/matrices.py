"""Packed matrices of given codes."""

from __future__ import annotations

import torch

from decoding.weights.groups import Groups, rows_of
from decoding.weights.kinds import GROUPED_INT8, KINDS
from decoding.weights.linear import Linear
from decoding.weights.matrix import Matrix, Target
from decoding.weights.numbers.stored_codes import StoredCodes


def stored(groups: Groups, repeats: int = 1, slice_rows: int = 0) -> StoredCodes:
    shape = (groups.codes_OI.shape[0], groups.codes_OI.shape[1])
    return StoredCodes(
        "codes", shape, lambda start, stop: rows_of(groups, slice(start, stop)), groups.bits, groups.group, repeats,
        slice_rows,
    )  # fmt: skip


def packed(
    groups: Groups,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    repeats: int = 1,
    by_triton: bool = False,
) -> Matrix:
    codes = stored(groups, repeats)
    target = Target(dtype, torch.device("cpu"), is_packed=True, by_triton=by_triton)
    return Matrix(codes.shape, KINDS[GROUPED_INT8], codes, bias_O=bias).packed(target)


def linear_on_device(groups: Groups, bias: torch.Tensor | None = None, dtype: torch.dtype = torch.float32) -> Linear:
    return Linear(packed(groups, bias, dtype, by_triton=True))
