"""The files that commands write: each whole or not at all, and never in the place of a stranger's.

Knows nothing of what is in them. A file is a stranger's unless its content says that a command of ours wrote it, a
folder unless it is empty or has our marker. Links are not followed.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from decoding.errors import ConfigError

MARKER = "gander-output"

IsOurs = Callable[[bytes], bool]  # whether a command of ours wrote this content


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` only once it is complete; a killed process leaves the old file. Raises OSError,
    also where `path` is a link or no file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise FileExistsError(errno.EEXIST, "it is a link or no file", str(path))
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    with partial.open("xb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def check_output(path: Path, is_ours: IsOurs) -> None:
    """Raise ConfigError where something is at `path` that no command of ours wrote."""
    if path.is_symlink() or path.exists():
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        if content is None or (content and not is_ours(content)):
            raise ConfigError(f"{path} is there, and no such command wrote it: it stays, name another place")


def write_output(path: Path, content: bytes, is_ours: IsOurs) -> None:
    """Write the file, in the place of one of ours. Raises ConfigError where it cannot, and as `check_output`, which
    commands also call at their start."""
    check_output(path, is_ours)
    try:
        with replace_file(path) as file:
            file.write(content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def is_json_of(kind: Any) -> IsOurs:
    """kind: what a command of ours writes as JSON, of which an empty list or object is no proof."""

    def is_ours(content: bytes) -> bool:
        try:
            return bool(msgspec.json.decode(content, type=kind))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False

    return is_ours


def claim_folder(folder: Path) -> None:
    """Make the folder of a command, which may then replace what is in it. Raises ConfigError for one that holds
    something and was claimed by no command."""
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / MARKER
    if marker.is_file() and not marker.is_symlink():
        return
    strange = next((path.name for path in sorted(folder.iterdir())), None)
    if strange is not None:
        raise ConfigError(
            f"{folder} holds {strange}, which no such command wrote: name another folder, or make an empty file "
            f"{MARKER} in it if what it holds may be replaced"
        )
    marker.touch()
