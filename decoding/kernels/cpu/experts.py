"""Kernels between a mixture's linear layers: route rows, sort them by expert, run the chosen experts, add up.

An expert's layers are calls of their own, in a table that the sorting fills: a thread that runs the table takes its
share of each chosen expert's weights and waits for nobody in between. Addresses are integers, which nothing checks.
Invariant: a row's numbers depend on the row alone: its experts are added in the order of their numbers.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from decoding.kernels.cpu.atomics import call_at
from decoding.kernels.cpu.lanes import copy_bytes, exp, pointer, raise_counter
from decoding.kernels.cpu.program import COUNTER, NUM_ROWS, SOURCE, TARGET
from decoding.kernels.cpu.rows import FLOATS, HALVES, narrowed, numbers_at, size_of, widened
from decoding.kernels.numba_kernel import kernel

# The fields of calls, each an int64, after SOURCE, TARGET, NUM_ROWS and COUNTER.
# Sorting. SOURCE: int64 [M, K], the experts of each row. TARGET: int64 [M, K], the place of each pair among the sorted
# rows, or -1. CHOSEN: int64, how many experts were chosen, then which. TABLES: see `Tables`.
NUM_RANKS, NUM_EXPERTS, CHOSEN, TABLES, NUM_TABLES = range(4, 9)
NUM_SORTING_FIELDS = 9
# Running. SOURCE: as CHOSEN. TARGET: the table. FUNCTION: the address of what each of its calls runs.
FUNCTION, CALL_BYTES = 4, 5
NUM_RUNNING_FIELDS = 6
# Gathering and adding up, with NUM_RANKS. WIDTH: of a row, in bytes where rows are gathered. SHARES: float32 [M, K].
WIDTH, PLACES, SHARES = range(5, 8)
NUM_ROW_FIELDS = 8
# Routing, with NUM_RANKS and NUM_EXPERTS. SOURCE: logits. TARGET: int64 [M, K]. BIASES: float32 of each expert, added
# for the choice alone, or 0. ROUNDS: whether shares have the type of the logits. SCALE: the bits of a float32.
TARGET_SHARES, BIASES, IS_SIGMOID, IS_NORMALISED, ROUNDS, SCALE = range(6, 12)
NUM_ROUTING_FIELDS = 12
# gpt-oss's gate. ALPHA, LIMIT: the bits of a float32.
GATE_WIDTH, OTHER, ALPHA, LIMIT = range(4, 8)
NUM_GATE_FIELDS = 8
# A table: its address, bytes of a call, and the fields of a call that move with its first row: for each its number, the
# address for row 0, and the bytes of a row.
MOST_MOVES = 3
TABLE_WORDS = 3 + 3 * MOST_MOVES
SMALLEST_SUM = np.float32(1e-20)  # as transformers' routers have it


@kernel
def _words(address: int, count: int) -> Any:
    return nb.carray(pointer(address, np.int64(0)), count)


@kernel
def _start_call(tables: Any, expert: int, first: int, count: int) -> None:
    """Give the expert `count` of the sorted rows, from `first` on."""
    for number in range(len(tables) // TABLE_WORDS):
        table = tables[number * TABLE_WORDS : (number + 1) * TABLE_WORDS]
        call = _words(table[0] + expert * table[1], table[1] // 8)
        call[NUM_ROWS], call[COUNTER] = count, 0
        for move in range(table[2]):
            field, start, step = table[3 + 3 * move], table[4 + 3 * move], table[5 + 3 * move]
            call[field] = start + first * step


def sort_rows(fields: Any) -> None:
    """Sort (row, rank) pairs by expert, and start the calls of those that are chosen. The first thread to come does it,
    alone: it takes a microsecond."""
    call = nb.carray(fields, NUM_SORTING_FIELDS)
    if raise_counter(np.int64(call.ctypes.data) + 8 * COUNTER, 1) > 0:
        return
    num_experts, num_pairs = call[NUM_EXPERTS], call[NUM_ROWS] * call[NUM_RANKS]
    experts, places = _words(call[SOURCE], num_pairs), _words(call[TARGET], num_pairs)
    chosen, tables = _words(call[CHOSEN], 1 + num_experts), _words(call[TABLES], call[NUM_TABLES] * TABLE_WORDS)
    ends = np.zeros(num_experts, np.int64)
    for pair in range(num_pairs):
        if 0 <= experts[pair] < num_experts:  # a number beyond them means none
            ends[experts[pair]] += 1
    first, num_chosen = 0, 0
    for expert in range(num_experts):
        count, ends[expert] = ends[expert], first
        if count > 0:
            _start_call(tables, expert, first, count)
            num_chosen += 1
            chosen[num_chosen] = expert
            first += count
    chosen[0] = num_chosen
    for pair in range(num_pairs):
        places[pair] = -1
        if 0 <= experts[pair] < num_experts:
            places[pair] = ends[experts[pair]]
            ends[experts[pair]] += 1


def gather_rows(fields: Any) -> None:
    """Copy each row to the places of its pairs."""
    call = nb.carray(fields, NUM_ROW_FIELDS)
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    num_ranks, width = call[NUM_RANKS], call[WIDTH]
    while True:
        row = raise_counter(counter, 1)
        if row >= call[NUM_ROWS]:
            return
        places = _words(call[PLACES] + 8 * row * num_ranks, num_ranks)
        for rank in range(num_ranks):
            if places[rank] >= 0:
                copy_bytes(call[TARGET] + places[rank] * width, call[SOURCE] + row * width, width)


def run_chosen(fields: Any) -> None:
    """One thread's share of the calls of all chosen experts."""
    call = nb.carray(fields, NUM_RUNNING_FIELDS)
    num_chosen = _words(call[SOURCE], 1)[0]
    chosen = _words(call[SOURCE], 1 + num_chosen)
    for place in range(num_chosen):
        call_at(call[FUNCTION], call[TARGET] + chosen[1 + place] * call[CALL_BYTES])


