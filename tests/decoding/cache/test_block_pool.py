"""The block pool: random operations keep its invariants, tokens are found by those who may, the rest is taken back."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.cache.block_pool import BLOCK_LEN, BlockPool, BlockTable
from decoding.cache.prefix_index import PrefixIndex, namespace_digest
from decoding.core.tree import IntArray


def tokens_of(seed: int, num_blocks: float) -> IntArray:
    return np.random.default_rng(seed).integers(0, 1000, int(num_blocks * BLOCK_LEN)).astype(np.int32)


def new_pool(num_blocks: int) -> BlockPool:
    return BlockPool(num_blocks, PrefixIndex())


def filled(pool: BlockPool, tokens: IntArray, namespace: bytes = b"") -> BlockTable:
    """A table whose tokens were all run."""
    table = pool.open(namespace)
    assert pool.resize(table, len(tokens))
    pool.publish(table, tokens)
    return table


def test_what_one_ran_another_finds_by_full_blocks() -> None:
    pool, tokens = new_pool(10), tokens_of(0, 3.5)
    first = filled(pool, tokens)
    second = pool.open()
    assert pool.find(second, tokens[:-1]) == 3
    assert pool.find(pool.open(), tokens[:-1], lambda end: end != 3 * BLOCK_LEN) == 2, "where it may end"
    assert second.blocks.tolist() == first.blocks[:3].tolist()
    assert pool.num_held == 4
    pool.check_integrity()


def test_a_prompt_that_differs_in_one_token_shares_what_comes_before_its_block() -> None:
    pool, tokens = new_pool(10), tokens_of(0, 3)
    filled(pool, tokens)
    other = tokens.copy()
    other[BLOCK_LEN + 3] += 1
    assert pool.find(pool.open(), other) == 1


def test_prompts_of_other_tenants_and_salts_find_nothing() -> None:
    pool, tokens = new_pool(10), tokens_of(0, 3)
    filled(pool, tokens, namespace_digest("ab", "c"))
    assert pool.find(pool.open(namespace_digest("a", "bc")), tokens) == 0
    assert pool.find(pool.open(namespace_digest("ab", "")), tokens) == 0
    assert pool.find(pool.open(namespace_digest("ab", "c")), tokens) == 3


def test_what_nobody_holds_is_found_until_its_room_is_needed_the_least_recently_used_first() -> None:
    pool = new_pool(4)
    old, new = tokens_of(0, 2), tokens_of(1, 2)
    pool.release(filled(pool, old))
    pool.release(filled(pool, new))
    assert (pool.num_idle, pool.num_held, pool.num_available) == (4, 0, 4)
    again = pool.open()
    assert pool.find(again, old) == 2, "and so it is used again"
    pool.release(again)
    needed = pool.open()
    assert pool.resize(needed, BLOCK_LEN)
    pool.check_integrity()
    assert pool.find(pool.open(), new) == 1, "its last block went, its first is worth more"
    assert pool.find(pool.open(), old) == 2


def test_a_table_that_does_not_fit_stays_as_it_was() -> None:
    pool = new_pool(3)
    table = pool.open()
    assert pool.resize(table, 20)
    blocks = table.blocks.tolist()
    assert not pool.resize(table, 3 * BLOCK_LEN + 1)
    assert table.blocks.tolist() == blocks
    pool.check_integrity()


def test_a_block_given_away_has_another_stamp() -> None:
    pool = new_pool(1)
    table = filled(pool, tokens_of(0, 1))
    stamp = pool.stamps[0]
    pool.release(table)
    again = pool.open()
    assert pool.find(again, tokens_of(0, 1)) == 1
    assert pool.stamps[0] == stamp, "who finds it may use what was noted"
    pool.release(again)
    pool.resize(pool.open(), 1)
    assert pool.stamps[0] != stamp


def test_without_an_index_nothing_is_found_and_nothing_kept() -> None:
    pool = BlockPool(2)
    pool.release(filled(pool, tokens_of(0, 2)))
    assert pool.num_idle == 0
    assert pool.find(pool.open(), tokens_of(0, 2)) == 0


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_keep_integrity(seed: int) -> None:
    generator = np.random.default_rng(seed)
    pool = new_pool(24)
    texts: dict[BlockTable, IntArray] = {}
    num_found = num_refused = num_shared = 0
    for _ in range(400):
        action = generator.choice(["open", "open", "grow", "grow", "shrink", "fork", "release", "forget"], p=_CHANCES)
        tables = list(texts)
        table = tables[generator.integers(len(tables))] if tables else None
        if action == "open" or table is None:
            text = tokens_of(int(generator.integers(4)), 8)[: int(generator.integers(1, 8 * BLOCK_LEN))]
            fresh = pool.open()
            num_found += pool.find(fresh, text[:-1])
            if pool.resize(fresh, len(text)):
                pool.publish(fresh, text)
                texts[fresh] = text
            else:
                num_refused += 1
                pool.release(fresh)
        elif action == "grow":
            added = generator.integers(0, 1000, int(generator.integers(1, 40))).astype(np.int32)
            if pool.resize(table, len(texts[table]) + len(added)):
                texts[table] = np.concatenate((texts[table], added))
                pool.publish(table, texts[table])
            else:
                num_refused += 1
        elif action == "shrink":
            assert pool.resize(table, len(texts[table])), "what it has can always be kept"
        elif action == "fork":
            length = int(generator.integers(len(texts[table]) + 1))
            copy = pool.fork(table, length)
            num_refused += copy is None
            if copy is not None:
                texts[copy] = texts[table][:length]
                num_shared += length // BLOCK_LEN
        elif action == "release":
            pool.release(table)
            del texts[table]
        else:
            pool.forget()
            assert pool.num_idle == 0
        pool.check_integrity()
        assert all(table.capacity >= len(text) for table, text in texts.items())
    assert min(num_found, num_refused, num_shared) > 5, "the test met too little"


_CHANCES = [0.2, 0.1, 0.2, 0.1, 0.1, 0.1, 0.18, 0.02]
