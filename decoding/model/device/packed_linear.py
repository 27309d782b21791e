"""Linear layers on a GPU whose weights stay packed, see `PackedMatrix`.

Invariant: a token's result has the same bits whatever other tokens there are.
"""

from __future__ import annotations

import torch
from torch import nn

from decoding.model.device.packed_matrix import PackedMatrix


class PackedDeviceLinear(nn.Module):
    """Replaces an `nn.Linear` whose inputs and outputs are `dtype`."""

    def __init__(self, packed: PackedMatrix, bias_O: torch.Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        from decoding.model.device.row_exact import packed_linear  # Triton may not be installed elsewhere

        self.out_features, self.in_features = self.shape = packed.shape
        self.weight = torch.empty(0, dtype=dtype, device=packed.codes_ON.device)  # modelling code reads both of it
        self.packed, self.bias_O = packed, bias_O
        self._multiply = packed_linear

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        return self._multiply(input, self.packed, self.bias_O)
