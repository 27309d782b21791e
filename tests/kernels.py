"""Kernels: all of this checkout, compiled before tests that run side by side would each compile them, and lent to
another copy of its sources. Compiling takes a minute or two.

`python -m tests.kernels` compiles what is not in the cache.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from threading import enumerate as running_threads
from typing import Any

import torch
from numba.core.caching import UserProvidedCacheLocator

from decoding.attention.triton.work import Kind, share_out
from decoding.config import EngineConfig
from decoding.engine.compiling.compiler import Compiler
from decoding.engine.compiling.kernels import Kernels
from decoding.engine.start import load_engine
from decoding.kernels.cache import PACKAGE, VARIABLE, completed_name, folder_name, is_complete
from decoding.kernels.cpu.products.grouped.multiplying import SHARES
from decoding.model.self_test import self_test_case, trial_steps
from decoding.model.target_model import TargetModel
from tests.models import tiny

# Tiny models that run the kernels of states, experts, bfloat16, rounded weights, and a device's steps.
OTHERS: tuple[tuple[str, torch.dtype, dict[str, Any]], ...] = (
    ("qwen3_next", torch.float32, {}),
    ("gpt_oss", torch.float32, {}),
    ("llama", torch.bfloat16, {}),
    ("llama", torch.float32, {"weights": "int4"}),
    ("llama", torch.float32, {"attention": "padded"}),
)


def compile_all() -> None:
    """As the first start of a worker does: the model's kernels here, the drafters' in a process beside; and meanwhile
    those of other models."""
    kernels = Kernels(Compiler())
    load_engine(EngineConfig(max_model_len=256, threads=1), kernels=kernels)
    kernels.load_weights(SHARES)
    for name, dtype, fields in OTHERS:
        model = TargetModel.from_model(tiny(name).to(dtype), EngineConfig(max_model_len=64, threads=1, **fields))
        share_out(trial_steps(model, self_test_case(model.vocab_size))[-1], [Kind(group=1, heads=1, keys=64, pairs=16)])
    for thread in running_threads():
        if thread.name == "kernels":
            thread.join()


def lend_kernels(package: Path, base: Path) -> None:
    """Put them where `package` looks with the cache folder `base`, if its sources are the same.

    Numba files kernels by the paths of their sources, and older versions by their times too.
    """
    name = folder_name(package)
    if name != folder_name(PACKAGE):
        return
    for source in PACKAGE.rglob("*.py"):
        copy = package / source.relative_to(PACKAGE)
        if copy.is_file():
            shutil.copystat(source, copy)
    if is_complete():
        (base / name).mkdir(parents=True, exist_ok=True)
        (base / name / completed_name(package)).touch()
    for room in {source.parent for source in PACKAGE.rglob("*.py")}:
        kernels = Path(os.environ[VARIABLE]) / _folder_of(room)
        if kernels.is_dir():
            shutil.copytree(kernels, base / name / _folder_of(package / room.relative_to(PACKAGE)))


def _folder_of(room: Path) -> str:
    name: str = UserProvidedCacheLocator.get_suitable_cache_subpath(str(room / "any.py"))
    return name


if __name__ == "__main__" and not is_complete():
    compile_all()
