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
from numba import types

from decoding.kernels.cpu.atomics import call_at, exchange_if, futex, load, pause, store
from decoding.kernels.cpu.lanes import pointer, raise_counter
from decoding.kernels.numba_kernel import kernel

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


@kernel
def _ask_system(team: int, address: int, operation: int, value: int) -> None:
    futex(load(team + 8 * SYSTEM_CALL), load(team + 8 * FUTEX), address, operation, value)


@kernel
def _wait(team: int, thread: int, word: int, shift: int, known: int) -> None:
    """Return when word >> shift is no longer `known`, or sometimes earlier. Spin, then sleep; a shift of 0 means that
    the thread is idle, and does not hold up a program."""
    for _ in range(PHASE_SPINS if shift > 0 else IDLE_SPINS):
        if load(team + 8 * word) >> shift != known:
            return
        pause()
    _sleep(team, thread, word, shift, known)


@kernel
def _sleep(team: int, thread: int, word: int, shift: int, known: int) -> None:
    is_asleep = team + 8 * (IS_ASLEEP + thread * LINE)
    store(is_asleep, 1)
    if shift > 0:
        raise_counter(team + 8 * SLEEPERS, 1)
    if load(team + 8 * word) >> shift == known:
        _ask_system(team, is_asleep, WAIT, 1)
    if shift > 0:
        raise_counter(team + 8 * SLEEPERS, -1)
    store(is_asleep, 0)


@kernel
def _wake(team: int, first: int, most: int) -> None:
    """Wake those of the threads from `first` to `most` that sleep."""
    for thread in range(first, most):
        is_asleep = team + 8 * (IS_ASLEEP + thread * LINE)
        if load(is_asleep) == 1:
            store(is_asleep, 0)
            _ask_system(team, is_asleep, WAKE, 1)


@kernel
def _run_phase(program: int, phase: int) -> None:
    places = nb.carray(pointer(program, np.int64(0)), phase + 3)
    start, end = places[1 + phase], places[2 + phase]
    calls = nb.carray(pointer(program, np.int64(0)), end)
    while start < end:
        call_at(calls[start], calls[start + 1])
        start += 2


@kernel
def _take_part(team: int, phase: int) -> int:
    """Run the phase, which this thread is inside of, and those that it begins as the last to leave the one before.
    Returns the next phase, which it is not inside of."""
    first, end, program = load(team + 8 * FIRST), load(team + 8 * END), load(team + 8 * PROGRAM)
    most = load(team + 8 * MOST)
    while phase < end:
        _run_phase(program, phase - first)
        phase += 1
        state, is_last = load(team + 8 * STATE), False
        while True:
            is_last = state & INSIDE == 1
            after = (phase << PHASE_BITS) + (1 if phase < end else 0) if is_last else state - 1
            seen = exchange_if(team + 8 * STATE, state, after)
            if seen == state:
                break
            state = seen
        if not is_last:
            return phase
        if load(team + 8 * SLEEPERS) > 0:
            _wake(team, 0, most)
    return phase


@kernel
def _lead(team: int, program: int, most: int) -> None:
    first = (load(team + 8 * STATE) >> PHASE_BITS) + 1
    end = first + nb.carray(pointer(program, np.int64(0)), 1)[0]
    store(team + 8 * FIRST, 0)
    store(team + 8 * END, end)
    store(team + 8 * MOST, most)
    store(team + 8 * PROGRAM, program)
    store(team + 8 * FIRST, first)
    store(team + 8 * STATE, (first << PHASE_BITS) + 1)
    _wake(team, 1, most)
    phase = _take_part(team, first)
    while True:
        state = load(team + 8 * STATE)
        if state >> PHASE_BITS == end:
            return
        if state >> PHASE_BITS < phase:
            _wait(team, 0, STATE, PHASE_BITS, state >> PHASE_BITS)
        elif exchange_if(team + 8 * STATE, state, state + 1) == state:
            phase = _take_part(team, state >> PHASE_BITS)


@kernel
def _help(team: int, thread: int) -> None:
    known, phase = 0, 0  # the program that this thread has seen to its end, and the phase that it may enter next
    while load(team + 8 * STOPS) == 0:
        first, end, most = load(team + 8 * FIRST), load(team + 8 * END), load(team + 8 * MOST)
        state = load(team + 8 * STATE)
        now = state >> PHASE_BITS
        if first == 0 or load(team + 8 * FIRST) != first or now < first:
            pause()  # the program changes
        elif thread >= most:
            _sleep(team, thread, FIRST, 0, first)
        elif first == known:
            _wait(team, thread, FIRST, 0, first)
        elif now >= end:
            known = first
        elif now < phase:
            _wait(team, thread, STATE, PHASE_BITS, now)
        elif exchange_if(team + 8 * STATE, state, state + 1) == state:
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


def warm_up() -> None:
    """Compile what a team's threads run, or load it."""
    for function, num_words in ((lead, 3), (run_alone, 3), (help_leader, 2)):
        _compiled(function, num_words)


@cache
def team() -> Team:
    """Of this process."""
    return Team()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=team.cache_clear)  # threads do not survive a fork
