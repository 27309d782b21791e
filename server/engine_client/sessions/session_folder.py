"""The folder of `--sessions-dir`: it has a folder for each key with a file for each session, all named by hashes.

Owns which files are deleted. Its methods block, so they are called in a thread, and log what goes wrong. It remembers
nothing beside the files, so servers of one model may share the folder. Invariant: what is not ours stays as it is.
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
from server.engine_client.sessions.session_file import NO_KEY, seal, unseal
from server.engine_client.sessions.tenant_folder import FOLDER_NAME, SUFFIX, FoundFile, TenantFolder

LOG = logging.getLogger("gander.sessions")
MARKER = "gander-sessions"  # an empty file that says whose the folder is
NAME_DIGITS = 32


@dataclass(frozen=True, slots=True)
class FolderLimits:
    """per_tenant and in_all bound the bytes of the files, of one key and of all. A file is kept for time_to_live
    seconds after its last use."""

    per_tenant: int
    in_all: int
    time_to_live: float


class SessionFolder:
    """key: signs the files, and refuses those that it did not sign. model: the name of one of several models whose
    sessions share the folder, "" for one."""

    def __init__(self, path: Path, limits: FolderLimits, key: bytes = NO_KEY, model: str = "") -> None:
        """Raises ConfigError for a folder that cannot be made or written to, or that holds what is not ours and no
        marker of ours. One without a marker is taken for ours where it is empty or holds nothing but sessions."""
        self._path = path
        self._limits = limits
        self._key = key
        self._model = model
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_marked():
                stranger = self._stranger()
                if stranger is not None and not self._is_marked():  # by another server that starts now
                    raise ConfigError(
                        f"the folder of sessions {path} holds {stranger.relative_to(path)}, which is no session: name "
                        f"another folder, or make an empty file {MARKER} in it if sessions may lie beside what is there"
                    )
                (path / MARKER).touch(mode=0o600)
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            raise ConfigError(f"the folder of sessions {path} cannot be written to: {error.strerror}") from None

    def path_of(self, tenant: str, session_id: str) -> Path:
        """Where a session's file is, or would be. The path tells neither the key nor the session."""
        name = f"{tenant}\0{session_id}\0{self._model}" if self._model else f"{tenant}\0{session_id}"
        return self._path / _hashed(tenant) / (_hashed(name) + SUFFIX)

    def write(self, state: SessionState, model: str) -> bool:
        """Write a session's file, in the place of an earlier one. Returns whether it could be written."""
        path = self.path_of(state.tenant, state.session_id)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with TenantFolder(path.parent) as folder:
                folder.write(path.name, seal(state, model, path.name, self._key))
        except OSError as error:
            LOG.warning("A session cannot be written to %s: %s.", self._path, error.strerror)
            return False
        return True

    def read(self, tenant: str, session_id: str, model: str) -> SessionState | None:
        """The session of a file, or None where there is no file or it cannot be used."""
        path = self.path_of(tenant, session_id)
        try:
            with TenantFolder(path.parent) as folder, os.fdopen(folder.open(path.name), "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_mtime < time.time() - self._limits.time_to_live:
                    return None
                if status.st_size > self._limits.per_tenant:
                    raise ValueError("it is larger than the sessions of a key may be")
                state = unseal(file.read(self._limits.per_tenant), model, tenant, session_id, path.name, self._key)
                os.utime(file.fileno())
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
        """Delete a session's file. Returns whether there was one. Raises OSError where it stays."""
        path = self.path_of(tenant, session_id)
        try:
            with TenantFolder(path.parent) as folder:
                folder.delete(path.name)
        except FileNotFoundError:
            return False
        return True

    def tidy(self) -> None:
        """Delete the files that are too old and, where they are too many bytes, the least recently used ones."""
        kept: list[FoundFile] = []
        try:
            with os.scandir(self._path) as entries:
                folders = [Path(each.path) for each in entries if _is_folder(each)]
        except OSError as error:
            LOG.warning("The folder of sessions %s cannot be read: %s.", self._path, error.strerror)
            return
        for path in folders:
            try:
                with TenantFolder(path) as folder:
                    files = folder.files()
            except OSError as error:
                LOG.warning("The sessions in %s cannot be tidied: %s.", path, error.strerror)
                continue
            kept += self._within(files, self._limits.per_tenant)
        self._within(kept, self._limits.in_all)

    def _within(self, files: list[FoundFile], most_bytes: int) -> list[FoundFile]:
        """Delete what is too old or too much. Returns the files that stay."""
        oldest = time.time() - self._limits.time_to_live
        kept, num_bytes = [], 0
        for file in sorted(files, key=lambda each: each.last_used, reverse=True):
            num_bytes += file.num_bytes
            if file.last_used >= oldest and num_bytes <= most_bytes:
                kept.append(file)
                continue
            try:
                with TenantFolder(file.folder) as folder:
                    folder.delete(file.name)
            except FileNotFoundError:  # another server's tidying
                continue
            except OSError as error:
                LOG.warning("An old session in %s cannot be deleted: %s.", file.folder, error.strerror)
        return kept

    def _is_marked(self) -> bool:
        marker = self._path / MARKER
        return marker.is_file() and not marker.is_symlink()

    def _stranger(self) -> Path | None:
        """Something in the folder that no version of us wrote, if there is such."""
        for entry in sorted(os.scandir(self._path), key=lambda each: each.name):
            if not _is_folder(entry):
                return Path(entry.path)
            with TenantFolder(Path(entry.path)) as folder:
                name = folder.stranger()
            if name is not None:
                return Path(entry.path, name)
        return None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is, by its name, the folder of a key."""
    return FOLDER_NAME.fullmatch(entry.name) is not None and entry.is_dir(follow_symlinks=False)


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:NAME_DIGITS]
