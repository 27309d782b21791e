"""Finds a model's small text files: in the bundled model's folder, in a folder, among those made of a GGUF file, or in
the hub's cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import decoding
from decoding.config import BUNDLED_MODEL
from decoding.model.files.gguf_place import gguf_paths, small_files
from decoding.model.vision.projector_files import sight_of
from server.prompts.model_check import is_offline


@dataclass(frozen=True, slots=True)
class ModelFiles:
    model: str
    revision: str | None
    gguf_file: str | None = None
    mmproj: str | None = None

    @property
    def place(self) -> str:
        """The folder of the small files, or the name of the model on the hub: of a GGUF file those made of it, and of
        the projector with which it sees. Blocks: may download. Raises ConfigError."""
        gguf = gguf_paths(self.model, self.gguf_file, self.revision)
        return str(sight_of(gguf, self.mmproj).folder or small_files(gguf)) if gguf else self.model

    def find(self, name: str) -> Path | None:
        """The file's path, None if the model lacks it. Blocks: may download."""
        if self.model == BUNDLED_MODEL:
            path = Path(decoding.__file__).parent / BUNDLED_MODEL / name
            return path if path.exists() else None
        folder = Path(self.place)
        if folder.is_dir():
            return folder / name if (folder / name).exists() else None
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            found = hf_hub_download(self.model, name, revision=self.revision, local_files_only=is_offline())
            return Path(found)
        except LocalEntryNotFoundError:
            if is_offline():  # the cache has what was there when the model was fetched
                return None
            raise  # the hub cannot be reached, which is not the same as a missing file
        except EntryNotFoundError:
            return None
