"""A folder among the system's temporary ones that goes with the process that made it. Standard library only.

A process that is killed removes nothing, so whoever makes the next such folder does it: a lock, which the system takes
away with its process, says which folders are still in use. Invariant: no folder is removed but ours of a process that
has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

LOCK = "lock"


class TemporaryFolder:
    """Only this user can enter it. Its lock is released with `close`, and at the latest with the process."""

    def __init__(self, prefix: str) -> None:
        """Raises OSError where none can be made."""
        _remove_abandoned(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        unnamed = self.path / f"{LOCK}.new"
        self._lock = unnamed.open("xb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            unnamed.rename(self.path / LOCK)  # under this name a lock is always held, or was
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Remove the folder with all that is in it. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # it is not ours, is in use, or has gone
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW), "rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
