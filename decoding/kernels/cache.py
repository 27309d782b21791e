"""The folder in which numba caches compiled kernels: one for each version of the sources.

Numba compares only a kernel's own file, so it would keep a kernel after an edit to a function inlined from another
file. Standard library only, and quick: every process of Gander runs this first. Invariant: all kernels in a folder were
compiled from the same sources.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import logging
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from decoding.kernels.processor import description
from decoding.process.temporary_folder import TemporaryFolder

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parents[1]
VARIABLE = "NUMBA_CACHE_DIR"
FOLDER_NAME = re.compile("gander-[0-9a-f]{16}")
SOURCES_NAME = re.compile(".+_[0-9a-f]{40}")  # of numba's folders in such a folder: one for each folder of sources
FILES = (  # in them: how they are named, and how they begin
    (re.compile(r".+\.nb[ic](\.tmp\.[0-9a-f]+)?"), b"\x80"),  # numba's, which are pickles
    (re.compile("complete-[0-9a-f]{16}"), b""),
    (re.compile(r"timings-[0-9a-f]{16}\.json(\.[0-9a-f]{8}\.part)?|tmp[a-z0-9_]{8}"), b"{"),
)
USES_NUMBA = re.compile(rb"^[ \t]*(from|import) .*\bnumba", re.MULTILINE)  # itself, or our way of compiling with it
COMPLETE = "complete-"  # prefix of the marker file that says: all kernels are here (see `completed_name`)
ROOM_BYTES = 2**26  # more than all kernels take
NUM_KEPT = 4  # the most recently used folders stay
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # any other error: the file system cannot reserve space
SECONDS_KEPT = 86_400.0  # a folder stays so long after a process last started with it, which may still run


def use_kernel_cache() -> None:
    """Point numba, in this process and its children, to the folder of the present sources.

    Call it before the first kernel is defined. If the folder cannot be written, a temporary copy of it is used.
    """
    name = folder_name(PACKAGE)
    kept = None
    try:
        kept = folder = base_folder(os.environ) / name
        _open(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        temporary = TemporaryFolder("gander-kernels-")
        folder = temporary.path / name
        _copy(kept, folder)
        atexit.register(temporary.close)
        logger.warning(
            "Compiled kernels cannot be kept (%s): each start compiles what is not there, plain for up to a minute.",
            error,
        )
        try:
            _require_room(folder)
        except OSError as other:
            logger.error("Compiled kernels have no room in a temporary folder either (%s): a start fails.", other)
    os.environ[VARIABLE] = str(folder)
    if "numba" in sys.modules:  # which reads the variable when it is imported
        sys.modules["numba"].config.CACHE_DIR = str(folder)


def kernel_folder() -> Path:
    """The folder in use. Other files that are valid only for these sources may be kept there too."""
    return Path(os.environ[VARIABLE])


def is_complete(group: str = "") -> bool:
    """Whether all kernels were compiled into this folder, for this kind of processor and by this numba. group: of
    kernels that few models need, and that are not among "all"."""
    return (kernel_folder() / completed_name(PACKAGE, group)).exists()


def note_complete(group: str = "") -> None:
    """Record that all kernels, or those of a group, are in the folder."""
    with contextlib.suppress(OSError):
        (kernel_folder() / completed_name(PACKAGE, group)).touch()


def completed_name(package: Path, group: str = "") -> str:
    """The marker file's name: a hash of what numba files kernels by: source paths, its version, the processor."""
    parts = [group, str(package), platform.python_version(), version("numba"), platform.processor()]
    parts += [os.environ.get(name, "") for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")]
    parts += description()
    return f"{COMPLETE}{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def base_folder(environment: Mapping[str, str]) -> Path:
    """The folder that the operator names, else one in the user's cache. Raises RuntimeError if there is no home."""
    given = environment.get(VARIABLE)
    if given:
        folder = Path(given).absolute()
        return folder.parent if FOLDER_NAME.fullmatch(folder.name) else folder  # a parent process has set it already
    return Path(environment.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "gander" / "kernels"


def folder_name(package: Path) -> str:
    """The name of the sources' folder: it changes with any edit that could change a kernel of `package`."""
    digest = hashlib.sha256()
    for name, text in sorted(sources_of_kernels(package).items()):
        digest.update(f"{name} {len(text)} ".encode() + text)
    return f"gander-{digest.hexdigest()[:16]}"


def sources_of_kernels(package: Path) -> dict[str, bytes]:
    """Names and texts of the files that use numba, and of all files of `package` that these import."""
    texts = {path.relative_to(package).as_posix(): path.read_bytes() for path in package.rglob("*.py")}
    found: dict[str, bytes] = {}
    waiting = [name for name, text in texts.items() if USES_NUMBA.search(text)]
    while waiting:
        name = waiting.pop()
        if name in texts and name not in found:
            found[name] = texts[name]
            waiting += _imported(texts[name].decode(), package.name)
    return found


def _imported(text: str, package: str) -> list[str]:
    """Files that the imports in `text` may refer to: an imported name may be a module or not."""
    files = []
    statement = rf"^[ \t]*(?:from|import) {package}\b([\w.]*)(?: import (\([^)]*\)|.*))?"
    for module, names in re.findall(statement, text, re.MULTILINE):
        path = module.strip(".").replace(".", "/")
        files += [f"{path}.py", f"{path}/__init__.py".lstrip("/")]
        files += [f"{path}/{name}.py".lstrip("/") for name in re.findall(r"\w+", names)]
    return files


def _open(folder: Path) -> None:
    """Create the folder, check that kernels can be written, and mark it as used now. Raises OSError."""
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(folder))
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    _require_room(folder)
    os.utime(folder)
    if is_new:
        remove_old_folders(folder.parent, time.time())


def _require_room(folder: Path) -> None:
    """Raises OSError where kernels cannot be written, or not all that this kind of processor lacks."""
    with tempfile.TemporaryFile(dir=folder) as file:
        if (folder / completed_name(PACKAGE)).exists():
            return
        try:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
        except AttributeError:  # not on macOS
            pass
        except OSError as error:
            if error.errno in NO_ROOM:
                text = f"{ROOM_BYTES >> 20} MiB must be free, {error.strerror}"
                raise OSError(error.errno, text, str(folder)) from None


def _copy(kept: Path | None, folder: Path) -> None:
    """Create the folder and copy the kept kernels into it, as far as they can be read."""
    folder.mkdir()
    with contextlib.suppress(OSError):
        if kept is not None and kept.is_dir():
            shutil.copytree(kept, folder, dirs_exist_ok=True)


def remove_old_folders(base: Path, now: float) -> None:
    """Remove the folders of earlier sources, except the last few. Other processes may do so at the same time."""
    with contextlib.suppress(OSError):
        folders = [path for path in base.iterdir() if FOLDER_NAME.fullmatch(path.name) and _is_folder(path)]
        folders.sort(key=lambda path: path.lstat().st_mtime, reverse=True)
        for folder in folders[NUM_KEPT:]:
            if now - folder.lstat().st_mtime > SECONDS_KEPT:
                _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder of kernels. It stays as it is where something in it is neither numba's nor ours."""
    with contextlib.suppress(OSError):
        inside = list(folder.iterdir())
        folders = [path for path in inside if SOURCES_NAME.fullmatch(path.name) and _is_folder(path)]
        files = [path for path in inside if path not in folders]
        files += [path for each in folders for path in each.iterdir()]
        if all(map(_is_ours, files)):
            for path in files:
                path.unlink(missing_ok=True)
            for path in (*folders, folder):
                path.rmdir()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_ours(path: Path) -> bool:
    """Whether a file is one that numba or we keep beside kernels: by its name, and by how it begins unless it is
    empty."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.read(1)
    return any(name.fullmatch(path.name) and first in (b"", begin) for name, begin in FILES)
