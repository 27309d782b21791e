"""Orders: what is read is what was written, packed steps included."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvStore
from decoding.model.parallel.follower import DTYPES, Order, arrays_of, read, step_of, written


@pytest.fixture
def cache() -> KvCache:
    return KvCache(KvStore((), 40, torch.float32, torch.device("cpu")))


def test_a_step_is_the_same_on_the_other_side(cache: KvCache) -> None:
    chain, tree = cache.new_rows(100), cache.new_rows(60)
    chain.length, tree.length = 33, 7
    tokens = np.arange(5, dtype=np.int32)
    segments = [
        Segment(chain, np.arange(20, dtype=np.int32), None, "last"),
        Segment(tree, tokens, np.array([-1, 0, 0, 1, 2], np.int32)),
    ]
    batch = pack(segments, cache.store)
    words = written(Order.REPLAY, [np.array([3]), *arrays_of(batch)])
    places = iter(range(len(words)))
    order, (numbers, *arrays) = read(lambda count: np.array([words[next(places)] for _ in range(count)], np.int64))
    assert next(places, None) is None, "everything was read"
    assert (order, numbers.tolist()) == (Order.REPLAY, [3])
    found = step_of(arrays, cache.store)
    alone = {"store", "carried", "embedded", "turned", "joint", "drawn_B"}  # what a model that is divided has not
    assert {*DTYPES} == {field.name for field in fields(StepBatch)} - alone
    for name in DTYPES:
        there, here = getattr(found, name), getattr(batch, name)
        assert there.dtype == here.dtype, name
        np.testing.assert_array_equal(there, here)
