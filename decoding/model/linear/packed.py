"""Linear layers prepacked by oneDNN, for the CPU in float32 and bfloat16.

They are faster than stock ones at the few rows of a decode step and, unlike them, give a row the same bits
whatever other rows the step holds, as long as there are at least two (see `MIN_EXACT_ROWS`).
Invariant: a packed layer keeps no second copy of its weight, except one tied to the embedding.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

# Shape suffixes: M rows, I input width, O output width.
ROWS_HINT = 16  # the row count that oneDNN's choice of layout is for
MIN_EXACT_ROWS = 2  # a lone row takes another kernel at some widths, in both dtypes
_linear = torch.ops.mkldnn._linear_pointwise.default


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
    """Whether this processor can: bfloat16 needs one with AVX-512 or AVX-NE-CONVERT, and only trying tells."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16) or not torch._C._has_mkldnn:
        return False
    try:
        PackedLinear(torch.zeros(16, 16, dtype=dtype), None)
    except RuntimeError:
        return False
    return True


def pack_linears(model: nn.Module) -> int:
    """Replace every linear layer of `model` by its packed form; return how many. Originals are dropped."""
    num_packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear and type(child) is not Conv1D:  # subclasses may compute something else
                continue
            parameters = {key: parameter.detach() for key, parameter in child.named_parameters()}
            weight = parameters["weight"]
            weight_OI = weight.t() if isinstance(child, Conv1D) else weight  # GPT-2 keeps the transpose
            setattr(parent, name, PackedLinear(weight_OI, parameters.get("bias")))
            num_packed += 1
    return num_packed
