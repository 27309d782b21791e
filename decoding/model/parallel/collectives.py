"""The sum over ranks: each sends its own numbers to all, and all add them up in the order of ranks.

Knows nothing of models. Invariant: every rank has the same bits, which do not depend on what else a tensor holds.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

PATIENCE = timedelta(minutes=10)  # one rank may compile kernels while the others wait
LOOPBACK = "127.0.0.1"


class Ranks:
    """The processes that share a model, of which this one is number `rank` of `size`. Gloo on a CPU, NCCL on GPUs.

    folder: where they find each other, the same for all and empty at first. Waits for all of them.
    """

    def __init__(self, rank: int, size: int, device: torch.device, folder: Path) -> None:
        self.rank, self.size = rank, size
        store = dist.FileStore(str(folder / "ranks"), size)
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = PATIENCE
            self._group = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            options = dist.ProcessGroupGloo._Options()
            options._devices, options._timeout = [dist.ProcessGroupGloo.create_device(hostname=LOOPBACK)], PATIENCE
            self._group = dist.ProcessGroupGloo(store, rank, size, options)

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors of this shape: float32 sums, rounded once."""
        parts = partial.new_empty(self.size, *partial.shape)
        self._group._allgather_base(_bytes(parts), _bytes(partial.contiguous())).wait()
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part
        return total.to(partial.dtype)


def _bytes(numbers: torch.Tensor) -> torch.Tensor:
    """The same memory; not every backend knows every dtype."""
    return numbers.view(-1).view(torch.uint8)
