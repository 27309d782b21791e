"""How long a model's forwards take: chains of several sizes at two contexts. Knows nothing of requests."""

from __future__ import annotations

import time

import numpy as np

from decoding.cache.batch import Segment, pack
from decoding.cache.store import KvHandle, KvStore
from decoding.costs.calibration import Calibration
from decoding.model.target_model import TargetModel

ROWS = (1, 2, 4, 8, 16, 32, 64)
SHORT_CONTEXT, LONG_CONTEXT = 8, 512


def calibrate(model: TargetModel) -> Calibration:
    """Time forwards of chains of `ROWS` rows at two contexts."""
    contexts = [SHORT_CONTEXT, min(LONG_CONTEXT, model.max_model_len // 2)]
    store = model.new_store(sum(contexts) + len(contexts) * max(ROWS))
    handles = {context: _prefilled(model, store, context) for context in contexts}
    sizes = [(rows, context) for context in handles for rows in ROWS if context + rows <= model.max_model_len]
    return Calibration(sizes, lambda rows, context: _seconds(model, store, handles[context], rows))


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
