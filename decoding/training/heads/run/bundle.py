"""Packs all that a run needs into one folder in pieces, for a machine without a package index.

Owns what is packed; `unpack` runs there. Invariant: no piece is larger than `PIECE_BYTES`.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

from huggingface_hub import snapshot_download

import decoding
from decoding.config import BUNDLED_MODEL, EngineConfig
from decoding.core.files.output import claim_folder
from decoding.drafting.eagle.checkpoint import find_head
from decoding.errors import ConfigError
from decoding.model.checkpoint import resolve
from decoding.training.heads.run import stand_in, unpack
from decoding.training.heads.texts.prompts import GENERATED, no_data

PIECE_BYTES = 56 * 2**20
MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt")
LEFT_OUT = ("__pycache__", "bench", "audit")  # of our sources, and the bundled model if another is trained for
SOURCES = Path(decoding.__file__).parent


class Pieces(io.RawIOBase):
    """A file that is cut into pieces as it is written."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.count, self._room = folder, 0, 0
        self._file: io.BufferedWriter | None = None

    def writable(self) -> bool:
        return True

    def write(self, content) -> int:  # type: ignore[no-untyped-def]
        left = memoryview(content)
        while len(left):
            if not self._room:
                self.close_piece()
                self._file = (self._folder / f"piece-{self.count:03d}").open("wb")
                self.count, self._room = self.count + 1, PIECE_BYTES
            assert self._file is not None
            part, left = left[: self._room], left[self._room :]
            self._file.write(part)
            self._room -= len(part)
        return len(content)

    def close_piece(self) -> None:
        if self._file is not None:
            self._file.close()


def bundle(chosen: argparse.Namespace) -> int:
    """Pack the call; return the number of pieces. Raises ConfigError for data, a model or a head that are nowhere."""
    files, named = dict(_sources(chosen.model)), {**vars(chosen), "pack": None, "out": None}
    if chosen.model != BUNDLED_MODEL:
        files |= _of_folder(_model_folder(chosen), "model", MODEL_FILES)
        named["model"] = "model"
    named["data"] = []
    for number, given in enumerate(chosen.data):
        packed = given if given == GENERATED else f"data/{number}"
        files |= {} if given == GENERATED else _data(Path(given), packed)
        named["data"].append(packed)
    if chosen.start is not None and chosen.start != BUNDLED_MODEL:
        files |= _of_folder(find_head(chosen.start), "start", MODEL_FILES)
        named["start"] = "start"
    claim_folder(chosen.pack)
    for path in chosen.pack.glob(unpack.PIECES):
        path.unlink()
    pieces = Pieces(chosen.pack)
    with tarfile.open(fileobj=pieces, mode="w|") as archive:
        for name, path in sorted(files.items()):
            archive.add(path.resolve(), name)
        _add_text(archive, unpack.COMMAND, json.dumps(arguments(named)))
    pieces.close_piece()
    shutil.copyfile(unpack.__file__, chosen.pack / "run.py")
    lines = [line for line in requires("gander") or [] if re.match(r"[\w-]+", line)[0] in unpack.NEEDED]  # type: ignore[index]
    (chosen.pack / "packages.txt").write_text("".join(f"{line}\n" for line in lines))
    return pieces.count


def arguments(named: dict[str, object]) -> list[str]:
    """A command line that says what a parsed one does."""
    given: list[str] = []
    for name, value in named.items():
        if name == "objective":
            value = ",".join(map(str, value))  # type: ignore[call-overload]
        if value is not None:
            values = value if isinstance(value, list) else [value]
            given += [f"--{name.replace('_', '-')}", *map(str, values)]
    return given


def _sources(model: str) -> Iterator[tuple[str, Path]]:
    left_out = LEFT_OUT if model == BUNDLED_MODEL else (*LEFT_OUT, BUNDLED_MODEL)
    for path in SOURCES.rglob("*"):
        inside = path.relative_to(SOURCES)
        if path.is_file() and not set(inside.parts[:-1]) & set(left_out):
            yield f"decoding/{inside}", path
    assert stand_in.__file__ is not None
    yield f"{unpack.STAND_IN}/msgspec.py", Path(stand_in.__file__)


def _model_folder(chosen: argparse.Namespace) -> Path:
    _, source = resolve(EngineConfig(model=chosen.model, device="cpu"))
    try:
        return (
            Path(source) if Path(source).is_dir() else Path(snapshot_download(source, allow_patterns=list(MODEL_FILES)))
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {chosen.model!r} is no folder and cannot be had from the hub: {error}") from error


def _of_folder(folder: Path, name: str, patterns: tuple[str, ...]) -> dict[str, Path]:
    return {f"{name}/{path.name}": path for pattern in patterns for path in folder.glob(pattern)}


def _data(given: Path, name: str) -> dict[str, Path]:
    """A file, or a folder of answers."""
    found = {name: given} if given.is_file() else _of_folder(given, name, ("*.npz",))
    if not found:
        raise no_data(str(given))
    return found


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