@nb.njit(inline="always")
def _add_up(call: Any, tag: Any) -> None:
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    num_ranks, width = call[NUM_RANKS], call[WIDTH]
    total = np.empty(width, np.float32)
    while True:
        row = raise_counter(counter, 1)
        if row >= call[NUM_ROWS]:
            return
        places = _words(call[PLACES] + 8 * row * num_ranks, num_ranks)
        shares = numbers_at(call[SHARES] + 4 * row * num_ranks, num_ranks, FLOATS)
        total[:] = np.float32(0)
        done = np.int64(-1)
        for _ in range(num_ranks):
            rank, place = 0, np.int64(-1)
            for other in range(num_ranks):  # places are in the order of experts
                if places[other] > done and (place < 0 or places[other] < place):
                    rank, place = other, places[other]
            if place < 0:
                break
            done = place
            source = numbers_at(call[SOURCE] + place * width * size_of(tag), width, tag)
            for column in range(width):
                total[column] += shares[rank] * widened(source[column])
        target = numbers_at(call[TARGET] + row * width * size_of(tag), width, tag)
        for column in range(width):
            target[column] = narrowed(total[column], tag)


def add_up_floats(fields: Any) -> None:
    """Add up the results of each row's experts, times their shares."""
    _add_up(nb.carray(fields, NUM_ROW_FIELDS), FLOATS)


def add_up_halves(fields: Any) -> None:
    _add_up(nb.carray(fields, NUM_ROW_FIELDS), HALVES)


