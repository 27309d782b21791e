"""A contender: the folder of a draft head or draft model, the name of its row, and a digest of its files.

Knows nothing of engines. Invariant: the digest changes with the weights and their configuration, never with the path.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from decoding.config import BUNDLED_MODEL
from decoding.errors import ConfigError
from decoding.model.checkpoint import BUNDLED_FOLDER

BUNDLED_DRAFT = "draft-model"
PATTERNS = ("config.json", "generation_config.json", "*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True)
class Contender:
    """Contenders of the same name share a row: they are one training from several seeds."""

    name: str
    folder: Path
    digest: str

    @property
    def label(self) -> str:
        return f"{self.name} ({self.folder.name})"


def read_contender(given: str, model: str) -> Contender:
    """Parse `NAME=FOLDER`, or `NAME=draft-model` for the bundled model's own draft model. The name is optional.

    model: the target. Raises ConfigError if the folder has nothing to draft with.
    """
    name, separator, path = given.partition("=")
    path = path if separator else name
    if path == BUNDLED_DRAFT and model != BUNDLED_MODEL:
        raise ConfigError(f"{BUNDLED_DRAFT} is {BUNDLED_MODEL}'s; give the folder of one for {model}")
    folder = BUNDLED_FOLDER / "draft" if path == BUNDLED_DRAFT else Path(path)
    if not name or not (folder / "config.json").is_file():
        raise ConfigError(f"a contender is NAME=FOLDER, a folder with a config.json, or {BUNDLED_DRAFT}; not {given}")
    return Contender(name, folder, digest(folder))


def digest(folder: Path) -> str:
    """16 hex digits that hash configuration and weights."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in PATTERNS for path in folder.glob(pattern)):
        with path.open("rb") as file:
            found.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
    return found.hexdigest()[:16]
