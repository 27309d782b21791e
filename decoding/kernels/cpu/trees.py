"""What kernels ask of a draft tree's shape. A tree is its nodes' parents, each before its children."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.numba_kernel import kernel

IntArray = NDArray[np.int32]


@kernel
def trunk_len(parents: IntArray) -> int:
    """The length of a tree's leading chain that all later nodes descend from."""
    trunk = 0
    while trunk < len(parents) and parents[trunk] == trunk - 1:
        trunk += 1
    for node in range(trunk, len(parents)):
        trunk = min(trunk, parents[node] + 1)
    return trunk
