"""What is kept of responses stays within its bytes, and with its owner."""

from __future__ import annotations

import random

from server.generation.response_store import FULL_TENANTS, ResponseStore, StoredResponse


def stored(size: int) -> StoredResponse:
    return StoredResponse(b"x" * size, (b"y" * size,), 1)


def test_any_order_of_calls_keeps_the_bounds() -> None:
    rng = random.Random(3)
    num_found = 0
    store = ResponseStore(4000)
    for number in range(4000):
        tenant = f"tenant{rng.randrange(FULL_TENANTS + 4)}"
        if rng.random() < 0.7:
            response = stored(rng.randrange(2200))
            store.keep(tenant, f"resp_{number}", response)
            found = store.find(tenant, f"resp_{number}")
            assert found is None or (found is response and response.num_bytes <= 4000)
            num_found += found is not None
        else:
            store.delete(tenant, f"resp_{rng.randrange(number + 1)}")
        store.check_integrity()
    assert num_found > 1000


def test_the_least_recently_used_of_the_same_tenant_goes_first() -> None:
    store = ResponseStore(3000)
    store.keep("b", "other", stored(100))
    for name in ("one", "two"):
        store.keep("a", name, stored(500))
    assert store.find("a", "one") is not None
    store.keep("a", "three", stored(500))
    assert [store.find("a", name) is not None for name in ("one", "two", "three")] == [True, False, True]
    assert store.find("b", "other") is not None
    assert store.find("b", "one") is None
    assert not store.delete("b", "one")


def test_a_store_without_room_keeps_nothing() -> None:
    store = ResponseStore(0)
    store.keep("a", "one", stored(0))
    assert (store.keeps, store.find("a", "one")) == (False, None)
    store.check_integrity()
