"""The compiled walk: one head's rows in order, in one thread, so that its state stays in the nearest caches.

Threads draw (recurrence, head) pairs from a shared counter. Sums run over keys in order, a value in each lane, so a
head has whole vectors of values.
Invariant: a row's bits depend on its parent's state and on the row alone.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.kernels.cpu.lanes import VECTOR_BYTES, copy_bytes, pointer, raise_counter
from decoding.kernels.cpu.states.lanes import (
    MANY,
    add_many,
    add_one,
    decay_add_many,
    decay_add_one,
    decay_values_add_many,
    decay_values_add_one,
    find_many,
    find_one,
)
from decoding.kernels.cpu.states.order import ROW, SOURCE, TARGET, Walk
from decoding.kernels.numba_kernel import kernel

# Shape suffixes: K key width, V value width. Addresses and strides are in bytes unless their name says floats.
# Fields of a call. `JOBS` is the address of a table with a line for each recurrence; `ROOM_FLOATS` of each thread.
COUNTER, ROOMS_TAKEN, NUM_JOBS, JOBS, WALK, WALK_LEN, SCRATCH, ROOM_FLOATS, NUM_FIELDS = range(9)
# Columns of a job: addresses of its rows' parts (RATE is 0 for none) and of its places' addresses, and its sizes.
# DECAY_KEYS and DECAY_VALUES are 1 where one decay is for all keys or values.
(
    QUERY,
    KEY,
    VALUE,
    DECAY,
    RATE,
    OUT,
    PLACES,
    NUM_HEADS,
    NUM_GROUPS,
    KEY_DIM,
    VALUE_DIM,
    DECAY_KEYS,
    DECAY_VALUES,
    NUM_PLACES,
    NUM_COLUMNS,
) = range(15)
Floats = NDArray[np.float32]


@nb.njit(inline="always")
def _floats(address: int, count: int) -> Floats:
    found: Floats = nb.carray(pointer(address, np.float32(0)), count)
    return found


@kernel(borrows=True)
def _correct(state: int, job: NDArray[np.int64], decay: int, key: int, sums: int) -> None:
    """Decay a state, and find what it holds for a key."""
    num_keys, step = job[KEY_DIM], 4 * job[VALUE_DIM]
    decay_step = 4 if job[DECAY_KEYS] > 1 else 0
    for first in range(0, step, VECTOR_BYTES * MANY):
        if step - first >= VECTOR_BYTES * MANY:
            find_many(state + first, step, num_keys, decay, decay_step, key, sums + first)
        else:
            for place in range(first, step, VECTOR_BYTES):
                find_one(state + place, step, num_keys, decay, decay_step, key, sums + place)


@kernel(borrows=True)
def _add(state: int, job: NDArray[np.int64], key: int, query: int, value: int, out: int) -> None:
    """Add a value under its key to a state that is decayed, and read it with the query."""
    num_keys, step = job[KEY_DIM], 4 * job[VALUE_DIM]
    for first in range(0, step, VECTOR_BYTES * MANY):
        if step - first >= VECTOR_BYTES * MANY:
            add_many(state + first, step, num_keys, 0, 0, key, query, value + first, out + first)
        else:
            for place in range(first, step, VECTOR_BYTES):
                add_one(state + place, step, num_keys, 0, 0, key, query, value + place, out + place)


@kernel(borrows=True)
def _decay_and_add(state: int, job: NDArray[np.int64], decay: int, key: int, query: int, value: int, out: int) -> None:
    """The same, for a state that is not."""
    num_keys, step = job[KEY_DIM], 4 * job[VALUE_DIM]
    is_full = job[DECAY_VALUES] > 1
    decay_step = step if is_full else (4 if job[DECAY_KEYS] > 1 else 0)
    for first in range(0, step, VECTOR_BYTES * MANY):
        if step - first >= VECTOR_BYTES * MANY:
            if is_full:
                decay_values_add_many(
                    state + first, step, num_keys, decay + first, decay_step, key, query, value + first, out + first
                )
            else:
                decay_add_many(state + first, step, num_keys, decay, decay_step, key, query, value + first, out + first)
        else:
            for place in range(first, step, VECTOR_BYTES):
                if is_full:
                    decay_values_add_one(
                        state + place, step, num_keys, decay + place, decay_step, key, query, value + place, out + place
                    )
                else:
                    decay_add_one(
                        state + place, step, num_keys, decay, decay_step, key, query, value + place, out + place
                    )


@kernel
def _walk_head(job: NDArray[np.int64], head: int, walk: Walk, scratch: int) -> None:
    """scratch: the address of the thread's room, for a value and then for scratch states."""
    num_keys, width, num_heads, num_groups = job[KEY_DIM], job[VALUE_DIM], job[NUM_HEADS], job[NUM_GROUPS]
    size, group = num_keys * width, head // (num_heads // num_groups)
    decay_size = job[DECAY_KEYS] * job[DECAY_VALUES]
    places = nb.carray(pointer(job[PLACES], np.int64(0)), job[NUM_PLACES])
    sums = _floats(scratch, width)
    for step in range(len(walk)):
        row, source, target = walk[step, ROW], walk[step, SOURCE], walk[step, TARGET]
        before = _place(places, source, head, size, scratch + 4 * width)
        state = _place(places, target, head, size, scratch + 4 * width)
        if before != state:
            copy_bytes(state, before, 4 * size)
        key = job[KEY] + 4 * (row * num_groups + group) * num_keys
        query = job[QUERY] + 4 * (row * num_groups + group) * num_keys
        value = job[VALUE] + 4 * (row * num_heads + head) * width
        out = job[OUT] + 4 * (row * num_heads + head) * width
        decay = job[DECAY] + 4 * (row * num_heads + head) * decay_size
        if job[RATE] != 0:
            _correct(state, job, decay, key, scratch)
            rate, wanted = _floats(job[RATE] + 4 * (row * num_heads + head), 1)[0], _floats(value, width)
            for column in range(width):
                sums[column] = (wanted[column] - sums[column]) * rate
            _add(state, job, key, query, scratch, out)
        else:
            _decay_and_add(state, job, decay, key, query, value, out)


@nb.njit(inline="always")
def _place(places: NDArray[np.int64], number: int, head: int, size: int, scratch: int) -> int:
    """The address of a head's state."""
    return places[number] + 4 * head * size if number >= 0 else scratch - 4 * (number + 1) * size


@nb.njit(inline="always")
def _walk_share(call: NDArray[np.int64]) -> None:
    jobs = nb.carray(pointer(call[JOBS], np.int64(0)), (call[NUM_JOBS], NUM_COLUMNS))
    walk = nb.carray(pointer(call[WALK], np.int64(0)), (call[WALK_LEN], 3))
    address = np.int64(call.ctypes.data)
    room = raise_counter(address + 8 * ROOMS_TAKEN, 1)
    scratch = call[SCRATCH] + 4 * room * call[ROOM_FLOATS]
    job, first, ticket = 0, 0, raise_counter(address + 8 * COUNTER, 1)
    while True:
        while job < len(jobs) and ticket >= first + jobs[job, NUM_HEADS]:
            first += jobs[job, NUM_HEADS]
            job += 1
        if job == len(jobs):
            return
        _walk_head(jobs[job], ticket - first, walk, scratch)
        ticket = raise_counter(address + 8 * COUNTER, 1)


def walk_share(fields: Any) -> None:
    """One thread's share of a call. fields: address of the call's fields."""
    _walk_share(nb.carray(fields, NUM_FIELDS))
