"""Makes what is no module in mixtures of experts row-exact on the CPU: linear maps in float32, and sigmoids.

Modelling code calls `F.linear` and `torch.sigmoid`, and the stock kernels' rounding of a row depends on the number of
rows. `REPLACED` is for those calls (see `ReplacedFunctions`); in linear maps each row becomes a lane (see
`attention.lanes`).
Invariant: a row's sums run over the input in order, whatever the other rows are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from decoding.kernels.cpu.lanes import LANES
from decoding.kernels.cpu.products.row_lanes import multiply_parallel, multiply_serial
from decoding.model.replacing.replacer import Replacements
from decoding.model.replacing.row_safe import row_safe

# Shape suffixes: M rows, I input width, O output width.
PARALLEL_WORK = 1 << 20  # with fewer multiply-adds (of sixteen rows each), threads cost more than they save


def is_of_columns(weight: torch.Tensor, columns: torch.Tensor) -> bool:
    """Whether a product is a linear map of tokens that lie in columns, as Mamba's modelling code writes it."""
    return weight.dim() == 2 and columns.dim() == 3 and weight.dtype == columns.dtype == torch.float32


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor | None:
    return row_exact_linear(input, weight, bias) if input.dtype == torch.float32 else None


def _matmul(weight: torch.Tensor, columns: torch.Tensor) -> torch.Tensor | None:
    return row_exact_linear(columns.mT, weight).mT if is_of_columns(weight, columns) else None


def row_exact_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`F.linear` for float32 on the CPU; argument names are torch's."""
    rows_MI = input.reshape(-1, weight.shape[1]).contiguous()
    out_MO = torch.empty(rows_MI.shape[0], weight.shape[0])
    weight_OI = weight.detach().contiguous().numpy()
    work = -(-len(rows_MI) // LANES) * weight_OI.size
    run = multiply_parallel if work > PARALLEL_WORK and torch.get_num_threads() > 1 else multiply_serial
    run(rows_MI.numpy(), weight_OI, out_MO.numpy())
    if bias is not None:
        out_MO += bias
    return out_MO.view(*input.shape[:-1], weight.shape[0])


REPLACED: Replacements = {
    F.linear: _linear,
    torch.Tensor.matmul: _matmul,
    torch.sigmoid: row_safe(torch.sigmoid),
    torch.Tensor.sigmoid: row_safe(torch.Tensor.sigmoid),  # which F.sigmoid calls
}
