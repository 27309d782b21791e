"""The sum over ranks: each sends its own numbers to all, and all add them up in the order of ranks.

Knows nothing of models. Invariant: every rank has the same bits, which do not depend on what else a tensor holds.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

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
        self._group = _group(rank, size, device, folder)

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors of this shape: float32 sums, rounded once."""
        parts = partial.new_empty(self.size, *partial.shape)
        self._group._allgather_base(_bytes(parts), _bytes(partial.contiguous())).wait()
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part
        return total.to(partial.dtype)


def _group(rank: int, size: int, device: torch.device, folder: Path) -> Any:
    """One of its own: a process-wide one would be shared with whoever else is in the process."""
    backends: Any = dist  # whose types leave out what follows
    store = backends.FileStore(str(folder / "ranks"), size)
    if device.type == "cuda":
        options = backends.ProcessGroupNCCL.Options()
        options._timeout = PATIENCE
        return backends.ProcessGroupNCCL(store, rank, size, options)
    options = backends.ProcessGroupGloo._Options()
    options._devices, options._timeout = [backends.ProcessGroupGloo.create_device(hostname=LOOPBACK)], PATIENCE
    return backends.ProcessGroupGloo(store, rank, size, options)


def _bytes(numbers: torch.Tensor) -> torch.Tensor:
    """The same memory; not every backend knows every dtype."""
    return numbers.view(-1).view(torch.uint8)
