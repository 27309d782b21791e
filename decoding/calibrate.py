"""Measures at start what a step costs on this machine, by running the model on trees of several sizes.

Knows nothing of requests. Takes well under a second for a small model, a few steps' time for a large one.
"""

from __future__ import annotations

import time

import numpy as np

from decoding.batch import Segment, pack
from decoding.budget import CostCurve, fit_cost_curve
from decoding.kv_store import KvHandle, KvStore
from decoding.model import TargetModel

ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (8, 512)
REPEATS = 7
SECONDS_LIMIT = 0.2  # for one (rows, context) pair, after which no repeat is begun


def measure_cost_curve(model: TargetModel) -> CostCurve:
    """Time forwards of chains of `ROWS` rows at `CONTEXTS` and fit a `CostCurve` to the quickest of each."""
    store = model.new_store(max(CONTEXTS) + max(ROWS))
    samples = []
    for context in CONTEXTS:
        sizes = [rows for rows in ROWS if context + rows <= model.max_model_len]
        if not sizes:
            continue
        handle = store.allocate(context + max(ROWS))
        assert handle is not None
        _run(model, store, handle, context)
        store.commit(handle, np.arange(context, dtype=np.int32))
        samples += [(rows, context, _quickest(model, store, handle, rows)) for rows in sizes]
        store.free(handle)
    return fit_cost_curve(samples)


def _quickest(model: TargetModel, store: KvStore, handle: KvHandle, num_rows: int) -> float:
    best, deadline = float("inf"), time.perf_counter() + SECONDS_LIMIT
    for _ in range(REPEATS):
        started = time.perf_counter()
        _run(model, store, handle, num_rows)
        best = min(best, time.perf_counter() - started)
        if time.perf_counter() > deadline:
            break
    return best


def _run(model: TargetModel, store: KvStore, handle: KvHandle, num_rows: int) -> None:
    tokens = np.arange(num_rows, dtype=np.int32) % model.vocab_size
    logits_RV = model.forward(pack([Segment(handle, tokens)], store))
    logits_RV[0, 0].item()  # waits for a device to finish
