"""How much memory there is and how much of it the KV store may have. Reads the system, changes nothing."""

from __future__ import annotations

from pathlib import Path

import torch

from decoding.config import EngineConfig
from decoding.errors import ConfigError
from decoding.model.target_model import TargetModel

PAGE_BYTES = 4096


def resident_bytes() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be had on `device`."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError("cannot read the free memory; set kv_slots")


def slots_for(model: TargetModel, config: EngineConfig, draft_model: TargetModel | None = None) -> int:
    """Slots of the KV store: as configured, else a share of the free memory, but no more than can be used.

    The draft model, where there is one, has as many.

    Raises ConfigError where that is not even one request of the model's full length.
    """
    longest = model.max_model_len + config.max_nodes
    if config.kv_slots is None:
        slot_bytes = model.bytes_per_slot + (draft_model.bytes_per_slot if draft_model else 0)
        affordable = int(free_bytes(model.device) * config.kv_memory_share) // slot_bytes
        slots = min(affordable, longest * config.max_running)
    else:
        slots = config.kv_slots
    if slots < longest:
        raise ConfigError(
            f"kv_slots is {slots}, but one request of {model.max_model_len} tokens with its tree needs {longest}; "
            "lower max_model_len or give the KV store more memory"
        )
    return slots
