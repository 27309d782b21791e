"""Settings of the C library's allocator, so that a process's memory stays bounded. Uses the standard library only.

By default glibc gives each thread an arena of its own, whose free memory no other thread can use, and moves its
thresholds with what is freed. A process whose tensors differ in size from step to step then grows without holding more.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of malloc.h
# The largest threshold that glibc allows, which its own moving one comes to. Below it a block of 1.5 MiB takes 0.02 ms
# to get and fill; above it the block comes from the kernel in zeroed pages and takes 0.6 ms.
MMAP_BYTES = 32 * 2**20
TRIM_BYTES = 64 * 2**20  # of free memory that are kept at the heap's end


def settle_allocator(mmap_bytes: int = MMAP_BYTES) -> None:
    """Use one arena and fixed thresholds from here on. Call it before threads are started. It does nothing where the C
    library is not glibc. mmap_bytes: a block of this size or more comes from the kernel, and goes back when freed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, mmap_bytes), (M_TRIM_THRESHOLD, TRIM_BYTES)):
            mallopt(option, value)


def give_back_memory() -> None:
    """Give the kernel all memory that is free. It takes some 0.1 ms a MiB, in which no thread gets large blocks."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
