"""How much memory is free, how much of it the KV cache may take, and how much the largest step takes beside.

Knows models by their forwards. Invariant: reading the system changes nothing, and what a measured step takes is freed
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import BLOCK_LEN, num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvStore
from decoding.config import EngineConfig
from decoding.errors import ConfigError
from decoding.model.device.runner import Forward
from decoding.process.machine import memory_left, resident_bytes

PACKED_BYTES = 5 / 8  # of a weight of four bits, with its share of scales and minima
CPU_SHARE, DEVICE_SHARE = 0.5, 0.85  # of the memory that is free after the models are loaded
STATES_SHARE = 0.5  # of that, for what layers carry from token to token
MOST_CHECKPOINTS = 1024
TRIAL_BLOCKS = 8  # of a store over which forwards are captured for their size alone
NUM_BESIDE = 2  # states: one of no tokens, and one of a sequence for which another is about to make way


def free_bytes(device: torch.device) -> int:
    """The free bytes of `device`; on a CPU no more than the process's own limits leave."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    left = memory_left()
    if left is None:
        raise ConfigError("nothing here says how much memory is free: neither /proc/meminfo nor a limit can be read")
    return left


def expected_bytes(device: torch.device, later_bytes: int) -> int:
    """The bytes that a loaded worker will take on `device` once its cache is full; its sessions come on top.

    later_bytes: of cache pages, which are taken when they are written, and of code.
    """
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    return resident_bytes() + later_bytes


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """num_slots: a multiple of the block length. max_model_len: the longest sequence that is served. note: a sentence
    if that is less than the model supports."""

    num_slots: int
    max_model_len: int
    note: str | None


def cache_bytes(config: EngineConfig, device: torch.device, step_bytes: int = 0) -> int:
    """What the KV cache and states may take, as configured or as memory allows, beside `step_bytes` of a step.
    Processes on one CPU get equal parts."""
    wanted = config.kv_memory or (CPU_SHARE if device.type == "cpu" else DEVICE_SHARE) / config.models
    free = max(0, free_bytes(device) - step_bytes)
    if wanted > max(free, 1):
        raise ConfigError(f"kv_memory is {_gib(wanted)}, but only {_gib(free)} are free")
    return int(wanted if wanted > 1 else wanted * free) // (config.num_processes if device.type == "cpu" else 1)


def affordable_slots(
    config: EngineConfig, device: torch.device, slot_bytes: int, state_bytes: int = 0, step_bytes: int = 0
) -> int:
    """The tokens that the KV cache may hold, as configured or as memory allows. slot_bytes: of one token, in all
    models. state_bytes: of all states, which take their part first. step_bytes: that a step needs beside the cache.

    What an earlier process had may be more than its share of what is free now."""
    if config.kv_slots is not None:
        return config.kv_slots // (config.workers if device.type == "cpu" else 1)
    others = state_bytes + step_bytes
    if config.kept_slots is not None and config.kept_slots * slot_bytes + others <= free_bytes(device):
        return config.kept_slots
    return max(0, cache_bytes(config, device, step_bytes) - state_bytes) // slot_bytes


class StateRoom(NamedTuple):
    """max_running: the sequences whose states there is room for. max_checkpoints: states that may be kept beside.
    num_bytes: of all states, once as many exist as may."""

    max_running: int
    max_checkpoints: int
    num_bytes: int


