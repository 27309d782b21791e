"""Runs what `gander train-head --pack` packed: `python run.py`, with torch, transformers and numba installed.

Joins the pieces beside it on the first call. Further options come after those that were packed, and win. Uses the
standard library alone. Invariant: the unpacked folder is complete or missing.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNPACKED, PIECES, COMMAND, STAND_IN = "unpacked", "piece-*", "command.json", "stand_in"
NEEDED = ("torch", "transformers", "numba")


class Joined(io.RawIOBase):
    """The pieces, one after the other."""

    def __init__(self, paths: list[Path]) -> None:
        self._files = [path.open("rb") for path in paths]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        while self._files:
            if count := self._files[0].readinto(buffer):
                return count
            self._files.pop(0).close()
        return 0


def unpack(folder: Path) -> None:
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    joined = io.BufferedReader(Joined(sorted(HERE.glob(PIECES))))
    with tarfile.open(fileobj=joined, mode="r|") as archive:
        archive.extractall(partial, filter="data")
    partial.rename(folder)


def main() -> int:
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        sys.stderr.write(f"run.py: {', '.join(missing)} must be installed; packages.txt names the versions\n")
        return 2
    folder = HERE / UNPACKED
    if not folder.is_dir():
        unpack(folder)
    paths = [str(folder)] + ([] if find_spec("msgspec") else [str(folder / STAND_IN)])
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = json.loads((folder / COMMAND).read_text())
    out = [] if "--out" in sys.argv else ["--out", str(HERE / "out")]
    module = "decoding.training.heads.train_head"
    os.chdir(folder)
    return subprocess.run([sys.executable, "-m", module, *command, *out, *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
