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
SHORT_CONTEXT, LONG_CONTEXT = 8, 512
ROUNDS = 8
SECONDS_LIMIT = 2.0  # after which no further round is begun; two always are


def measure_cost_curve(model: TargetModel) -> CostCurve:
    """Time forwards of chains of `ROWS` rows at two contexts and fit a `CostCurve` to the quickest of each.

    Every round times every size once, so that a moment in which the machine is busy spoils no size for good.
    """
    contexts = [SHORT_CONTEXT, min(LONG_CONTEXT, model.max_model_len // 2)]
    store = model.new_store(sum(contexts) + len(contexts) * max(ROWS))
    handles = [_prefilled(model, store, context) for context in contexts]
    quickest: dict[tuple[int, int], float] = {}
    deadline = time.perf_counter() + SECONDS_LIMIT
    for round_number in range(ROUNDS):
        if round_number >= 2 and time.perf_counter() > deadline:
            break
        for handle in handles:
            for rows in ROWS:
                if handle.length + rows <= model.max_model_len:
                    size = (rows, handle.length)
                    quickest[size] = min(quickest.get(size, float("inf")), _seconds(model, store, handle, rows))
    return fit_cost_curve([(rows, context, seconds) for (rows, context), seconds in quickest.items()])


def _prefilled(model: TargetModel, store: KvStore, context: int) -> KvHandle:
    handle = store.allocate(context + max(ROWS))
    assert handle is not None
    _seconds(model, store, handle, context)
    store.commit(handle, np.arange(context, dtype=np.int32))
    return handle


def _seconds(model: TargetModel, store: KvStore, handle: KvHandle, num_rows: int) -> float:
    tokens = np.arange(num_rows, dtype=np.int32) % model.vocab_size
    started = time.perf_counter()
    logits_RV = model.forward(pack([Segment(handle, tokens)], store))
    logits_RV[0, 0].item()  # waits for a device to finish
    return time.perf_counter() - started
