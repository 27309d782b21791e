"""A process's threads share one arena of the C library's allocator, and what is free goes back where that is asked."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

COUNT_ARENAS = """
import ctypes, sys, threading
from decoding.worker.allocator import settle_allocator
if sys.argv[1] == "settled":
    settle_allocator()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
allocated = threading.Barrier(5)
def allocate():
    libc.malloc(1000)
    allocated.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads]
allocated.wait()
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_threads_share_one_arena_once_the_allocator_is_settled(tmp_path: Path) -> None:
    arenas = {}
    for mode in ("plain", "settled"):
        told = tmp_path / mode
        subprocess.run([sys.executable, "-c", COUNT_ARENAS, mode, str(told)], check=True, timeout=120)
        arenas[mode] = told.read_text().count("<heap nr=")
    assert arenas["settled"] == 1 < arenas["plain"]


FREE_ALL_BUT_THE_LAST = """
from decoding.worker.allocator import give_back_memory, settle_allocator
def resident_mib():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) >> 10
settle_allocator(2**20)
before = resident_mib()
blocks = [bytes([1]) * 20_000 for _ in range(10_000)]
del blocks[:-1]
freed = resident_mib()
give_back_memory()
print(freed - before, resident_mib() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_memory_that_is_free_below_what_is_not_is_given_back_where_that_is_asked() -> None:
    said = subprocess.check_output([sys.executable, "-c", FREE_ALL_BUT_THE_LAST], text=True, timeout=120)
    freed, given_back = map(int, said.split())
    assert given_back < 20 < 150 < freed, "MiB"
