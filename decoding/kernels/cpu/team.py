# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""The threads that run compiled programs: the caller, which leads, and helpers that join it.

A program is a list of phases, each a few calls whose pieces threads claim by counters. A phase is over when all pieces
are claimed and every thread that joined it has left it: nobody waits for a thread that the system does not run, except
for the piece in its hands. Who waits spins for a moment, then sleeps.
Invariant: one word counts the phases of all time and the threads inside the present one; whoever changes it from one
thread inside to none also begins the next phase, so a thread that gets in finds the program that the word stands for.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
from functools import cache
from threading import Lock, Thread
from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decoding.kernels.cpu.lanes import pointer, raise_counter

# The words of a team, each an int64, by cache line. STATE: the number of the present phase, and below `PHASE_BITS` how
# many threads are inside. SLEEPERS: threads of the program that sleep until the next phase. FIRST, END: the program's
# phases by number; FIRST is 0 while the program's words change. MOST: threads that may take part. PROGRAM: its address.
LINE = 8
STATE, SLEEPERS = 0, LINE
FIRST, END, MOST, PROGRAM, STOPS, SYSTEM_CALL, FUTEX = range(2 * LINE, 2 * LINE + 7)
IS_ASLEEP = 3 * LINE  # of thread 0, the leader; the others' follow, each in a line of its own
PHASE_BITS = 16
INSIDE = (1 << PHASE_BITS) - 1
MOST_THREADS = 1024
# Turns of some 40 ns. Pieces end within the first, a step's work in Python within the second.
PHASE_SPINS, IDLE_SPINS = 2_000, 20_000
FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # of the system call
WAIT, WAKE = 128, 129  # its operations within a process

WORD = ir.IntType(64)


def _emit_word(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, WORD.as_pointer())


