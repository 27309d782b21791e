"""A model of random weights that all peers load, as a Hugging Face folder, for figures of time alone."""

from __future__ import annotations

import shutil
from pathlib import Path

from decoding.bench.shapes import GPT2_SIZED, Shape
from decoding.model.checkpoint import BUNDLED_FOLDER

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def random_folder(cache: Path, shape: Shape = GPT2_SIZED) -> Path:
    """The folder in `cache`, which is complete if it is there. It has the bundled model's tokenizer because some peers
    require one."""
    folder = cache / f"random-{shape.num_layers}x{shape.width}-{shape.vocab_size}"
    if not folder.is_dir():
        partial = folder.with_suffix(".partial")
        shape.build("float32").save_pretrained(partial)
        for name in TOKENIZER_FILES:
            shutil.copy(BUNDLED_FOLDER / name, partial)
        partial.rename(folder)
    return folder
