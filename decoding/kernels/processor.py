"""What the processor is and can do: the only file that asks. Standard library only until a feature is asked for.

Features are those of the processor that kernels are compiled for: this one, unless numba's settings name another.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from pathlib import Path

_ASK_FOR_TILES = (158, 0x1023, 18)  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)


def processor_name() -> str:
    names = (line.partition(":")[2].strip() for line in description() if line.startswith("model name"))
    return next(names, platform.processor())


def description() -> list[str]:
    """The lines that tell kinds of processors apart, sorted; none where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})


def has_feature(name: str) -> bool:
    """By LLVM's name of a feature."""
    from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]
    from numba import config  # not before the cache's folder is known

    if config.CPU_FEATURES is not None:
        return f"+{name}" in config.CPU_FEATURES.split(",")
    return bool(get_host_cpu_features().get(name))


def has_wide_registers() -> bool:
    """32 registers of sixteen float32 numbers each, else 16 of eight."""
    return has_feature("avx512f")


def multiplies_bytes() -> bool:
    """Four products of bytes in one instruction, added up as int32: VNNI, of sixteen lanes or of eight."""
    return multiplies_wide_bytes() or has_feature("avxvnni")


def multiplies_wide_bytes() -> bool:
    """The same in sixteen lanes."""
    return has_feature("avx512vnni")


def widens_halves() -> bool:
    """Products of bfloat16 numbers in one instruction, or of so many float32 ones that widening them costs little."""
    return multiplies_halves() or (has_feature("avx2") and has_feature("fma"))


def multiplies_halves() -> bool:
    """Two products of bfloat16 numbers in one instruction, added up as float32."""
    return has_feature("avx512bf16")


@cache
def multiplies_in_tiles() -> bool:
    """Products of bytes and of bfloat16 numbers in tiles of sixteen rows and outputs (AMX), which the system must let
    the process use."""
    has_all = all(map(has_feature, ("amx-tile", "amx-int8", "amx-bf16", "avx512vnni", "avx512bf16")))
    return has_all and ctypes.CDLL(None).syscall(*_ASK_FOR_TILES) == 0
