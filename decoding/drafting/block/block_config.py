"""What a block head is: its layers, who attends to whom, and what it reads of the target, as its config.json says.

Reads and writes DFlash's layout. Knows no tensors. Invariant: feature layers are counted by what goes into them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from transformers import LlamaConfig

from decoding.drafting.eagle.head_config import LAYER_FIELDS, TELLING
from decoding.errors import ConfigError

ARCHITECTURE = "DFlashDraftModel"
FROM_ROOT = ("Qwen3DSparkModel", "DSparkDraftModel")  # whose root's row speaks of the place after it
NESTED = "dflash_config"
OWN_FIELDS = (  # in the nested object or beside it
    *("block_size", "mask_token_id", "target_layer_ids", "causal", "use_swa", "swa_window_size"),
    *("input_embedding_scale", "output_multiplier", "final_logit_softcapping", "markov_rank", "markov_head_type"),
)
UNUSED_FIELDS = {"num_anchors", "enable_confidence_head", "confidence_head_with_markov"}  # of DSpark's training
KNOWN_FIELDS = {*OWN_FIELDS, *UNUSED_FIELDS, "rms_norm_eps", "attention_bias"}
ONLY_WAYS: dict[str, tuple[Any, ...]] = {  # of what others' checkpoints may say, what is done here
    "attention_mode": ("gqa", "mha"),
    "markov_head_type": ("vanilla",),
    "is_neox_style": (True,),
    "use_aux_hidden_state": (True,),
}
FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULT_BLOCK = 16
NUM_ANCHORS = 512  # which readers of DSpark's layout ask for, and do not use


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """layer: widths, heads, rotary embedding and vocabulary; the width is the target's.

    windows: of each layer, 0 for none; are_causal: whether a row of the block sees none of those after it. block_len:
    rows, the root's and the masks'. names_from_root: whether a row speaks of the place after its own, so that the
    root's speaks too; else each speaks of its own. markov_rank: of what the token before says of each, 0 for nothing.
    embedding_scale, output_scale: of what goes in and of logits; softcap: of logits, 0 for none.
    """

    layer: LlamaConfig
    feature_layers: tuple[int, ...]
    block_len: int
    mask_token_id: int
    windows: tuple[int, ...]
    are_causal: tuple[bool, ...]
    names_from_root: bool = False
    markov_rank: int = 0
    embedding_scale: float = 1.0
    output_scale: float = 1.0
    softcap: float = 0.0
    owns_embeddings: bool = False

    @property
    def num_places(self) -> int:
        """That a block names."""
        return self.block_len if self.names_from_root else self.block_len - 1

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    @property
    def width(self) -> int:
        return int(self.layer.hidden_size)

    @property
    def draft_vocab_size(self) -> int:
        """It names any of the target's tokens."""
        return int(self.layer.vocab_size)


def is_block(fields: dict[str, Any]) -> bool:
    """Whether a config.json is a block head's."""
    names = " ".join(map(str, fields.get("architectures") or ())).lower()
    return NESTED in fields or "dflash" in names or "dspark" in names


def spread_layers(num_layers: int, count: int) -> tuple[int, ...]:
    """DFlash's choice of a target's layers: so many, evenly from the second to the last but two; of a small model all
    but the last, whose output readers take before or after a norm. Counted by what goes into them."""
    first, last = (1, num_layers - 3) if num_layers - 3 >= count else (0, max(0, num_layers - 2))
    steps = max(1, count - 1)
    return tuple(sorted({round(first + (last - first) * place / steps) + 1 for place in range(count)}))


def read_block_config(fields: dict[str, Any], num_layers: int) -> BlockConfig:
    """fields: of config.json; num_layers: of the target. Raises ConfigError naming a field that cannot be honoured."""
    nested = fields.get(NESTED, {})
    if not isinstance(nested, dict):
        raise ConfigError(f"the head's {NESTED} is {nested!r}; it must be an object")
    names = fields.get("architectures") or [ARCHITECTURE]
    if names != [ARCHITECTURE] and not set(names) < set(FROM_ROOT):
        served = ", ".join((ARCHITECTURE, *FROM_ROOT))
        raise ConfigError(f"the head's architectures are {names}; those that can be served are {served}")
    if (kind := fields.get("model_type", "qwen3")) != "qwen3":
        raise ConfigError(f"the head's model_type is {kind!r}; its layers must be of 'qwen3'")
    for name, value in [*sorted(fields.items()), *sorted(nested.items())]:
        is_other = name in ONLY_WAYS and value is not None and value not in ONLY_WAYS[name]
        is_strange = name not in KNOWN_FIELDS and name not in ONLY_WAYS and (name in nested or TELLING.search(name))
        if is_other or (value and is_strange):
            raise ConfigError(f"the head's config has {name} = {value!r}, which is not known here")
    own = {name: nested.get(name, fields.get(name)) for name in OWN_FIELDS}
    layer, count = _layer(fields), _number(fields, "num_hidden_layers")
    block_len = DEFAULT_BLOCK if own["block_size"] is None else own["block_size"]
    if not isinstance(block_len, int) or block_len < 2:
        raise ConfigError(f"the head's block_size is {block_len!r}; it must be a number from 2 on")
    mask_token_id = own["mask_token_id"]
    if not isinstance(mask_token_id, int) or not 0 <= mask_token_id < layer.vocab_size:
        raise ConfigError(f"the head's mask_token_id is {mask_token_id!r}; it must be one of {layer.vocab_size} tokens")
    windows, are_causal = _attention(fields, own, count)
    return BlockConfig(
        layer=layer,
        feature_layers=_feature_layers(own["target_layer_ids"], num_layers),
        block_len=block_len,
        mask_token_id=mask_token_id,
        windows=windows,
        are_causal=are_causal,
        names_from_root=names != [ARCHITECTURE],
        markov_rank=int(own["markov_rank"] or 0),
        embedding_scale=float(own["input_embedding_scale"] or 1.0),
        output_scale=float(own["output_multiplier"] or 1.0),
        softcap=float(own["final_logit_softcapping"] or 0.0),
    )


