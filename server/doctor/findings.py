"""What is found on this machine, a finding for each thing that decides how fast and how exact a model is served.

Invariant: looking changes nothing, but for `exactness` of a model whose kernels are still to be compiled.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from decoding import __version__
from decoding.config import BUNDLED_MODEL, EngineConfig
from decoding.engine.compiling.kernels import Kernels
from decoding.errors import GanderError
from decoding.kernels.cache import is_complete, kernel_folder
from decoding.kernels.gpu.toolchain import why_no_triton
from decoding.kernels.processor import has_feature, multiplies_bytes, multiplies_halves, processor_name
from decoding.model.checkpoint import resolve
from decoding.model.device.runner import Progress
from decoding.model.loading import packed_kinds
from decoding.model.target_model import TargetModel
from decoding.process.machine import Cores, memory_left

GIB = 2**30
READ_BYTES = 2**28  # that are read to see how fast memory is: more than any cache holds
NUM_READS = 5
VECTORS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512vnni": "VNNI", "avx512bf16": "BF16", "amx-tile": "AMX"}
CARD = Path("/dev/nvidia0")
EXACT = "a token's logits have the same bits alone, in batches, trees and prompts: drafted replies are the plain ones"
INEXACT = "logits differ in their last bits between batches and trees, and so may replies where two tokens are close"


@dataclass(frozen=True, slots=True)
class Finding:
    """about: one word or two. text: what was found. advice: what would be better, None where it is well as it is.
    is_wrong: serving would not be what it should be."""

    about: str
    text: str
    advice: str | None = None
    is_wrong: bool = False


def versions() -> Finding:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "numba"))
    return Finding("Gander", f"{__version__} with Python {platform.python_version()}, {packages}")


def processor() -> Finding:
    """Products of packed weights are a chain of byte products, those of bfloat16 weights a chain of pairs."""
    found = ", ".join(shown for feature, shown in VECTORS.items() if has_feature(feature)) or "no vectors that are used"
    advice = None
    if not multiplies_bytes():
        advice = "a processor with VNNI multiplies packed weights (GGUF, int8, int4) in fewer instructions"
    elif not multiplies_halves():
        advice = "a processor with AVX512_BF16 runs long prompts in less time"
    return Finding("Processor", f"{processor_name() or platform.machine()}: {found}", advice)


def cores(found: Cores) -> Finding:
    advice = None
    if found.limit is not None:
        advice = f"the {found.limit} of this process leaves {found.usable} of {found.present}: more is quicker"
    return Finding("Cores", str(found), advice)


def memory() -> Finding:
    """What is free, and how fast it is read: a reply without drafting reads all active weights for each token."""
    free = memory_left()
    rate = _read_rate()
    text = f"{'an unknown part' if free is None else f'{free / GIB:.1f} GiB'} free, read at {rate / 1e9:.1f} GB/s"
    return Finding("Memory", f"{text}: a model of 1 GB says at most {rate / 1e9:.0f} tokens a second without drafting")


def _read_rate() -> float:
    """Bytes a second that all threads read together, the best of a few times."""
    numbers = torch.ones(READ_BYTES // 4)
    seconds = []
    for _ in range(NUM_READS):
        started = time.perf_counter()
        numbers.sum()
        seconds.append(time.perf_counter() - started)
    return READ_BYTES / min(seconds)


def gpu() -> Finding:
    if not torch.cuda.is_available():
        kind = "a build for CPUs" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
        advice = None
        if CARD.exists():
            advice = "this machine has an NVIDIA card: install a build of torch for CUDA, or mend its driver"
        return Finding("GPU", f"none that torch sees, which is {kind}", advice)
    cards = []
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        cards.append(f"{torch.cuda.get_device_name(number)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")
    reason = why_no_triton()
    advice = None if reason is None else f"attention runs with torch's own kernels, which are slower: {reason}"
    return Finding("GPU", "; ".join(cards), advice)


def kernels() -> Finding:
    folder = kernel_folder()
    if is_complete():
        return Finding("Kernels", f"compiled, in {folder}")
    advice = "the first start compiles them, for a minute or two of a core, and drafts nothing until then"
    if not os.access(folder, os.W_OK):
        advice = f"{folder} cannot be written, so that every start compiles them anew"
    return Finding("Kernels", "not all compiled yet", advice)


def models(environment: Mapping[str, str]) -> Finding:
    """Where models of the hub are kept, and what room is left there."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(environment.get("HF_HUB_CACHE", HF_HUB_CACHE)).expanduser()
    present = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(present).free
    num = len(list(folder.glob("models--*")))
    return Finding("Models", f"{num} of the hub in {folder}, {free / GIB:.0f} GiB free there")


def exactness(model: str | None, on_progress: Progress) -> Finding:
    """Load the model, by default the bundled one if that compiles nothing, and compare trees with plain decoding."""
    if model is None and not is_complete():
        return Finding("Exactness", "not tried", "gander doctor MODEL tries it, and compiles what it needs")
    config = EngineConfig(model=model or BUNDLED_MODEL)
    name = Path(config.model).name
    try:
        packed = Kernels()
        packed.load_plain()
        packed.load_weights(packed_kinds(resolve(config)[0]))
        is_exact = TargetModel.load(config, on_progress).is_exact
    except GanderError as error:
        return Finding("Exactness", f"not tried: {error}", is_wrong=True)
    if is_exact:
        return Finding("Exactness", f"{name}: {EXACT}")
    return Finding("Exactness", f"{name}: {INEXACT}", is_wrong=True)
