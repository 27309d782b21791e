"""How a model's hidden states become an embedding: as its own files say, or its settings.

Knows no tensors.
"""

from __future__ import annotations

import json
from functools import cache

from decoding.core.pooling import Pooling
from decoding.model.files.gguf_file import read_gguf
from decoding.model.files.gguf_place import gguf_paths
from server.config import ServerSettings
from server.http.errors import invalid
from server.prompts.model_files import ModelFiles

POOLING_FILE = "1_Pooling/config.json"  # as sentence-transformers writes it
OF_CAUSAL_MODELS = "last"  # whose last token alone has seen the others
IN_FILES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
IN_GGUF = {0: OF_CAUSAL_MODELS, 1: "mean", 2: "cls", 3: "last", 4: "rank"}


def pooling_of(settings: ServerSettings) -> Pooling:
    """How the served model's embeddings are pooled. Blocks: reads files. Raises ApiError where its files ask for what
    this server does not do."""
    asked: str = settings.pooling
    if asked == "auto":
        asked = _of_files(settings.model, settings.revision, settings.gguf_file)
    for pooling in ("mean", "last"):
        if asked == pooling:
            return pooling
    message = f"This model's files ask for embeddings pooled by {asked}; start the server with --pooling mean or last."
    raise invalid(message, "model", "unsupported_pooling")


@cache
def _of_files(model: str, revision: str | None, gguf_file: str | None) -> str:
    paths = gguf_paths(model, gguf_file, revision)
    if paths:
        file = read_gguf(paths)
        number = file.metadata.get(f"{file.architecture}.pooling_type", 0)
        return IN_GGUF.get(number, str(number))
    path = ModelFiles(model, revision).find(POOLING_FILE)
    if path is None:
        return OF_CAUSAL_MODELS
    said = json.loads(path.read_text("utf-8"))
    modes = [name for name, is_on in said.items() if name.startswith("pooling_mode_") and is_on is True]
    if not modes:
        return OF_CAUSAL_MODELS
    return IN_FILES.get(modes[0], modes[0].removeprefix("pooling_mode_")) if len(modes) == 1 else " and ".join(modes)
