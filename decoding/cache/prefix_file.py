"""A file of cached blocks: keys and values of consecutive blocks of a prompt, with the digests that name them.

Knows nothing of folders or stores. Invariant: a file has its name only once it is whole, and a block is read as it was
written, for the same model, or refused.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

MARK = b"gander prefix 1\n"  # the number changes with the format
LENGTH_BYTES = 8  # of the header's length, which follows the mark
MOST_HEADER_BYTES = 2**22

Bytes = NDArray[np.uint8]


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """kind: a digest of the model and of how its blocks are computed and laid out. digests, checks: of each block, in
    the file's order; a check is the CRC-32 of its bytes."""

    kind: bytes
    block_bytes: int
    digests: list[bytes]
    checks: list[int]


def write_file(path: Path, kind: bytes, digests: Sequence[bytes], blocks_NB: Bytes) -> int:
    """Write a file for this user alone; its bytes. blocks_NB: [N, bytes of a block]. Raises OSError, and leaves nothing
    then."""
    checks = [zlib.crc32(block) for block in blocks_NB]
    header = msgspec.msgpack.encode(Header(kind, blocks_NB.shape[1], list(digests), checks))
    unfinished = path.with_name(f"tmp{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for part in (MARK + len(header).to_bytes(LENGTH_BYTES) + header, blocks_NB.data.cast("B")):
                while len(part):
                    part = part[file.write(part) :]
        unfinished.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    return len(MARK) + LENGTH_BYTES + len(header) + blocks_NB.nbytes


class PrefixFile:
    """A file that is open for reading. Raises OSError, and ValueError for one that is not of this kind."""

    def __init__(self, path: Path, kind: bytes, block_bytes: int) -> None:
        self._file = path.open("rb", buffering=0)
        try:
            self.header = self._read_header(kind, block_bytes)
            self._first = self._file.tell()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> PrefixFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read_header(self, kind: bytes, block_bytes: int) -> Header:
        if self._file.read(len(MARK)) != MARK:
            raise ValueError("it is none of this version")
        length = int.from_bytes(self._file.read(LENGTH_BYTES))
        if length > MOST_HEADER_BYTES:
            raise ValueError("its header is damaged")
        header = msgspec.msgpack.decode(self._file.read(length), type=Header)  # a MsgspecError is a ValueError
        if (header.kind, header.block_bytes) != (kind, block_bytes) or len(header.digests) != len(header.checks):
            raise ValueError("it is of another model")
        return header

    def read(self, number: int, block: Bytes) -> None:
        """Read the block at this place into `block`. Raises ValueError for one that is not as it was written."""
        start = self._first + number * len(block)
        if self._file.tell() != start:
            self._file.seek(start)
        view = block.data
        while len(view) and (count := self._file.readinto(view)):
            view = view[count:]
        if len(view) or zlib.crc32(block.data) != self.header.checks[number]:
            raise ValueError("it was cut short or changed")
