"""Instruction sets: the levels at which kernels differ, and a process that runs at a lower one than this processor's.

`NUMBA_CPU_NAME=... python -m pytest`, with a level's variables, runs any tests at that level.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from decoding.kernels.processor import has_feature

AVX2_FEATURES = ("avx", "avx2", "fma", "bmi", "bmi2", "f16c", "sse4.2", "popcnt", "movbe", "lzcnt")
AVX512_FEATURES = (*AVX2_FEATURES, "avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd")


@dataclass(frozen=True, slots=True)
class Level:
    """processor: LLVM's name of one that has these features and no others of interest. onednn: what oneDNN calls it."""

    processor: str
    features: tuple[str, ...]
    onednn: str

    @property
    def variables(self) -> dict[str, str]:
        return {
            "NUMBA_CPU_NAME": self.processor,
            "NUMBA_CPU_FEATURES": ",".join(f"+{each}" for each in self.features),
            "ONEDNN_MAX_CPU_ISA": self.onednn,
        }

    @property
    def is_here(self) -> bool:
        """Whether this processor can run at it."""
        return all(has_feature(each) for each in self.features)


SSE4 = Level("nehalem", ("sse4.2", "popcnt"), "SSE41")
AVX2 = Level("haswell", AVX2_FEATURES, "AVX2")
AVX_VNNI = Level("alderlake", (*AVX2_FEATURES, "avxvnni"), "AVX2_VNNI")
AVX512 = Level("skylake-avx512", AVX512_FEATURES, "AVX512_CORE")
AVX512_VNNI = Level("icelake-server", (*AVX512_FEATURES, "avx512vnni"), "AVX512_CORE_VNNI")
AVX512_BF16 = Level("cooperlake", (*AVX512_FEATURES, "avx512vnni", "avx512bf16"), "AVX512_CORE_BF16")
AMX = Level("sapphirerapids", (*AVX512_BF16.features, "amx-tile", "amx-int8", "amx-bf16"), "AVX512_CORE_AMX")


PAIRS_NEED = pytest.mark.skipif(not has_feature("avx512bf16"), reason="bfloat16 panels need AVX512_BF16")


def run_at(level: Level, arguments: Sequence[str]) -> None:
    """The same as `run`, at a level."""
    run(arguments, level.variables)


def run(arguments: Sequence[str], variables: Mapping[str, str] = {}) -> None:
    """Run Python with these arguments; show what it said where it fails."""
    told = subprocess.run(
        [sys.executable, *arguments], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, f"{dict(variables)}:\n{told.stdout[-8000:]}{told.stderr[-4000:]}"
