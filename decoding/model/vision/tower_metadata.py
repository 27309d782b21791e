"""What a projector's file (mmproj) says of a tower and of what it is shown, by family, as the small files of a hub's
model say it.

Metadata keys: gguf.constants (Keys.ClipVision). What such files do not say is what the families' published files have.
Invariant: counts are sized by tensors that the file has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decoding.errors import ConfigError
from decoding.model.files.gguf_metadata import Fields, Metadata, shown

PATCH, POSITIONS, WIDENING = "v.patch_embd.weight", "v.position_embd.weight", "v.blk.0.ffn_up.weight"
MOST_PATCHES = 1024  # of a side
SMALLER, LARGER = "shortest_edge", "longest_edge"


class Seen(NamedTuple):
    """vision, whole: fields of config.json, of its vision_config and beside it. images: of preprocessor_config.json.
    processor: of processor_config.json."""

    vision: Fields
    whole: Fields
    images: Fields
    processor: Fields


class _Tower(NamedTuple):
    width: int
    inner: int
    num_layers: int
    num_heads: int
    image_size: int
    patch_size: int

    @property
    def side(self) -> int:
        """Patches of a picture's side."""
        return self.image_size // self.patch_size

    def fields(self) -> Fields:
        """As most of transformers' configurations name them."""
        return {
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "patch_size": self.patch_size,
        }


def _tower(metadata: Metadata) -> _Tower:
    shapes = {name: tensor.shape for name, tensor in metadata.file.tensors.items()}
    for name, dimensions in ((PATCH, 4), (WIDENING, 2)):
        if len(shapes.get(name, ())) != dimensions:
            raise ConfigError(f"it has no tensor {name} of {dimensions} dimensions")
    width = metadata.count("vision.embedding_length")
    if width != shapes[PATCH][0] or width not in shapes[WIDENING]:
        raise ConfigError(f"its clip.vision.embedding_length is {width}, which {PATCH} or {WIDENING} is not")
    num_layers = metadata.count("vision.block_count")
    if num_layers > len(shapes):
        raise ConfigError(f"its clip.vision.block_count is {num_layers}, and it has {len(shapes)} tensors")
    num_heads = metadata.count("vision.attention.head_count")
    if width % num_heads:
        raise ConfigError(f"its clip.vision.attention.head_count is {num_heads}, which does not divide {width}")
    inner = sum(shapes[WIDENING]) - width  # early converters have changed the two matrices' names round
    image_size, patch_size = metadata.count("vision.image_size"), metadata.count("vision.patch_size")
    tower = _Tower(width, inner, num_layers, num_heads, image_size, patch_size)
    if not 1 <= tower.side <= MOST_PATCHES or shapes[PATCH][-2:] != (patch_size, patch_size):
        raise ConfigError(f"its clip.vision.image_size is {image_size}, of patches of {patch_size} pixels a side")
    return tower