def block_fields(config: BlockConfig, num_target_layers: int) -> dict[str, Any]:
    """config.json of a head whose layers are all causal, or none, for a target of so many layers: DSpark's where rows
    speak of the places after their own, else DFlash's."""
    kinds = [SLIDING if window else FULL for window in config.windows]
    nested: dict[str, Any] = {
        "block_size": config.block_len,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": [layer - 1 for layer in config.feature_layers],
        "causal": config.are_causal[0],
    }
    scales = {"input_embedding_scale": config.embedding_scale, "output_multiplier": config.output_scale}
    nested |= {name: scale for name, scale in scales.items() if scale != 1}
    if config.softcap:
        nested["final_logit_softcapping"] = config.softcap
    if config.markov_rank:
        nested |= {"markov_rank": config.markov_rank, "markov_head_type": "vanilla"}
    fields = config.layer.to_dict() | {
        "architectures": [FROM_ROOT[0] if config.names_from_root else ARCHITECTURE],
        "model_type": "qwen3",
        "num_hidden_layers": config.num_layers,
        "num_target_layers": num_target_layers,
        "block_size": config.block_len,
        "layer_types": kinds,
        "is_causal": config.are_causal[0],
        NESTED: nested,
    }
    if config.names_from_root:  # whose readers look beside the nested object
        fields |= nested | {"num_anchors": NUM_ANCHORS, "enable_confidence_head": False}
    if any(config.windows):
        fields |= {"sliding_window": max(config.windows), "use_sliding_window": True}
    return fields


def _layer(fields: dict[str, Any]) -> LlamaConfig:
    for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size"):
        _number(fields, name)
    if fields["num_attention_heads"] % fields["num_key_value_heads"]:
        raise ConfigError("the head's num_attention_heads is no multiple of its num_key_value_heads")
    if fields.get("head_dim") is not None:
        _number(fields, "head_dim")
    if not fields.get("rope_theta") and "rope_theta" not in (fields.get("rope_parameters") or {}):
        raise ConfigError("the head's config has no rope_theta")
    known = {name: fields[name] for name in LAYER_FIELDS if fields.get(name) is not None}
    return LlamaConfig(**known, num_hidden_layers=1, tie_word_embeddings=False)


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"the head's config has {name} = {value!r}; it must be a number from 1 on")
    return value


def _attention(fields: dict[str, Any], own: dict[str, Any], count: int) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Of each layer its window, and whether it is causal. Where the config says nothing, layers with windows are."""
    kinds = fields.get("layer_types")
    kinds = [FULL] * count if kinds is None else kinds
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise ConfigError(f"the head's layer_types are {kinds}; they must be {FULL} or {SLIDING}, {count} in all")
    said = fields.get("is_causal")
    said = own["causal"] if said is None else said
    are_causal = tuple(kind == SLIDING if said is None else bool(said) for kind in kinds)
    if own["use_swa"] and SLIDING not in kinds:
        kinds = [SLIDING] * count
    window = own["swa_window_size"] or fields.get("sliding_window")
    if SLIDING in kinds and not window:
        raise ConfigError(f"the head's layer_types name {SLIDING}, and its config has no sliding_window")
    return tuple(int(window or 0) if kind == SLIDING else 0 for kind in kinds), are_causal


def _feature_layers(ids: Iterable[int] | None, num_layers: int) -> tuple[int, ...]:
    """Counted by outputs in DFlash's layout."""
    layers = tuple(int(each) + 1 for each in ids or ())
    if not layers or list(layers) != sorted(set(layers)) or not 1 <= layers[0] <= layers[-1] <= num_layers:
        raise ConfigError(
            f"the head's target_layer_ids are {ids}; they must name some of the target's {num_layers} layers, ascending"
        )
    return layers
