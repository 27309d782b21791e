"""Who drafts: a head's or draft model's folder under the name of its row, told by what is in its files.

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
    """Several of one name are one row: the same training from several seeds."""

    name: str
    folder: Path
    digest: str

    @property
    def label(self) -> str:
        return f"{self.name} ({self.folder.name})"


def read_contender(given: str, model: str) -> Contender:
    """Of `NAME=FOLDER`, or of the bundled model's own draft model, `NAME=draft-model`, where the name may be left out.

    model: the target. Raises ConfigError where there is nothing to draft with.
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
    """16 hex digits of configuration and weights."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in PATTERNS for path in folder.glob(pattern)):
        with path.open("rb") as file:
            found.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
    return found.hexdigest()[:16]
