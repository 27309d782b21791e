"""The folder of one key's sessions, opened: the only place where files of sessions are written, read and deleted.

Strangers' files may lie in it, or come to lie in it. Invariant: no file is touched but a regular one that has a name as
we give it and our header (or is empty, as a crash leaves one), and no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from server.engine_client.sessions.session_file import HEADER

SUFFIX = ".session"
FOLDER_NAME = re.compile("[0-9a-f]{32}")
FILE_NAME = re.compile(r"[0-9a-f]{32}\.session|tmp[a-z0-9_]{8}\.part")  # the latter while it is being written


@dataclass(frozen=True, slots=True)
class FoundFile:
    folder: Path
    name: str
    last_used: float
    num_bytes: int


class TenantFolder:
    """To be used in a `with` statement. Its methods raise OSError, also for a file that is not ours."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a path that is no folder, or a link to one."""
        self._path = path
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def __enter__(self) -> TenantFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._folder)

    def stranger(self) -> str | None:
        """The name of something here that is not ours, if there is such."""
        return next((name for name in self._names() if not self._is_ours(name)), None)

    def files(self) -> list[FoundFile]:
        """The files that have names of ours, those of unfinished ones too, which another server may be writing."""
        found = []
        for name in filter(FILE_NAME.fullmatch, self._names()):
            with contextlib.suppress(FileNotFoundError):  # another server's tidying
                status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append(FoundFile(self._path, name, status.st_mtime, status.st_size))
        return found

    def open(self, name: str) -> int:
        """The descriptor of a file of ours, to be read and closed."""
        if stat.S_ISREG(os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mode):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._folder)
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            if FILE_NAME.fullmatch(name) and is_file and os.pread(descriptor, len(HEADER), 0) in (HEADER, b""):
                return descriptor
            os.close(descriptor)
        raise OSError(errno.EEXIST, "what has its name is not the file of a session")

    def write(self, name: str, data: bytes) -> None:
        """Write a file for this user alone, in the place of an earlier one. It has its name only once it is whole."""
        with contextlib.suppress(FileNotFoundError):
            os.close(self.open(name))
        unfinished = f"tmp{secrets.token_hex(4)}.part"
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(unfinished, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(unfinished, dir_fd=self._folder)
            raise

    def delete(self, name: str) -> None:
        os.close(self.open(name))
        os.unlink(name, dir_fd=self._folder)

    def _names(self) -> list[str]:
        with os.scandir(self._folder) as entries:
            return sorted(entry.name for entry in entries)

    def _is_ours(self, name: str) -> bool:
        try:
            os.close(self.open(name))
        except FileNotFoundError:  # another server's tidying
            return True
        except OSError:
            return False
        return True
