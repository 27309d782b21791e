"""How many threads a step's tensor operations and compiled loops use.

Invariant: both obey one number. Numba's OpenMP layer would reset torch's own count at every start of its
pool, and its waiting threads would spin beside torch's; its work queue does neither.
"""

from __future__ import annotations

import numba as nb
import torch

PARAMETERS_PER_THREAD = 10_000_000  # a smaller share is done before a second thread has woken up


def threads_for(count: int | None, num_parameters: int) -> int:
    """`count`, or what the model's size is worth, at most one for each core.

    A small model on one thread also leaves the other cores to the server and to whoever else is there: threads
    that meet at a barrier after every operation are all as slow as the one that has to wait for its core.
    """
    num_cores = int(nb.config.NUMBA_NUM_THREADS)
    return count or max(1, min(num_cores, num_parameters // PARAMETERS_PER_THREAD))


def use_threads(count: int) -> None:
    """Use `count` threads from here on. Costs next to nothing, so that two models can take turns."""
    nb.config.THREADING_LAYER = "workqueue"
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
