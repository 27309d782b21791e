"""The folder of `--prefix-dir`: files of cached blocks in a folder for each kind of model, the least recently used of
which are deleted.

Owns which files are deleted, and where a block is by its digest. Servers and workers may share the folder: what others
wrote is seen by `refresh`, and what they deleted is missed when it is read. Invariant: what is not ours stays as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from decoding.cache.prefix_file import Bytes, PrefixFile, write_file
from decoding.errors import ConfigError

logger = logging.getLogger("gander.prefixes")
KIND_NAME = re.compile("[0-9a-f]{32}")
FILE_NAME = re.compile(r"[0-9a-f]{32}\.blocks")
UNFINISHED = re.compile(r"tmp[0-9a-f]{16}\.part")
UNFINISHED_SECONDS = 600.0  # after which nobody writes it any more


class Place(NamedTuple):
    """Where a block is: the name of its file, and its number in it."""

    name: str
    number: int


class PrefixFolder:
    """kind: 16 bytes, a digest of the model and of how its blocks are computed and laid out. most_bytes: of the files
    of all kinds. num_bytes: of these files when they were last counted."""

    def __init__(self, path: Path, most_bytes: int, kind: bytes, block_bytes: int) -> None:
        """Raises ConfigError for a folder that cannot be made, written to or read."""
        self._root, self._path = path, path / kind.hex()
        self._most_bytes, self._kind, self.block_bytes = most_bytes, kind, block_bytes
        self._places: dict[bytes, Place] = {}
        self._names: dict[str, list[bytes]] = {}  # the digests of each file's blocks
        self._seen_ns = 0
        self.num_bytes = 0
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self._path).close()
            self.refresh()
            self.tidy()
        except OSError as error:
            raise ConfigError(f"the folder of prompts {path} cannot be used: {error.strerror}") from None

    def find(self, digest: bytes) -> Place | None:
        """Where the block with this digest is, as far as is known."""
        return self._places.get(digest)

    def refresh(self) -> None:
        """Learn what others have written and deleted since. Raises OSError."""
        changed = self._path.stat().st_mtime_ns
        if changed == self._seen_ns:
            return
        names = {entry.name for entry in os.scandir(self._path) if FILE_NAME.fullmatch(entry.name)}
        for name in self._names.keys() - names:
            self.forget(name)
        for name in names - self._names.keys():
            try:
                with PrefixFile(self._path / name, self._kind, self.block_bytes) as file:
                    self.note(name, file.header.digests)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self._names[name] = []  # not to be looked at again
                logger.warning("The prompt in %s is passed over: %s.", self._path / name, _reason(error))
        self._seen_ns = changed

    def open(self, name: str) -> PrefixFile:
        """Raises OSError, and ValueError for a file that is none of ours."""
        return PrefixFile(self._path / name, self._kind, self.block_bytes)

    def write(self, digests: Sequence[bytes], blocks_NB: Bytes) -> str:
        """Write a file of these blocks; its name. Makes room for it. Raises OSError. Knows of it once `note` is called,
        so that it can be called beside `find`."""
        name = blake2b(digests[0] + digests[-1], digest_size=16).hexdigest() + ".blocks"
        write_file(self._path / name, self._kind, digests, blocks_NB)
        self.tidy()
        return name

    def note(self, name: str, digests: list[bytes]) -> None:
        """A file has these blocks."""
        self._names[name] = digests
        for number, digest in enumerate(digests):
            self._places.setdefault(digest, Place(name, number))

    def forget(self, name: str) -> None:
        """A file is gone, or of no use."""
        for digest in self._names.pop(name, []):
            if (place := self._places.get(digest)) is not None and place.name == name:
                del self._places[digest]

    def note_use(self, names: Iterable[str]) -> None:
        """These files are among the last to be deleted from here on."""
        for name in names:
            with contextlib.suppress(OSError):
                os.utime(self._path / name)

    def delete(self, name: str) -> None:
        """Delete a damaged file of ours."""
        with contextlib.suppress(OSError):
            (self._path / name).unlink()

    def tidy(self) -> None:
        """Delete the least recently used files of any kind that are too many bytes, and what crashes left."""
        found: list[tuple[float, int, Path]] = []
        now = time.time()
        for kind in os.scandir(self._root):
            if KIND_NAME.fullmatch(kind.name) is None or not kind.is_dir(follow_symlinks=False):
                continue
            for entry in os.scandir(kind.path):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if UNFINISHED.fullmatch(entry.name) and status.st_mtime < now - UNFINISHED_SECONDS:
                        Path(entry.path).unlink()
                    elif FILE_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        found.append((status.st_mtime, status.st_size, Path(entry.path)))
        num_bytes = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if num_bytes <= self._most_bytes:
                break
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            num_bytes -= size
        self.num_bytes = num_bytes


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
