"""The folder of `--sessions-dir`: it has a folder for each key with a file for each session, all named by hashes.

Owns the files' names and which of them are deleted. Its methods block, so they are called in a thread. It remembers
nothing beside the files, so servers of one model may share the folder. Invariant: a file has its name only once it is
whole.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from decoding.core.session_info import SessionState
from decoding.errors import ConfigError
from server.engine_client.sessions.session_file import seal, unseal

LOG = logging.getLogger("gander.sessions")
SUFFIX = ".session"
UNFINISHED = ".part"
NAME_DIGITS = 32


@dataclass(frozen=True, slots=True)
class FolderLimits:
    """per_tenant and in_all bound the bytes of the files, of one key and of all. A file is kept for time_to_live
    seconds after its last use."""

    per_tenant: int
    in_all: int
    time_to_live: float


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    last_used: float
    num_bytes: int


class SessionFolder:
    def __init__(self, path: Path, limits: FolderLimits) -> None:
        """Raises ConfigError for a folder that cannot be made or written to."""
        self._path = path
        self._limits = limits
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            raise ConfigError(f"the folder of sessions {path} cannot be written to: {error.strerror}") from None

    def path_of(self, tenant: str, session_id: str) -> Path:
        """Where a session's file is, or would be. The path tells neither the key nor the session."""
        return self._path / _hashed(tenant) / (_hashed(f"{tenant}\0{session_id}") + SUFFIX)

    def write(self, state: SessionState, model: str) -> None:
        """Write a session's file, in the place of an earlier one. A failure is logged."""
        path = self.path_of(state.tenant, state.session_id)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor, unfinished = tempfile.mkstemp(UNFINISHED, dir=path.parent)  # for this user alone
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(seal(state, model, path.name))
                Path(unfinished).replace(path)
            except OSError:
                Path(unfinished).unlink()
                raise
        except OSError as error:
            LOG.warning("A session cannot be written to %s: %s.", self._path, error.strerror)

    def read(self, tenant: str, session_id: str, model: str) -> SessionState | None:
        """The session of a file, or None where there is no file or it cannot be used, which is logged."""
        path = self.path_of(tenant, session_id)
        try:
            if path.stat().st_mtime < time.time() - self._limits.time_to_live:
                return None
            state = unseal(path.read_bytes(), model, tenant, session_id, path.name)
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            LOG.warning("The session in %s cannot be read: %s.", path, error.strerror)
            return None
        except ValueError as error:
            LOG.warning("The session in %s is not gone on with: %s.", path, error)
            return None
        return state

    def delete(self, tenant: str, session_id: str) -> bool:
        """Delete a session's file. Returns whether there was one."""
        path = self.path_of(tenant, session_id)
        is_there = path.exists()
        path.unlink(missing_ok=True)
        return is_there

    def tidy(self) -> None:
        """Delete the files that are too old and, where they are too many bytes, the least recently used ones."""
        kept: list[_File] = []
        for folder in self._path.iterdir():
            if folder.is_dir():
                kept += self._within(_files_in(folder), self._limits.per_tenant)
        self._within(kept, self._limits.in_all)

    def _within(self, files: list[_File], most_bytes: int) -> list[_File]:
        """Delete what is too old or too much. Returns the files that stay."""
        oldest = time.time() - self._limits.time_to_live
        kept, num_bytes = [], 0
        for file in sorted(files, key=lambda each: each.last_used, reverse=True):
            num_bytes += file.num_bytes
            if file.last_used >= oldest and num_bytes <= most_bytes:
                kept.append(file)
            else:
                Path(file.path).unlink(missing_ok=True)
        return kept


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:NAME_DIGITS]


def _files_in(folder: Path) -> list[_File]:
    """All files, unfinished ones too: another server may be writing them, so they are deleted when they are old."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat()
            except FileNotFoundError:  # another server's tidying
                continue
            files.append(_File(entry.path, status.st_mtime, status.st_size))
    return files
