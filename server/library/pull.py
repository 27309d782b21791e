"""Brings a model from the hub into the hub's own cache, and goes on where an earlier pull broke off.

huggingface_hub keeps the cache; it begins a large file anew after a break, so those are fetched here, into the place
where it looks for them. Invariant: a large file is in its place only whole, with the hash that the hub says.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from decoding.errors import ConfigError, in_one_line
from decoding.model.files.hub_cache import repo_folder
from server.library.hub import HubFile, HubModel

PARTIAL = ".gander.incomplete"  # what `hf cache` takes for the rest of a download that broke off, and removes
READ_SECONDS = 60.0  # of silence, after which a pull is given up


@dataclass(frozen=True, slots=True)
class Progress:
    """file: that is being fetched. done, total: bytes of all files; what an earlier pull has brought is done."""

    file: str
    done: int
    total: int


OnProgress = Callable[[Progress], None]


def pull(model: HubModel, on_progress: OnProgress = lambda _: None) -> None:
    """Bring all that is needed of the model, and look whether it is whole. Blocks, for hours where it has to; what is
    there already is not fetched again. Raises ConfigError with a sentence."""
    place = repo_folder(model.name.repo) / "blobs"
    left = sum(file.num_bytes - _num_there(place, file) for file in model.files)
    place.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place).free
    if left > free:
        raise ConfigError(f"{model.name} needs {in_units(left)} more, and {in_units(free)} are free in {place}")
    before = 0
    for file in model.files:
        report = _Report(file.name, before, model.num_bytes, on_progress)
        try:
            if file.sha256 is not None:
                _fetch(model, file, place, report)
            _settle(model, file)
        except ConfigError:
            raise
        except Exception as error:  # the network and its libraries raise anything
            raise ConfigError(
                f"the pull of {model.name} broke off at {in_units(report.done)} of {in_units(model.num_bytes)}, and "
                f"another one goes on from there: {in_one_line(error)}"
            ) from error
        before += file.num_bytes
        report(file.num_bytes)


def in_units(num_bytes: int) -> str:
    """A number of bytes as people write it."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"


class _Report:
    """Tells how far a pull is: `before` bytes of it are earlier files."""

    def __init__(self, file: str, before: int, total: int, on_progress: OnProgress) -> None:
        self._file, self._before, self._total, self._tell = file, before, total, on_progress
        self.done = before

    def __call__(self, num_bytes: int) -> None:
        self.done = self._before + num_bytes
        self._tell(Progress(self._file, self.done, self._total))


def _num_there(place: Path, file: HubFile) -> int:
    """How many bytes of a file are there, whole or not."""
    sizes = [
        path.stat().st_size
        for path in (place / f"{file.sha256}", place / f"{file.sha256}{PARTIAL}")
        if file.sha256 is not None and path.is_file()
    ]
    return min(max(sizes, default=0), file.num_bytes)


def _fetch(model: HubModel, file: HubFile, place: Path, report: _Report) -> None:
    """Fetch a large file's missing bytes, and put it into its place if its hash is right."""
    blob, partial = place / f"{file.sha256}", place / f"{file.sha256}{PARTIAL}"
    if blob.exists():
        return
    with partial.open("ab") as kept:
        try:
            fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is pulling {file.name} of {model.name}") from None
        if kept.tell() > file.num_bytes:
            kept.truncate(0)
        report(kept.tell())
        if kept.tell() < file.num_bytes:
            _append(model, file, kept, report)
        kept.flush()
        if kept.tell() != file.num_bytes:
            raise OSError(f"{file.name} ended after {kept.tell()} of {file.num_bytes} bytes")
        with partial.open("rb") as whole:
            is_right = hashlib.file_digest(whole, "sha256").hexdigest() == file.sha256
        if not is_right:
            partial.unlink()
            raise ConfigError(f"{file.name} of {model.name} came damaged, and was removed: pull it again")
        os.replace(partial, blob)  # noqa: PTH105


def _append(model: HubModel, file: HubFile, kept: IO[bytes], report: _Report) -> None:
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    headers = build_hf_headers() | {"Accept-Encoding": "identity", "Range": f"bytes={kept.tell()}-"}
    url = hf_hub_url(model.name.repo, file.name, revision=model.revision)
    with get_session().stream("GET", url, headers=headers, timeout=READ_SECONDS) as reply:
        hf_raise_for_status(reply)
        if reply.status_code != 206:  # the whole file, from a hub that knows no ranges
            kept.truncate(0)
        for piece in reply.iter_bytes():
            kept.write(piece)
            report(kept.tell())


def _settle(model: HubModel, file: HubFile) -> None:
    """Have huggingface_hub list the file under its name, and fetch a small one."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Silent(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"disable": True})  # type: ignore[no-untyped-call]

    hf_hub_download(model.name.repo, file.name, revision=model.revision, tqdm_class=Silent)
