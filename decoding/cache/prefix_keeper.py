"""Keeps the blocks of finished prompts in files, and brings them back for prompts that begin the same, also after a
restart and in another worker.

Owns what is still to be written, what is being read, and a thread for both. Blocks are copied between steps, a moment
at a time; files are written and read beside them. Invariant: a block is in the index only once its rows are in the
store, with the bits that they had when they were computed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from decoding.cache.block_pool import BLOCK_LEN, BlockPool, BlockTable
from decoding.cache.kv_store import KvStore
from decoding.cache.prefix_file import Bytes
from decoding.cache.prefix_folder import Place, PrefixFolder
from decoding.core.tree import IntArray

logger = logging.getLogger("gander.prefixes")
LEAST_BLOCKS = 16  # new ones, for which a file is written
FILE_BYTES = 16 * 2**20  # of blocks in a file, about; it has one at least
COPY_SECONDS, IDLE_COPY_SECONDS = 0.001, 0.01  # that blocks are copied for at a time
COPY_SHARE = 0.02  # of the time while requests run
MOST_WRITING = 2  # files at a time that are copied and not written yet
PAUSE_SECONDS = 60.0  # without writing, after a write that failed


@dataclass(slots=True)
class Reading:
    """Blocks that are on their way from files to the store, in a table of their own. ended: with how many of them."""

    table: BlockTable
    tokens: IntArray
    digests: frozenset[bytes]
    num_held: int  # blocks of the table that were found in memory
    ended: Future[int]


@dataclass(slots=True)
class _Unwritten:
    """Blocks of a prompt that go into files. blocks_NB: of the next file, of which `number` are copied."""

    digests: list[bytes]
    blocks_NB: Bytes
    number: int = 0


@dataclass(slots=True)
class PrefixKeeper:
    """Its methods return at once, but for `close`. To be called by the engine's thread.

    num_hits: prompts for which blocks were read; num_tokens: of these blocks; seconds: that reading them took.
    """

    folder: PrefixFolder
    store: KvStore
    pool: BlockPool
    num_hits: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "prefixes"))
    _unwritten: deque[_Unwritten] = field(default_factory=deque)
    _queued: set[bytes] = field(default_factory=set)  # digests of what is unwritten, or being written
    _writing: deque[tuple[list[bytes], Future[str]]] = field(default_factory=deque)
    _readings: list[Reading] = field(default_factory=list)
    _next_copy: float = 0.0
    _paused_until: float = 0.0  # nothing is kept before

    def fetch(self, namespace: bytes, tokens: IntArray, num_spare: int) -> Reading | None:
        """Begin to read the blocks of these tokens that files have and memory has not, at most so many; None where
        there are none. Once `settle` was called after it has ended, the index has them."""
        table = self.pool.open(namespace)
        self.pool.find(table, tokens)
        missing = list(self.pool.digests_after(table, tokens))
        if missing and (other := next((each for each in self._readings if missing[0] in each.digests), None)):
            self.pool.release(table)
            return other
        places = self._places(missing[: max(num_spare, 0)])
        num_held = table.num_blocks
        if not places or not self.pool.resize(table, (num_held + len(places)) * BLOCK_LEN):
            self.pool.release(table)
            return None
        ended = self._thread.submit(self._read, places, table.blocks[num_held:].copy())
        reading = Reading(table, tokens, frozenset(missing[: len(places)]), num_held, ended)
        self._readings.append(reading)
        return reading

    def keep(self, table: BlockTable) -> None:
        """Have the table's blocks that the index knows written, a moment at a time, as far as no file has them."""
        if time.monotonic() < self._paused_until:
            return
        self._refresh()
        known = list(takewhile(self._is_known, table.digests))
        if names := {place.name for place in map(self.folder.find, known) if place is not None}:
            self._thread.submit(self.folder.note_use, names)
        new = table.digests[len(known) :]
        if len(new) >= LEAST_BLOCKS:
            self._unwritten.append(_Unwritten(new, self._room_for(new)))
            self._queued.update(new)

    def settle(self) -> None:
        """Take note of what the thread has done."""
        for reading in [each for each in self._readings if each.ended.done()]:
            self._readings.remove(reading)
            num_tokens = (reading.num_held + reading.ended.result()) * BLOCK_LEN
            self.pool.resize(reading.table, num_tokens)
            self.pool.publish(reading.table, reading.tokens[:num_tokens])
            self.pool.release(reading.table)
        while self._writing and self._writing[0][1].done():
            digests, written = self._writing.popleft()
            self._queued.difference_update(digests)
            if (error := written.exception()) is None:
                self.folder.note(written.result(), digests)
                continue
            logger.warning("Prompts are not kept for %g s: %s.", PAUSE_SECONDS, error)
            while self._unwritten:
                self._give_up()
            self._paused_until = time.monotonic() + PAUSE_SECONDS

    def copy(self, is_idle: bool = False) -> None:
        """Copy blocks for a moment, if it is time to, and have full files written."""
        self.settle()
        started = now = time.monotonic()
        if not self._unwritten or now < self._next_copy:
            return
        end = now + (IDLE_COPY_SECONDS if is_idle else COPY_SECONDS)
        while self._unwritten and len(self._writing) < MOST_WRITING and now < end:
            self._copy_block(self._unwritten[0])
            now = time.monotonic()
        self._next_copy = now if is_idle else now + (now - started) / COPY_SHARE

    @property
    def has_work(self) -> bool:
        """Whether something is still to be copied or written."""
        return bool(self._unwritten or self._writing)

    def close(self, seconds: float) -> None:
        """Write what is left, as far as that takes no longer."""
        end = time.monotonic() + seconds
        self._next_copy = 0.0
        while self.has_work and time.monotonic() < end:
            self.copy(is_idle=True)
            wait([written for _, written in self._writing], 0.01)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _places(self, digests: Sequence[bytes]) -> list[Place]:
        """Where the first of these blocks are, up to the first that no file has."""
        self._refresh()
        places = []
        for digest in digests:
            if (place := self.folder.find(digest)) is None:
                break
            places.append(place)
        return places

    def _refresh(self) -> None:
        try:
            self.folder.refresh()
        except OSError as error:
            logger.warning("The folder of prompts cannot be read: %s.", error.strerror)

    def _read(self, places: Sequence[Place], blocks: IntArray) -> int:
        """Read blocks into the store, up to the first that cannot be had; how many. Runs in the thread."""
        started, number = time.perf_counter(), 0
        buffer = np.empty(self.folder.block_bytes, np.uint8)
        while number < len(places):
            name = places[number].name
            try:
                with self.folder.open(name) as file:
                    while number < len(places) and places[number].name == name:
                        file.read(places[number].number, buffer)
                        self.store.write_block(int(blocks[number]), buffer)
                        number += 1
            except FileNotFoundError:
                break
            except (OSError, ValueError) as error:
                logger.warning("A kept prompt is passed over from its token %d on: %s.", number * BLOCK_LEN, error)
                if isinstance(error, ValueError):
                    self.folder.delete(name)
                break
        self.folder.note_use({place.name for place in places[:number]})
        self.num_hits += number > 0
        self.num_tokens += number * BLOCK_LEN
        self.seconds += time.perf_counter() - started
        return number

    def _copy_block(self, prompt: _Unwritten) -> None:
        """Copy the prompt's next block, and hand a file's blocks to the thread with the last one. A block that memory
        has no more is the prompt's end."""
        block = self.pool.block_of(prompt.digests[prompt.number])
        if block is None:
            self._give_up()
            return
        size = len(prompt.blocks_NB)
        self.store.read_block(block, prompt.blocks_NB[prompt.number])
        prompt.number += 1
        if prompt.number == size:
            digests, prompt.digests = prompt.digests[:size], prompt.digests[size:]
            self._writing.append((digests, self._thread.submit(self.folder.write, digests, prompt.blocks_NB)))
            prompt.number, prompt.blocks_NB = 0, self._room_for(prompt.digests)
            if not prompt.digests:
                self._unwritten.popleft()

    def _room_for(self, digests: Sequence[bytes]) -> Bytes:
        """For the blocks of the next file. Memory is taken as it is written to."""
        size = min(len(digests), max(1, FILE_BYTES // self.folder.block_bytes))
        return np.empty((size, self.folder.block_bytes), np.uint8)

    def _give_up(self) -> None:
        """The rest of the prompt whose turn it is stays unwritten."""
        self._queued.difference_update(self._unwritten.popleft().digests)

    def _is_known(self, digest: bytes) -> bool:
        return digest in self._queued or self.folder.find(digest) is not None
