"""A ring of integers in shared memory, by which one process tells several others the same words in the same order.

Knows nothing of what they say. For each reader two counters of the kernel say how many words it may read and how many
may be written, so that either side sleeps until there are some. Invariant: a word is overwritten only when every reader
has read it.
"""

from __future__ import annotations

import mmap
import os
import select
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.errors import RankDied

Words = NDArray[np.int64]
NUM_WORDS = 2**18  # of a ring, 2 MiB: what is longer is written piece by piece


class ReaderEnd(NamedTuple):
    """Descriptors that a reader is started with. memory: of the words. written, read: counters of them."""

    memory: int
    written: int
    read: int

    @classmethod
    def create(cls, memory: int) -> ReaderEnd:
        return cls(memory, os.eventfd(0), os.eventfd(0))


class RingReader:
    def __init__(self, end: ReaderEnd) -> None:
        self._words, self._end = _words_of(end.memory), end
        self._place = self._num_ready = 0
        os.eventfd_write(end.read, len(self._words))  # there is room for all

    def read(self, num_words: int) -> Words:
        """The next words. Waits for them."""
        found, start = np.empty(num_words, np.int64), 0
        while start < num_words:
            if not self._num_ready:
                self._num_ready = os.eventfd_read(self._end.written)
            piece = min(num_words - start, self._num_ready, len(self._words) - self._place)
            found[start : start + piece] = self._words[self._place : self._place + piece]
            os.eventfd_write(self._end.read, piece)
            self._num_ready -= piece
            self._place = (self._place + piece) % len(self._words)
            start += piece
        return found


class RingWriter:
    """memory: a descriptor, of which the writer is the owner. ends: of the readers. processes: descriptors of theirs,
    which can be read once a process has ended."""

    def __init__(self, memory: int, ends: Sequence[ReaderEnd], processes: Sequence[int]) -> None:
        self._words, self._memory, self._ends, self._processes = _words_of(memory), memory, ends, processes
        self._rooms = [0] * len(ends)
        self._place = 0
        self._deaths = select.poll()
        for process in processes:
            self._deaths.register(process, select.POLLIN)

    def wait_for_readers(self) -> None:
        """Wait until every reader has begun. Raises RankDied."""
        self._make_room()

    def write(self, words: Words) -> None:
        """Write the next words. Waits for room. Raises RankDied where a reader's process has ended."""
        self._check(self._deaths.poll(0))
        start = 0
        while start < len(words):
            piece = min(len(words) - start, self._make_room(), len(self._words) - self._place)
            self._words[self._place : self._place + piece] = words[start : start + piece]
            for end in self._ends:
                os.eventfd_write(end.written, piece)
            self._rooms = [room - piece for room in self._rooms]
            self._place = (self._place + piece) % len(self._words)
            start += piece

    def close(self) -> None:
        for descriptor in {self._memory, *self._processes, *(each for end in self._ends for each in end[1:])}:
            os.close(descriptor)

    def _make_room(self) -> int:
        """How many words may be written, once there are any."""
        for place, end in enumerate(self._ends):
            if self._rooms[place] == 0:
                waiting = select.poll()
                waiting.register(end.read, select.POLLIN)
                waiting.register(self._processes[place], select.POLLIN)
                self._check([each for each in waiting.poll() if each[0] != end.read])
                self._rooms[place] = os.eventfd_read(end.read)
        return min(self._rooms)

    def _check(self, ended: Sequence[tuple[int, int]]) -> None:
        if ended:
            rank = 1 + self._processes.index(ended[0][0])
            raise RankDied(f"the process of rank {rank}, which holds a part of the model, has ended")


def new_memory(num_words: int = NUM_WORDS) -> int:
    """A descriptor of memory for so many words."""
    memory = os.memfd_create("gander-ring")
    os.ftruncate(memory, num_words * np.dtype(np.int64).itemsize)
    return memory


def _words_of(memory: int) -> Words:
    return np.frombuffer(mmap.mmap(memory, 0), np.int64)
