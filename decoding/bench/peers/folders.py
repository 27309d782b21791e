"""The models that all peers load, as Hugging Face folders: one with random weights, and the bundled one widened.

Invariant: a folder is made once; if it exists, it is complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel

from decoding.bench.shapes import GPT2_SIZED, Shape
from decoding.bench.targets import widen_evenly
from decoding.config import BUNDLED_MODEL
from decoding.model.checkpoint import folder_of

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def random_folder(cache: Path, shape: Shape = GPT2_SIZED) -> Path:
    """A model of random float32 weights. It has the bundled model's tokenizer because some peers require one."""
    name = f"random-{shape.num_layers}x{shape.width}-{shape.vocab_size}"
    return _made(cache / name, lambda: shape.build("float32"))


def widened_folder(cache: Path, num_millions: int) -> Path:
    """The bundled model, widened to the cost of `num_millions` million parameters, with the same replies."""

    def make() -> PreTrainedModel:
        narrow = AutoModelForCausalLM.from_pretrained(folder_of(BUNDLED_MODEL), dtype="float32")
        return widen_evenly(narrow, 1_000_000 * num_millions)

    return _made(cache / f"{BUNDLED_MODEL}-{num_millions}M", make)


def draft_folder() -> Path:
    """The bundled model's own draft model."""
    return Path(folder_of(BUNDLED_MODEL)) / "draft"


def _made(folder: Path, make: Callable[[], PreTrainedModel]) -> Path:
    if not folder.is_dir():
        partial = folder.with_suffix(".partial")
        make().save_pretrained(partial)
        for name in TOKENIZER_FILES:
            shutil.copy(Path(folder_of(BUNDLED_MODEL)) / name, partial)
        partial.rename(folder)
    return folder