def state_room(
    config: EngineConfig,
    device: torch.device,
    state_bytes: int,
    max_running: int,
    draft_bytes: int = 0,
    step_bytes: int = 0,
) -> StateRoom:
    """How many states there may be: half of what the cache and states may take. Sequences come first, but leave a
    checkpoint for each. state_bytes, draft_bytes: of a state of the target and of the draft model, of which a sequence
    has two each: one, and one that its step writes. Raises ConfigError where not one sequence has room."""
    beside, own = NUM_BESIDE * state_bytes, 2 * (state_bytes + draft_bytes)
    room = int(STATES_SHARE * cache_bytes(config, device, step_bytes)) - beside
    if room < own:
        raise ConfigError(
            f"what layers carry from token to token takes {_gib(own + beside)} for one sequence, and there is room for "
            f"{_gib(room + beside)}; see kv_memory"
        )
    keeps = config.prefix_cache and state_bytes > 0
    num_running = max(1, min(max_running, room // (own + state_bytes * keeps)))
    room -= num_running * own
    num_checkpoints = min(room // state_bytes, MOST_CHECKPOINTS) if keeps else 0
    return StateRoom(num_running, num_checkpoints, num_running * own + num_checkpoints * state_bytes + beside)


def room_for(longest: int, config: EngineConfig, affordable: int, max_running: int) -> CacheRoom:
    """The size of the cache: at most what `max_running` sequences of length `longest` can use.

    Raises ConfigError if not even one block fits, or if the configured `max_model_len` does not.
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


def check_weights_fit(num_bytes: int, device: torch.device, num_numbers: int = 0) -> None:
    """Raise ConfigError, with both numbers, if a model's weights are larger than the free memory. num_numbers: of
    weights in full precision, which a file may hold packed."""
    free, packed_bytes = free_bytes(device), int(num_numbers * PACKED_BYTES)
    if num_bytes <= free:
        return
    sentence = f"the model's weights take {_gib(num_bytes)}, but only {_gib(free)} are free"
    if device.type == "cpu" and 0 < packed_bytes < free:
        sentence += f"; packed in four bits they take about {_gib(packed_bytes)}: a GGUF file of such a type fits"
    raise ConfigError(sentence)


class Measured(Protocol):
    """A model, or a head."""

    vocab_size: int
    max_model_len: int

    def new_store(self, num_blocks: int) -> KvStore: ...

    def launch(self, batch: StepBatch) -> Forward: ...


class Captured(Measured, Protocol):
    """A model, or a head, whose forwards can be captured."""

    def runner_over(self, store: KvStore, most_keys: int, most_rows: int) -> object: ...


class Meter(Protocol):
    def start(self) -> None: ...

    def stop(self) -> int:
        """The most bytes that were taken at a time since the start, beyond those that were taken then."""
        ...

    def free(self) -> None:
        """Give back what nothing holds any more."""
        ...


class CudaMeter:
    """Counts what torch reserves of the device, so that what is lost between its pieces counts, too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def start(self) -> None:
        self.free()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_reserved(self._device)

    def stop(self) -> int:
        return torch.cuda.max_memory_reserved(self._device) - self._before

    def free(self) -> None:
        torch.cuda.empty_cache()


def meter_on(device: torch.device) -> Meter | None:
    """None on a CPU, where half of what is free is left to everything else."""
    return CudaMeter(device) if device.type == "cuda" else None


def step_bytes(model: Measured, num_tokens: int, num_logits: int, meter: Meter) -> int:
    """The bytes that a step of so many tokens, of which so many need logits, takes beside weights and cache."""
    batch = _step(model, num_tokens, num_logits)
    meter.start()
    model.launch(batch).seconds()
    most = meter.stop()
    del batch
    model.launch(_step(model, 1, 1)).seconds()  # attention keeps the last step's buffers, and so its store
    meter.free()
    return most


def captured_bytes(model: Captured, most_keys: int, most_rows: int, meter: Meter) -> int:
    """The bytes that forwards of up to so many tokens take beside weights and cache while they are captured, which is
    what they hold afterwards, and the operations that ran before. Few where they cannot be captured."""
    store = model.new_store(TRIAL_BLOCKS)
    meter.start()
    runner = model.runner_over(store, most_keys, most_rows)
    most = meter.stop()
    del runner, store
    meter.free()
    return most


def _step(model: Measured, num_tokens: int, num_logits: int) -> StepBatch:
    """Chains in a store of their own."""
    lengths = [min(model.max_model_len, num_tokens - first) for first in range(0, num_tokens, model.max_model_len)]
    cache, segments = KvCache(model.new_store(sum(map(num_blocks_for, lengths)))), []
    for length in lengths:
        tokens, own_logits = np.arange(length, dtype=np.int32) % model.vocab_size, min(length, num_logits)
        segments.append(Segment(cache.new_rows(length), tokens, None, own_logits))
        num_logits -= own_logits
    return pack(segments, cache.store)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
