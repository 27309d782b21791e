"""A model's folder, and ways in which a stranger's may be broken: one change, drawn at random, of any of its files.

Knows nothing of how a broken model is refused. The same seed makes the same change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.models import tiny
from tests.server.servers import CHAT_TEMPLATE, byte_tokenizer

TYPES = ("llama", "qwen2", "gemma2", "gpt_neox", "qwen3_moe")
WEIGHTS = "model.safetensors"
CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
WRONG: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 3, 5, 7, 10**6, 10**9, 10**12, 10**30),
    *(0.5, -1.0, 1e308, math.nan, "", "64", "x" * 10_000, [], [1, 2], ["a"] * 3, {}, {"a": 1}),
)
ABSENT = ("num_labels", "layer_types", "sliding_window", "quantization_config", "rope_scaling", "auto_map", "dtype")
PICKLES = (b"\x80\x04cposix\nsystem\n(S'false'\ntR.", b"", b"PK\x03\x04" + bytes(100), b"garbage" * 99)
HUGE_HEADER = {"a": {"dtype": "F32", "shape": [10**12, 10**6], "data_offsets": [0, 4 * 10**18]}}


def make_whole(folder: Path, model_type: str) -> Path:
    """A tiny model that can be served."""
    tiny(model_type, num_hidden_layers=2, vocab_size=257, layer_types=None).save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "a", "eos_token": {"content": "<|end|>"}}))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


def break_at_random(folder: Path, seed: int) -> str:
    """Change one thing in the folder; what it was."""
    random = Random(seed)
    kind = random.choices((_field, _tensor, _cut, _drop, _pickle, _header), (12, 4, 2, 1, 1, 1))[0]
    return kind(folder, random)


def _field(folder: Path, random: Random) -> str:
    """Drop a field of a configuration, or give it a wrong value, at any depth."""
    name = random.choices(CONFIGS, (8, 2, 1, 3))[0]
    content = json.loads((folder / name).read_text())
    places = [*_places(content), *((content, field) for field in ABSENT if name == "config.json")]
    part, key = random.choice(places)
    value = random.choice(WRONG)
    if random.random() < 0.1 and (isinstance(part, list) or key in part):
        del part[key]
        value = "dropped"
    else:
        part[key] = value
    (folder / name).write_text(json.dumps(content))
    return f"{name}: {key} {str(value)[:30]}"


def _places(part: Any) -> Iterator[tuple[Any, Any]]:
    for key in range(len(part)) if isinstance(part, list) else list(part):
        yield part, key
        if isinstance(part[key], dict | list):
            yield from list(_places(part[key]))[:20]


def _tensor(folder: Path, random: Random) -> str:
    tensors = load_file(folder / WEIGHTS)
    name = random.choice(sorted(tensors))
    tensor = tensors.pop(name)
    changes: dict[str, torch.Tensor | None] = {
        "dropped": None,
        "cut": tensor[:-1],
        "empty": tensor[:0],
        "flat": tensor.reshape(-1, 1),
        "integers": tensor.to(torch.int32),
        "doubles": tensor.double(),
        "not a number": tensor * math.nan,
        "of another name": tensor,
    }
    what, changed = random.choice(list(changes.items()))
    if changed is not None:
        tensors[f"other.{name}" if what == "of another name" else name] = changed.contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return f"{name}: {what}"


def _cut(folder: Path, random: Random) -> str:
    path = random.choice(sorted(folder.iterdir()))
    whole = path.read_bytes()
    path.write_bytes(whole[: random.randrange(len(whole))])
    return f"{path.name}: cut"


def _drop(folder: Path, random: Random) -> str:
    path = random.choice(sorted(folder.iterdir()))
    path.unlink()
    return f"{path.name}: dropped"


def _pickle(folder: Path, random: Random) -> str:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(random.choice(PICKLES))
    return "pickled weights"


def _header(folder: Path, random: Random) -> str:
    """Weights that claim to be larger than they are, or an index of files that is none."""
    if random.random() < 0.5:
        header = json.dumps(HUGE_HEADER).encode()
        (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
        return "a header of exabytes"
    (folder / WEIGHTS).unlink()
    wrong = random.choice(({}, [], {"weight_map": []}, {"metadata": {}, "weight_map": {"a": 1}}))
    (folder / "model.safetensors.index.json").write_text(json.dumps(wrong))
    return "an index of nothing"
