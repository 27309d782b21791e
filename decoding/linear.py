"""Linear layers prepacked by oneDNN, for the CPU in float32 and bfloat16.

They are faster than stock ones at the few rows of a decode step and, unlike them, give a row the same bits
whatever other rows the step holds; float32 needs at least two rows for that (see `MIN_EXACT_ROWS`).
Invariant: a packed layer keeps no second copy of its weight, except one tied to the embedding.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

# Shape suffixes: M rows, I input width, O output width.
ROWS_HINT = 16  # the row count that oneDNN's choice of layout is for
MIN_EXACT_ROWS = 2  # below this float32 takes another kernel
_linear = torch.ops.mkldnn._linear_pointwise.default
PROBE_ROWS = (2, 3, 7, 64)


class PackedLinear(nn.Module):
    """Stands for an `nn.Linear` of float32 or bfloat16 weights on the CPU."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight_OI.shape
        self.packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), ROWS_HINT)
        self.bias_O = bias_O
        self.weight = torch.empty(0, dtype=weight_OI.dtype)  # modelling code reads its dtype and device

    def __call__(self, input_MI: torch.Tensor) -> torch.Tensor:  # past nn.Module's hooks, which cost microseconds
        output: torch.Tensor = _linear(input_MI, self.packed_weight, self.bias_O, "none", [], "")
        return output


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    is_packable = dtype in (torch.float32, torch.bfloat16) and torch.backends.mkldnn.is_available()
    return device.type == "cpu" and is_packable


def pack_linears(model: nn.Module) -> int:
    """Replace every linear layer of `model` by its packed form; return how many. Originals are dropped."""
    num_packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                weight_OI = child.weight.detach()
            elif type(child) is Conv1D:  # GPT-2 stores the transpose
                weight_OI = child.weight.detach().t()
            else:
                continue
            bias_O = None if child.bias is None else child.bias.detach()
            setattr(parent, name, PackedLinear(weight_OI, bias_O))
            num_packed += 1
    return num_packed


def is_row_invariant(layer: nn.Module, width: int, dtype: torch.dtype) -> bool:
    """Whether a row gets the same bits at every row count and place, on this processor. Takes milliseconds."""
    generator = torch.Generator().manual_seed(0)
    rows_MI = torch.randn(max(PROBE_ROWS), width, generator=generator).to(dtype)
    with torch.inference_mode():
        expected = layer(rows_MI[: min(PROBE_ROWS)])[0]
        for num_rows in PROBE_ROWS:
            for place in (0, num_rows // 2, num_rows - 1):
                moved = rows_MI[:num_rows].clone()
                moved[place] = rows_MI[0]
                if not torch.equal(layer(moved)[place], expected):
                    return False
    return True
