"""Measures the memory of a draft model: a fresh process answers one request and reports its peak resident memory.

A process cannot reset its peak, so every method gets its own process:
`python -m decoding.bench.draft_trees.memory METHOD auto|none` prints one line of JSON.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import msgspec
import numpy as np

from decoding.bench.contestant import EngineContestant, Task
from decoding.config import EngineConfig
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.start import load_engine

NUM_SLOTS = 16384
PROMPT_LEN, NEW_TOKENS = 300, 300
TIME_LIMIT = 300.0
# A method, and whether the draft model is loaded.
CASES = (("none", "none"), ("none", "auto"), ("linear", "auto"), ("fixed", "auto"), ("dynamic", "auto"))


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes and slots of one process. slots: of the KV cache, for the target and the draft model."""

    method: str
    slots: int
    draft_slots: int
    slot_bytes: int
    draft_slot_bytes: int
    draft_weight_bytes: int
    peak_bytes: int


def footprint(method: str, draft_model: str) -> Footprint:
    """Answer a request in this process and read its peak."""
    engine = load_engine(EngineConfig(draft_model=draft_model, kv_slots=NUM_SLOTS))
    contestant = EngineContestant(engine, method, SpeculationParams(method=method))
    prompt = (np.arange(PROMPT_LEN) % engine.model.vocab_size).astype(np.int32)
    contestant.answer(Task(prompt=prompt, max_tokens=NEW_TOKENS, temperature=0.0, seed=0, ignore_eos=True))
    draft = engine.draft_model
    return Footprint(
        method=method,
        slots=engine.room.num_slots,
        draft_slots=engine.room.num_slots if draft else 0,
        slot_bytes=engine.model.bytes_per_slot,
        draft_slot_bytes=draft.model.bytes_per_slot if draft else 0,
        draft_weight_bytes=draft.model.num_bytes if draft else 0,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def measure_memory() -> list[Footprint]:
    """Measure one process after the other. Raises CalledProcessError if one fails.

    The last case runs once before, uncounted, to compile the kernels: compiling takes far more memory.
    """
    found = []
    for method, draft_model in (CASES[-1], *CASES):
        command = [sys.executable, "-m", "decoding.bench.draft_trees.memory", method, draft_model]
        done = subprocess.run(command, check=True, timeout=TIME_LIMIT, stdout=subprocess.PIPE)
        found.append(msgspec.json.decode(done.stdout.splitlines()[-1], type=Footprint))
    return found[1:]


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(footprint(*sys.argv[1:3])).decode() + "\n")