def gemma3(metadata: Metadata, _: str) -> Seen:
    tower = _tower(metadata)
    num_tokens = (tower.side // metadata.count("vision.projector.scale_factor", 4)) ** 2
    vision = _with_positions(metadata, tower) | {"model_type": "siglip_vision_model", "vision_use_head": False}
    images = {"image_processor_type": "Gemma3ImageProcessor", "size": _square(tower.image_size)}
    return Seen(vision, {"mm_tokens_per_image": num_tokens}, images, {"image_seq_length": num_tokens})


def idefics3(metadata: Metadata, _: str) -> Seen:
    tower, scale = _tower(metadata), metadata.count("vision.projector.scale_factor", 2)
    longest = metadata.count("vision.preproc_image_size", 4 * tower.image_size)
    images = {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {LARGER: longest},
        "max_image_size": {LARGER: tower.image_size},
    }
    vision = _with_positions(metadata, tower) | {"model_type": "idefics3_vision"}
    return Seen(vision, {"scale_factor": scale}, images, {"image_seq_len": tower.side**2 // scale**2})


def qwen2(metadata: Metadata, _: str) -> Seen:
    tower = _tower(metadata)
    if tower.inner % tower.width:
        raise ConfigError(f"its {WIDENING} has {tower.inner} rows, no multiple of {tower.width}")
    is_known = {name: metadata.file.metadata.get(f"clip.use_{name}") is True for name in ("gelu", "silu")}
    vision = {
        "embed_dim": tower.width,
        "hidden_size": metadata.count("vision.projection_dim"),
        "mlp_ratio": tower.inner // tower.width,
        "hidden_act": next((name for name, known in is_known.items() if known), "quick_gelu"),
    }
    return _of_qwen(metadata, tower, vision, (56 * 56, 28 * 28 * 2**14))


def qwen2_5(metadata: Metadata, _: str) -> Seen:
    tower, every = _tower(metadata), metadata.count("vision.n_wa_pattern")
    vision = {
        "hidden_size": tower.width,
        "intermediate_size": tower.inner,
        "out_hidden_size": metadata.count("vision.projection_dim"),
        "window_size": metadata.count("vision.window_size", 112),
        "fullatt_block_indexes": list(range(every - 1, tower.num_layers, every)),
    }
    return _of_qwen(metadata, tower, vision, (56 * 56, 28 * 28 * 2**14))


def qwen3(metadata: Metadata, model_type: str) -> Seen:
    tower = _tower(metadata)
    vision: Fields = {
        "hidden_size": tower.width,
        "intermediate_size": tower.inner,
        "out_hidden_size": metadata.count("vision.projection_dim"),
        "num_position_embeddings": _num_positions(metadata),
    }
    deepened = metadata.file.metadata.get("clip.vision.is_deepstack_layers", np.zeros(0, np.bool_))
    if not isinstance(deepened, np.ndarray) or deepened.dtype != np.bool_ or len(deepened) > tower.num_layers:
        raise ConfigError(
            f"its clip.vision.is_deepstack_layers is {shown(deepened)}; it must have a bool for each layer"
        )
    if model_type.startswith("qwen3_vl"):
        vision["deepstack_visual_indexes"] = np.flatnonzero(deepened).tolist()
    elif deepened.any():
        raise ConfigError("its projector is for Qwen3-VL, whose first layers are given more than its embeddings")
    return _of_qwen(metadata, tower, vision, (2**16, 2**24))


def _of_qwen(metadata: Metadata, tower: _Tower, vision: Fields, pixels: tuple[int, int]) -> Seen:
    """pixels: the fewest and the most that a picture is given, where the file does not say."""
    merged = metadata.count("vision.spatial_merge_size", 2)
    vision |= {"depth": tower.num_layers, "num_heads": tower.num_heads}
    vision |= {"patch_size": tower.patch_size, "spatial_merge_size": merged}
    images = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": tower.patch_size,
        "merge_size": merged,
        "size": {
            SMALLER: metadata.count("vision.image_min_pixels", pixels[0]),
            LARGER: metadata.count("vision.image_max_pixels", pixels[1]),
        },
    }
    return Seen(vision, {}, images, {})


def pixtral(metadata: Metadata, model_type: str) -> Seen:
    tower, names = _tower(metadata), metadata.file.tensors
    vision = tower.fields() | {"model_type": "pixtral", "image_size": tower.image_size}
    vision["hidden_act"] = "silu" if metadata.file.metadata.get("clip.use_silu") is True else "gelu"
    whole: Fields = {"vision_feature_layer": -1, "multimodal_projector_bias": "mm.1.bias" in names}
    merged = metadata.count("vision.spatial_merge_size", 1)
    if model_type == "mistral3":
        whole["spatial_merge_size"] = merged
    else:
        whole["vision_feature_select_strategy"] = "full"
    images = {
        "image_processor_type": "PixtralImageProcessor",
        "size": {LARGER: tower.image_size},
        "patch_size": {"height": tower.patch_size, "width": tower.patch_size},
    }
    return Seen(vision, whole, images, {"patch_size": tower.patch_size, "spatial_merge_size": merged})


def _with_positions(metadata: Metadata, tower: _Tower) -> Fields:
    """Of a tower whose pictures have as many patches as it has positions."""
    if tower.side**2 != _num_positions(metadata):
        raise ConfigError(
            f"its pictures have {tower.side**2} patches, and {POSITIONS} is for {_num_positions(metadata)}"
        )
    eps = metadata.number("vision.attention.layer_norm_epsilon", 1e-6)
    return tower.fields() | {"image_size": tower.image_size, "layer_norm_eps": eps}


def _num_positions(metadata: Metadata) -> int:
    tensor = metadata.file.tensors.get(POSITIONS)
    if tensor is None or len(tensor.shape) != 2:
        raise ConfigError(f"it has no matrix {POSITIONS}")
    return tensor.shape[0]


def _square(side: int) -> Fields:
    return {"height": side, "width": side}


def three_numbers(metadata: Metadata, name: str) -> list[float]:
    """A number for each colour."""
    value = metadata.file.metadata.get(f"clip.{name}")
    if not isinstance(value, np.ndarray) or value.shape != (3,) or not np.isfinite(value.astype(float)).all():
        raise ConfigError(f"its clip.{name} is {shown(value)}; it must be three numbers")
    numbers: list[float] = value.astype(float).tolist()
    return numbers