@intrinsic
def _load(_context: Any, address: Any) -> Any:
    """The int64 at an address, in one order for all threads, as are the two below."""

    def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.load_atomic(_emit_word(builder, values[0]), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def _store(_context: Any, address: Any, number: Any) -> Any:
    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        builder.store_atomic(values[1], _emit_word(builder, values[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _exchange_if(_context: Any, address: Any, known: Any, number: Any) -> Any:
    """Replace the int64 if it is still `known`; what it was."""

    def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        place = _emit_word(builder, values[0])
        return builder.extract_value(builder.cmpxchg(place, values[1], values[2], "seq_cst", "seq_cst"), 0)

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def _pause(_context: Any) -> Any:
    """Tell the processor that this thread spins."""

    def codegen(context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        if platform.machine() == "x86_64":
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_at(_context: Any, function: Any, argument: Any) -> Any:
    """Call the function at an address."""

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [WORD])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), [values[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _futex(_context: Any, system_call: Any, number: Any, address: Any, operation: Any, value: Any) -> Any:
    """futex(2) without a timeout, through the C library's `syscall` at an address."""

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(WORD, [WORD] * 7)
        none = ir.Constant(WORD, 0)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), [*values[1:], none, none, none])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@nb.njit(cache=True)
def _ask_system(team: int, address: int, operation: int, value: int) -> None:
    _futex(_load(team + 8 * SYSTEM_CALL), _load(team + 8 * FUTEX), address, operation, value)


@nb.njit(cache=True)
def _wait(team: int, thread: int, word: int, shift: int, known: int) -> None:
    """Return when word >> shift is no longer `known`, or sometimes earlier. Spin, then sleep; a shift of 0 means that
    the thread is idle, and does not hold up a program."""
    for _ in range(PHASE_SPINS if shift > 0 else IDLE_SPINS):
        if _load(team + 8 * word) >> shift != known:
            return
        _pause()
    _sleep(team, thread, word, shift, known)


@nb.njit(cache=True)
def _sleep(team: int, thread: int, word: int, shift: int, known: int) -> None:
    is_asleep = team + 8 * (IS_ASLEEP + thread * LINE)
    _store(is_asleep, 1)
    if shift > 0:
        raise_counter(team + 8 * SLEEPERS, 1)
    if _load(team + 8 * word) >> shift == known:
        _ask_system(team, is_asleep, WAIT, 1)
    if shift > 0:
        raise_counter(team + 8 * SLEEPERS, -1)
    _store(is_asleep, 0)


@nb.njit(cache=True)
def _wake(team: int, first: int, most: int) -> None:
    """Wake those of the threads from `first` to `most` that sleep."""
    for thread in range(first, most):
        is_asleep = team + 8 * (IS_ASLEEP + thread * LINE)
        if _load(is_asleep) == 1:
            _store(is_asleep, 0)
            _ask_system(team, is_asleep, WAKE, 1)


@nb.njit(cache=True)
def _run_phase(program: int, phase: int) -> None:
    places = nb.carray(pointer(program, np.int64(0)), phase + 3)
    start, end = places[1 + phase], places[2 + phase]
    calls = nb.carray(pointer(program, np.int64(0)), end)
    while start < end:
        call_at(calls[start], calls[start + 1])
        start += 2


@nb.njit(cache=True)
def _take_part(team: int, phase: int) -> int:
    """Run the phase, which this thread is inside of, and those that it begins as the last to leave the one before.
    Returns the next phase, which it is not inside of."""
    first, end, program = _load(team + 8 * FIRST), _load(team + 8 * END), _load(team + 8 * PROGRAM)
    most = _load(team + 8 * MOST)
    while phase < end:
        _run_phase(program, phase - first)
        phase += 1
        state, is_last = _load(team + 8 * STATE), False
        while True:
            is_last = state & INSIDE == 1
            after = (phase << PHASE_BITS) + (1 if phase < end else 0) if is_last else state - 1
            seen = _exchange_if(team + 8 * STATE, state, after)
            if seen == state:
                break
            state = seen
        if not is_last:
            return phase
        if _load(team + 8 * SLEEPERS) > 0:
            _wake(team, 0, most)
    return phase


@nb.njit(cache=True)
def _lead(team: int, program: int, most: int) -> None:
    first = (_load(team + 8 * STATE) >> PHASE_BITS) + 1
    end = first + nb.carray(pointer(program, np.int64(0)), 1)[0]
    _store(team + 8 * FIRST, 0)
    _store(team + 8 * END, end)
    _store(team + 8 * MOST, most)
    _store(team + 8 * PROGRAM, program)
    _store(team + 8 * FIRST, first)
    _store(team + 8 * STATE, (first << PHASE_BITS) + 1)
    _wake(team, 1, most)
    phase = _take_part(team, first)
    while True:
        state = _load(team + 8 * STATE)
        if state >> PHASE_BITS == end:
            return
        if state >> PHASE_BITS < phase:
            _wait(team, 0, STATE, PHASE_BITS, state >> PHASE_BITS)
        elif _exchange_if(team + 8 * STATE, state, state + 1) == state:
            phase = _take_part(team, state >> PHASE_BITS)


@nb.njit(cache=True)
def _help(team: int, thread: int) -> None:
    known, phase = 0, 0  # the program that this thread has seen to its end, and the phase that it may enter next
    while _load(team + 8 * STOPS) == 0:
        first, end, most = _load(team + 8 * FIRST), _load(team + 8 * END), _load(team + 8 * MOST)
        state = _load(team + 8 * STATE)
        now = state >> PHASE_BITS
        if first == 0 or _load(team + 8 * FIRST) != first or now < first:
            _pause()  # the program changes
        elif thread >= most:
            _sleep(team, thread, FIRST, 0, first)
        elif first == known:
            _wait(team, thread, FIRST, 0, first)
        elif now >= end:
            known = first
        elif now < phase:
            _wait(team, thread, STATE, PHASE_BITS, now)
        elif _exchange_if(team + 8 * STATE, state, state + 1) == state:
            phase = _take_part(team, now)


def lead(team: int, program: int, most: int) -> None:
    """The leader's part of a program: returns when all of it has run."""
    _lead(team, program, most)


def run_alone(_team: int, program: int, _most: int) -> None:
    """All of a program, on this thread."""
    for phase in range(nb.carray(pointer(program, np.int64(0)), 1)[0]):
        _run_phase(program, phase)


def help_leader(team: int, thread: int) -> None:
    """A helper's life."""
    _help(team, thread)


@cache
def _compiled(function: Any, num_words: int) -> Any:
    return nb.cfunc(types.void(*[types.int64] * num_words), cache=True)(function)


def _entry(function: Any, num_words: int) -> Any:
    """A compiled function that ctypes calls, without Python's GIL."""
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * num_words)(_compiled(function, num_words).address)


class Team:
    """The threads of one process. Helpers are started when a program first wants them."""

    def __init__(self) -> None:
        self._words = np.zeros((IS_ASLEEP + MOST_THREADS * LINE + LINE), np.int64)
        self._address = -(-self._words.ctypes.data // 64) * 64
        self._is_led = Lock()
        self._helpers: list[Thread] = []
        self._has_helpers = _can_sleep()
        self._process = os.getpid()
        self._lead, self._alone = _entry(lead, 3), _entry(run_alone, 3)
        if self._has_helpers:
            system_call = ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value
            self._word(SYSTEM_CALL).value, self._word(FUTEX).value = system_call or 0, FUTEX_NUMBERS[platform.machine()]
            atexit.register(self.close)

    def run(self, program: int, num_threads: int) -> None:
        """Run a program, on up to so many threads, without Python's GIL. program: the address of its words, see
        `program`. If another thread leads the team meanwhile, this one runs its program alone."""
        if num_threads == 1 or not self._has_helpers or not self._is_led.acquire(blocking=False):
            self._alone(0, program, 1)
            return
        try:
            num_threads = min(num_threads, MOST_THREADS)
            if len(self._helpers) < num_threads - 1:
                self._start_helpers(num_threads - 1)
            self._lead(self._address, program, num_threads)
        finally:
            self._is_led.release()

    def close(self) -> None:
        """End the helpers; programs then run on the calling thread."""
        if self._process != os.getpid():
            return  # a fork has no helpers to end
        with self._is_led:
            self._has_helpers = False
            self._word(STOPS).value = 1
            self._word(FIRST).value = -1
            system_call = ctypes.CDLL(None).syscall
            for thread in range(1, 1 + len(self._helpers)):
                is_asleep = self._word(IS_ASLEEP + thread * LINE)
                is_asleep.value = 0
                system_call(FUTEX_NUMBERS[platform.machine()], ctypes.byref(is_asleep), WAKE, 1, None, None, 0)
        for helper in self._helpers:
            helper.join()

    def _start_helpers(self, count: int) -> None:
        for thread in range(1 + len(self._helpers), 1 + count):
            help_them = _entry(help_leader, 2)
            helper = Thread(target=help_them, args=(self._address, thread), name=f"team-{thread}", daemon=True)
            helper.start()
            self._helpers.append(helper)

    def _word(self, word: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self._address + 8 * word)


def _can_sleep() -> bool:
    return sys.platform == "linux" and platform.machine() in FUTEX_NUMBERS


@cache
def team() -> Team:
    """Of this process."""
    return Team()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=team.cache_clear)  # threads do not survive a fork
