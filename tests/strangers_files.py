"""Random trees of files, folders and links of strangers, and a picture of them that shows every change."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from random import Random

WORDS = ("thesis.txt", "Documents", ".git", "lost+found", "a b", "ä", "x.session", "data.part", "notes.json", "0" * 32)
LONG_AGO = 10**9  # seconds since 1970, beyond every time to live

Picture = dict[str, tuple[object, ...]]


def plant(root: Path, names: Sequence[str], contents: Sequence[bytes], random: Random, depth: int = 3) -> None:
    """Fill a folder at random. names, contents: that look like ours, which strangers have as well as their own."""
    for name in random.sample((*WORDS, *names), random.randint(0, 5)):
        path = root / name
        if path.exists() or path.is_symlink():
            continue
        match random.choice(("file", "file", "file", "folder", "folder", "link", "link", "pipe", "second name")):
            case "file":
                path.write_bytes(random.choice((*contents, b"a stranger's", random.randbytes(50))))
                path.chmod(random.choice((0o600, 0o644, 0o444)))
            case "folder":
                path.mkdir()
                if depth:
                    plant(path, names, contents, random, depth - 1)
            case "link":
                path.symlink_to(random.choice((root, root.parent, "nowhere", name, *root.parent.rglob("*"))))
            case "pipe":
                os.mkfifo(path)
            case "second name":
                files = [each for each in root.parent.rglob("*") if each.is_file() and not each.is_symlink()]
                path.hardlink_to(random.choice(files)) if files else path.write_bytes(b"alone")
        if random.random() < 0.8:
            os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)


def picture(root: Path) -> Picture:
    """What every file, folder and link is and holds; of a folder not when something was put into it."""
    found: Picture = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        kind = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), status.st_ino
        held: tuple[object, ...] = ()
        if stat.S_ISLNK(status.st_mode):
            held = (str(path.readlink()), status.st_mtime_ns)
        elif stat.S_ISREG(status.st_mode):
            held = (path.read_bytes(), status.st_mtime_ns)
        found[str(path.relative_to(root))] = (*kind, *held)
    return found


def without(whole: Picture, gone: Sequence[str]) -> Picture:
    return {path: held for path, held in whole.items() if path not in gone}


def lost(before: Picture, after: Picture) -> dict[str, tuple[object, object]]:
    """What is gone or is no longer what it was."""
    return {path: (held, after.get(path)) for path, held in before.items() if after.get(path) != held}
