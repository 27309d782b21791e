"""What a model needs of the memory before it is loaded: its files' bytes, and the cache's where those are given.

An estimate to choose by, which imports no torch: once a model is loaded its worker tells what it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import decoding
from decoding.config import BUNDLED_MODEL, NO_NAMES
from decoding.errors import ConfigError
from decoding.model.files.gguf_place import gguf_paths, projector_of
from server.config import ServerSettings
from server.prompts.model_check import WEIGHTS
from server.settings.memory import amount_of


def needed_bytes(settings: ServerSettings) -> int:
    """0 for a model that is not on this machine yet. Blocks: reads folders."""
    sources = [(settings.model, settings.gguf_file)]
    if settings.draft_model not in NO_NAMES:
        sources.append((settings.draft_model, None))
    if settings.draft_head is not None:
        sources.append((settings.draft_head, None))
    try:
        files = {path for name, file in sources for path in _weight_files(name, file, settings.revision)}
        files |= set(_projector_files(settings))
        num_bytes = sum(path.stat().st_size for path in files)
    except (ConfigError, OSError):  # whoever loads it tells
        return 0
    cache = 0.0 if settings.kv_memory is None else amount_of(settings.kv_memory)
    return num_bytes + int(cache if cache > 1 else 0)


def _projector_files(settings: ServerSettings) -> Iterator[Path]:
    """What a GGUF model that is here sees with."""
    if settings.images and (settings.gguf_file is None or Path(settings.model).exists()):
        paths = gguf_paths(settings.model, settings.gguf_file, settings.revision)
        with suppress(ConfigError):  # it is served without
            projector = projector_of(paths, settings.mmproj) if paths else None
            yield from () if projector is None else (projector,)


def _weight_files(name: str, gguf_file: str | None, revision: str | None) -> Iterator[Path]:
    folder = Path(decoding.__file__).parent / BUNDLED_MODEL if name == BUNDLED_MODEL else Path(name)
    if not folder.exists():
        if gguf_file is None and (paths := gguf_paths(name, None, revision)):
            yield from paths
            return
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, gguf_file or "config.json", revision=revision)
        if not isinstance(found, str):
            return
        folder = Path(found) if gguf_file else Path(found).parent
        gguf_file = None
    paths = gguf_paths(str(folder), gguf_file, None)
    if paths:
        yield from paths
        return
    files = next((found for kind in WEIGHTS if (found := sorted(folder.glob(kind)))), [])
    yield from (path.resolve() for path in files)
