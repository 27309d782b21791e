"""What a model's files say of it, as far as Ollama's clients ask: their size, their date and the configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from decoding.model.files.gguf_place import gguf_paths
from server.config import ServerSettings
from server.prompts.model_check import CONFIG, WEIGHTS
from server.prompts.model_files import ModelFiles


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """num_bytes: of the files of weights; modified: of the newest of them, in seconds since 1970; config: the model's
    configuration, that of its language model where it has others."""

    format: str
    num_bytes: int
    modified: float
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        return str(self.config.get("model_type", ""))


def facts_of(settings: ServerSettings) -> ModelFacts:
    """Blocks: reads files, and asks the hub for the first of them where they are not here yet. Raises OSError and
    ConfigError."""
    return _facts(settings.model, settings.revision, settings.gguf_file)


def digest_of(settings: ServerSettings, facts: ModelFacts) -> str:
    """64 hexadecimal digits that change with the model, and are no hash of files of gigabytes."""
    named = (settings.model, settings.revision, settings.gguf_file, facts.num_bytes, facts.modified)
    return sha256(json.dumps(named).encode()).hexdigest()


@cache
def _facts(model: str, revision: str | None, gguf_file: str | None) -> ModelFacts:
    path = ModelFiles(model, revision, gguf_file).find(CONFIG)
    config = {} if path is None else json.loads(path.read_text("utf-8"))
    config = {**config, **(config.get("text_config") or {})}
    weights = list(gguf_paths(model, gguf_file, revision))
    kind = "gguf" if weights else "safetensors"
    if not weights and path is not None:
        weights = [each for each in path.parent.iterdir() if any(fnmatch(each.name, pattern) for pattern in WEIGHTS)]
    stats = [Path(each).stat() for each in weights]
    num_bytes, modified = sum(stat.st_size for stat in stats), max((stat.st_mtime for stat in stats), default=0.0)
    return ModelFacts(kind, num_bytes, modified, config)
