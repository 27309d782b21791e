"""How much memory there is, and what the KV cache may have of it. Reads the system, changes nothing."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

import torch

from decoding.cache.block_pool import BLOCK_LEN
from decoding.config import EngineConfig
from decoding.errors import ConfigError

PAGE_BYTES = 4096
CONTROL_GROUPS = (  # as a container sees its own: the folder, and the files of limit and usage
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
CPU_SHARE, DEVICE_SHARE = 0.5, 0.85  # of the memory that the models leave


def resident_bytes() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be had on `device`: on a CPU within the process's own limits."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, *_limits_left())
    raise ConfigError("cannot read the free memory; set kv_slots")


def expected_bytes(device: torch.device, later_bytes: int) -> int:
    """What a loaded worker takes where its cache is, once that is full; what sessions remember comes on top."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    return resident_bytes() + later_bytes  # of the cache, whose pages are taken when they are written, and of code


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """num_slots: a multiple of the block length. max_model_len: the longest sequence served; note: a sentence where
    that is less than the model's own."""

    num_slots: int
    max_model_len: int
    note: str | None


def affordable_slots(config: EngineConfig, device: torch.device, slot_bytes: int) -> int:
    """Tokens that the KV cache may hold, as configured or as memory allows. slot_bytes: of one, all models together.

    Workers on one CPU have equal parts."""
    num_sharers = config.workers if device.type == "cpu" else 1
    if config.kv_slots is not None:
        return config.kv_slots // num_sharers
    wanted = config.kv_memory or (CPU_SHARE if device.type == "cpu" else DEVICE_SHARE)
    free = free_bytes(device)
    if wanted > free:
        raise ConfigError(f"kv_memory is {_gib(wanted)}, but only {_gib(free)} are free")
    return int(wanted if wanted > 1 else wanted * free) // num_sharers // slot_bytes


def room_for(longest: int, config: EngineConfig, affordable: int, max_running: int) -> CacheRoom:
    """What the cache is made for: no more than `max_running` sequences of the model's `longest` can use.

    Raises ConfigError where not even a block fits, or not the `max_model_len` that is asked for.
    """
    useful = -(-longest // BLOCK_LEN) * max_running * BLOCK_LEN if config.kv_slots is None else affordable
    num_slots = min(affordable, useful) // BLOCK_LEN * BLOCK_LEN
    if num_slots == 0:
        raise ConfigError(
            f"the KV cache has room for {affordable} tokens and needs at least {BLOCK_LEN}: what is left beside the "
            "model's weights is not enough; see kv_memory"
        )
    if num_slots >= longest:
        return CacheRoom(num_slots, longest, None)
    if config.max_model_len is not None:
        raise ConfigError(
            f"max_model_len is {longest}, but the KV cache has room for {num_slots} tokens; "
            "lower it or give the cache more memory (kv_memory)"
        )
    note = (
        f"The KV cache has room for {num_slots} tokens, so prompt and reply may have {num_slots} together instead of "
        f"the model's {longest}; a larger kv_memory gives more."
    )
    return CacheRoom(num_slots, num_slots, note)


def check_weights_fit(num_bytes: int, device: torch.device) -> None:
    """Raise ConfigError, with both numbers, where a model's weights are larger than the free memory."""
    free = free_bytes(device)
    if num_bytes > free:
        raise ConfigError(f"the model's weights take {_gib(num_bytes)}, but only {_gib(free)} are free")


def _limits_left() -> list[int]:
    """Bytes that the process's own limits leave: its control group's and its address space's."""
    left = []
    for folder, limit, usage in CONTROL_GROUPS:
        text = (folder / limit).read_text().strip() if (folder / limit).exists() else "max"
        if text.isdigit():
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            reclaimable = int(counts.get("inactive_file", 0))
            left.append(int(text) - int((folder / usage).read_text()) + reclaimable)
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        left.append(address_space - int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES)
    return left


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