@kernel(borrows=True)
def _chances(logits: Any, chances: Any, is_sigmoid: bool) -> None:
    """Softmax, or the sigmoid of each."""
    largest, total = np.float32(-np.inf), np.float32(0)
    for expert in range(len(logits)):
        chances[expert] = widened(logits[expert])
        largest = max(largest, chances[expert])
    for expert in range(len(logits)):
        if is_sigmoid:
            power = exp(-abs(chances[expert]))
            top = np.float32(1) if chances[expert] >= 0 else power
            chances[expert] = top / (np.float32(1) + power)
        else:
            chances[expert] = exp(chances[expert] - largest)
            total += chances[expert]
    if not is_sigmoid:
        for expert in range(len(logits)):
            chances[expert] /= total


@nb.njit(inline="always")
def _route(call: Any, tag: Any) -> None:
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    num_ranks, num_experts = call[NUM_RANKS], call[NUM_EXPERTS]
    scale = nb.carray(pointer(np.int64(call.ctypes.data) + 8 * SCALE, FLOATS), 1)[0]
    chances, worth = np.empty(num_experts, np.float32), np.empty(num_experts, np.float32)
    while True:
        row = raise_counter(counter, 1)
        if row >= call[NUM_ROWS]:
            return
        logits = numbers_at(call[SOURCE] + row * num_experts * size_of(tag), num_experts, tag)
        _chances(logits, chances, call[IS_SIGMOID] != 0)
        worth[:] = chances
        if call[BIASES] != 0:
            worth += numbers_at(call[BIASES], num_experts, FLOATS)
        experts = _words(call[TARGET] + 8 * row * num_ranks, num_ranks)
        shares = numbers_at(call[TARGET_SHARES] + 4 * row * num_ranks, num_ranks, FLOATS)
        total = np.float32(0)
        for rank in range(num_ranks):
            best = 0
            for expert in range(1, num_experts):
                if worth[expert] > worth[best]:  # the first of equals
                    best = expert
            experts[rank], shares[rank] = best, chances[best]
            worth[best] = -np.inf
            total += chances[best]
        for rank in range(num_ranks):
            if call[IS_NORMALISED] != 0:
                shares[rank] /= max(total, SMALLEST_SUM)
            shares[rank] *= scale
            if call[ROUNDS] != 0:
                shares[rank] = widened(narrowed(shares[rank], tag))


def route_floats(fields: Any) -> None:
    """Choose the experts of each row, and their shares."""
    _route(nb.carray(fields, NUM_ROUTING_FIELDS), FLOATS)


def route_halves(fields: Any) -> None:
    _route(nb.carray(fields, NUM_ROUTING_FIELDS), HALVES)


@nb.njit(inline="always")
def _clamp_gate(call: Any, tag: Any) -> None:
    """gpt-oss's gate: (1 + up) * gate * sigmoid(ALPHA * gate), with both limited. SOURCE: gate; OTHER: up."""
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    bounds = nb.carray(pointer(np.int64(call.ctypes.data) + 8 * ALPHA, FLOATS), 3)  # the middle one is padding
    alpha, limit = bounds[0], bounds[2]
    width = call[GATE_WIDTH]
    while True:
        row = raise_counter(counter, 1)
        if row >= call[NUM_ROWS]:
            return
        shift = row * width * size_of(tag)
        gates, ups = numbers_at(call[SOURCE] + shift, width, tag), numbers_at(call[OTHER] + shift, width, tag)
        target = numbers_at(call[TARGET] + shift, width, tag)
        for column in range(width):
            gate, up = min(widened(gates[column]), limit), min(max(widened(ups[column]), -limit), limit)
            power = exp(-abs(gate * alpha))
            top = np.float32(1) if gate * alpha >= 0 else power
            target[column] = narrowed((up + np.float32(1)) * gate * (top / (np.float32(1) + power)), tag)


def clamp_gate_floats(fields: Any) -> None:
    _clamp_gate(nb.carray(fields, NUM_GATE_FIELDS), FLOATS)


def clamp_gate_halves(fields: Any) -> None:
    _clamp_gate(nb.carray(fields, NUM_GATE_FIELDS), HALVES)
