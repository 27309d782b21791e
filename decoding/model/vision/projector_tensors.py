"""The tensors of a projector's GGUF file under the names of transformers' parameters, laid out as these are.

Names by gguf's own map; what llama.cpp's converter splits, moves and changes as read off it (conversion/qwenvl.py,
gemma.py, llava.py). Knows nothing of configuration files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from decoding.errors import ConfigError, listed
from decoding.model.files.gguf_file import GgufFile
from decoding.model.files.gguf_layout import turned_rows
from decoding.model.files.gguf_metadata import Metadata
from decoding.model.files.gguf_model import unpacked
from decoding.model.vision.tower_metadata import WIDENING

Shape = tuple[int, ...]
PUBLISHED = (  # beginnings of parameters' names, and what the published checkpoints, and so gguf's map, call them
    ("vision_tower.embeddings.", "vision_tower.vision_model.embeddings."),
    ("vision_tower.encoder.", "vision_tower.vision_model.encoder."),
    ("vision_tower.post_layernorm.", "vision_tower.vision_model.post_layernorm."),
    ("vision_model.", "model.vision_model."),
    ("connector.", "model.connector."),
    ("multi_modal_projector.mm_input_projection_weight", "multi_modal_projector.mm_input_projection.weight"),
    ("visual.merger.norm.", "visual.merger.ln_q."),
    ("visual.merger.linear_fc1.", "visual.merger.mlp.0."),
    ("visual.merger.linear_fc2.", "visual.merger.mlp.2."),
    ("visual.deepstack_merger_list.", "model.visual.deepstack_merger_list."),
)
DEEPENED = re.compile(r"visual\.deepstack_merger_list\.(\d+)\.")
LEAST_NUMBERS = 4  # gguf's map counts the layers of projectors with those of towers, of which a tower may have fewer
UNUSED = frozenset({"v.token_embd.img_break"})  # a row of the language model's embedding
OFFSET = "multi_modal_projector.mm_soft_emb_norm.weight"  # has 1 more in the file
TURNED = re.compile(r"vision_tower\.transformer\.layers\.\d+\.attention\.[qk]_proj\.weight")  # Pixtral's


def tensors_by_parameter(
    file: GgufFile, shapes: Mapping[str, Shape], whole: Any, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The tower's and the projector's weights, those that the file has. shapes: of a model's parameters, by name.
    whole: the model's configuration. Raises ConfigError for a tensor that no part of the model is named after."""
    names = _names(file, shapes, whole.vision_config)
    used = {part for parts in names.values() for part in parts} | UNUSED
    if strangers := sorted(file.tensors.keys() - used):
        raise ConfigError(
            f"it has tensors that the tower of a {whole.model_type} model has no place for: {listed(strangers)}"
        )
    found = {name: _joined(file, name, parts, shapes[name], whole.vision_config) for name, parts in names.items()}
    weights = {name: numbers.to(dtype) for name, numbers in found.items()}
    file.release()
    return weights


def _names(file: GgufFile, shapes: Mapping[str, Shape], vision: Any) -> dict[str, tuple[str, ...]]:
    """For each parameter that the file has, the tensors that it is joined of."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    num_layers = Metadata(file).count("vision.block_count")
    name_map = get_tensor_name_map(MODEL_ARCH.MMPROJ, max(num_layers, LEAST_NUMBERS))
    is_swapped = file.tensors[WIDENING].shape[0] == vision_width(vision)
    names = {}
    for parameter in shapes:
        base, _, suffix = _published(parameter, vision).rpartition(".")
        theirs = name_map.get_name(base)
        if theirs is None:
            continue
        if is_swapped and ".ffn_" in theirs:
            theirs = theirs.replace("up", "down") if "up" in theirs else theirs.replace("down", "up")
        parts: tuple[str, ...] = (f"{theirs}.{suffix}",)
        if theirs.endswith("attn_qkv") and parts[0] not in file.tensors:
            parts = tuple(f"{theirs.removesuffix('qkv')}{part}.{suffix}" for part in "qkv")
        elif len(shapes[parameter]) == 5:  # of two frames
            parts = (*parts, f"{parts[0]}.1")
        if all(part in file.tensors for part in parts):
            names[parameter] = parts
    return names


def vision_width(vision: Any) -> int:
    """Of a tower's layers."""
    return int(getattr(vision, "embed_dim", None) or vision.hidden_size)


def _published(parameter: str, vision: Any) -> str:
    deepened = DEEPENED.match(parameter)
    if deepened is not None:  # the file counts all layers
        layer = vision.deepstack_visual_indexes[int(deepened[1])]
        parameter = f"visual.deepstack_merger_list.{layer}.{parameter[deepened.end() :]}"
    for own, theirs in PUBLISHED:
        if parameter.startswith(own):
            return theirs + parameter.removeprefix(own)
    return parameter


def _joined(file: GgufFile, name: str, parts: tuple[str, ...], shape: Shape, vision: Any) -> torch.Tensor:
    """float32, in the shape of the parameter where there are as many numbers."""
    found = [unpacked(file, file.tensors[part]).float() for part in parts]
    numbers = found[0] if len(found) == 1 else torch.stack(found, 2) if len(shape) == 5 else torch.cat(found)
    if TURNED.fullmatch(name):
        numbers = numbers[torch.from_numpy(turned_rows(parts[0], len(numbers), vision.num_attention_heads))]
    if name == OFFSET:
        numbers = numbers - 1
    return numbers.reshape(shape) if numbers.numel() == torch.Size(shape).numel() else numbers
