"""The ring: readers get the words that were written, whatever the sizes, and a reader that ends is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from decoding.errors import RankDied
from decoding.model.parallel.ring import ReaderEnd, RingReader, RingWriter, new_memory

SMALL = 512  # words; memory comes in pages of so many


@pytest.fixture
def ring() -> Iterator[tuple[RingWriter, list[RingReader]]]:
    """A writer and two readers, in this process."""
    memory = new_memory(SMALL)
    ends = [ReaderEnd.create(memory) for _ in range(2)]
    writer = RingWriter(memory, ends, [os.pidfd_open(os.getpid()) for _ in ends])
    yield writer, [RingReader(end) for end in ends]
    writer.close()


def test_every_reader_reads_what_was_written_however_long_it_is(ring: tuple[RingWriter, list[RingReader]]) -> None:
    writer, readers = ring
    generator = np.random.default_rng(0)
    lengths = [1, SMALL, 3 * SMALL + 5, *generator.integers(0, 2 * SMALL, 60).tolist()]
    messages = [generator.integers(-(2**62), 2**62, length) for length in lengths]
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(lambda reader=reader: [reader.read(length) for length in lengths]) for reader in readers]
        for message in messages:
            writer.write(message)
        for each in found:
            for read, message in zip(each.result(60), messages, strict=True):
                np.testing.assert_array_equal(read, message)


def test_words_need_not_be_read_in_the_pieces_in_which_they_were_written(
    ring: tuple[RingWriter, list[RingReader]],
) -> None:
    writer, readers = ring
    writer.write(np.arange(10))
    writer.write(np.arange(10, 30))
    for reader in readers:
        assert [reader.read(count).tolist() for count in (3, 20, 7)] == [
            [0, 1, 2],
            list(range(3, 23)),
            list(range(23, 30)),
        ]


def test_a_reader_that_ends_is_noticed_before_it_begins_and_while_room_is_short() -> None:
    memory = new_memory(SMALL)
    for begins in (False, True):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            end = ReaderEnd.create(memory)
            writer = RingWriter(memory, [end], [os.pidfd_open(process.pid)])
            if begins:
                RingReader(end)
                writer.wait_for_readers()
                writer.write(np.zeros(SMALL, np.int64))
            process.communicate(b"\n")
            with pytest.raises(RankDied, match="rank 1"):
                writer.wait_for_readers()
            with pytest.raises(RankDied, match="rank 1"):
                writer.write(np.zeros(1, np.int64))
