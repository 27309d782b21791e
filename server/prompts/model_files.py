"""Finds a model's small text files: in the bundled model's folder, in a folder, or in the hub's cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import decoding
from decoding.config import BUNDLED_MODEL
from decoding.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelFiles:
    model: str
    revision: str | None

    def find(self, name: str) -> Path | None:
        """The file's path, None if the model lacks it. Blocks: may download. Raises ConfigError for a folder without a
        model."""
        if self.model == BUNDLED_MODEL:
            path = Path(decoding.__file__).parent / BUNDLED_MODEL / name
            return path if path.exists() else None
        folder = Path(self.model)
        if folder.is_dir():
            if not (folder / "config.json").exists():
                raise ConfigError("the folder has no config.json")
            return folder / name if (folder / name).exists() else None
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return Path(hf_hub_download(self.model, name, revision=self.revision))
        except LocalEntryNotFoundError:  # not cached, and the hub cannot be reached: not the same as a missing file
            raise
        except EntryNotFoundError:
            return None
