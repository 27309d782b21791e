"""How the C library's allocator behaves in this process. Standard library only, and quick.

Left to itself glibc's gives each thread an arena of its own, of which none gives back what another could use, and moves
its thresholds with what is freed: a process whose tensors differ in size from step to step grows without holding more.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of malloc.h
# The largest there may be, which glibc's own moving ones come to. A block of 1.5 MiB takes 0.02 ms to get and fill;
# above the threshold it is the kernel's, comes in zeroed pages, and takes 0.6 ms.
MMAP_BYTES = 32 * 2**20
TRIM_BYTES = 64 * 2**20  # of free memory at the heap's end that are kept


def settle_allocator() -> None:
    """One arena and fixed thresholds, from here on. To be called before threads are started; does nothing where the C
    library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, MMAP_BYTES), (M_TRIM_THRESHOLD, TRIM_BYTES)):
            mallopt(option, value)
