"""The models that all peers load, as Hugging Face folders: one with random weights, and the bundled one widened.

Invariant: a folder is made once; if it exists, it is complete.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from decoding.bench.shapes import GPT2_SIZED, Shape
from decoding.config import BUNDLED_MODEL
from decoding.model.checkpoint import folder_of

NUM_LAYERS = 12  # of a widened model, as in GPT-2 small
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def random_folder(cache: Path, shape: Shape = GPT2_SIZED) -> Path:
    """A model of random float32 weights. It has the bundled model's tokenizer because some peers require one."""
    name = f"random-{shape.num_layers}x{shape.width}-{shape.vocab_size}"
    return _made(cache / name, lambda: shape.build("float32"))


def widened_folder(cache: Path, num_millions: int) -> Path:
    """The bundled model, widened to the cost of `num_millions` million parameters, with the same replies."""

    def make() -> PreTrainedModel:
        narrow = AutoModelForCausalLM.from_pretrained(folder_of(BUNDLED_MODEL), dtype="float32")
        return widen(narrow, 1_000_000 * num_millions)

    return _made(cache / f"{BUNDLED_MODEL}-{num_millions}M", make)


def widen(model: PreTrainedModel, num_parameters: int) -> PreTrainedModel:
    """A new model of `NUM_LAYERS` layers of one shape and about `num_parameters`, with the Llama-like model's logits up
    to the order of sums: extra layers' output projections are zeros, and own layers' MLPs are padded with zeros.

    Raises ValueError if the model is that large already.
    """
    own, config = model.model.layers, copy.deepcopy(model.config)
    per_layer = (num_parameters - model.num_parameters()) / NUM_LAYERS
    per_layer += (sum(map(_num_weights, own)) - NUM_LAYERS * _num_weights(own[0].self_attn)) / NUM_LAYERS
    config.intermediate_size = round(per_layer / (3 * config.hidden_size))
    if len(own) >= NUM_LAYERS or config.intermediate_size < own[0].mlp.up_proj.out_features:
        raise ValueError(f"a model of {len(own)} layers cannot be widened to {num_parameters} parameters")
    config.num_hidden_layers = NUM_LAYERS
    wide = type(model)(config).to(model.device, model.dtype)
    state = model.state_dict()
    with torch.no_grad():
        for name, weight in wide.state_dict().items():
            if name in state:
                weight.zero_()[tuple(map(slice, state[name].shape))] = state[name]
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
    wide.generation_config = copy.deepcopy(model.generation_config)
    return wide.eval()


def _num_weights(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


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
