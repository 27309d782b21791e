"""What an EAGLE-3 head is: its widths, its norms and which of the target's layers it reads, as its config.json says.

Reads the layouts of EAGLE, SpecForge and speculators and writes the last. Knows no tensors.
Invariant: feature layers are counted by what goes into them; the number of layers itself stands for the last output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from transformers import LlamaConfig

from decoding.errors import ConfigError

NUM_FEATURES = 3
LAYER_TYPES = ("llama", "qwen3")  # of the head's one layer; the latter norms queries and keys
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
KNOWN_FIELDS = {*FLAGS, "rms_norm_eps", "attention_bias", "mlp_bias", "num_experts_per_tok"}
TELLING = re.compile("norm|residual|bias|expert|multiplier|softcap|logit_scale|embedding_scale|parallel_attn")
LAYER_FIELDS = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("rms_norm_eps", "max_position_embeddings", "rope_parameters", "rope_theta", "rope_scaling", "attention_bias"),
    *("mlp_bias", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """layer: widths, heads, rotary embedding and vocabulary of the head's one layer; target_width: of one feature.

    window: of the layer's attention, 0 for none. norm_before_residual: the layer's residual is the normed hidden
    state. norm_before_fc: one norm over all features; fc_norm: one for each. norm_output: the hidden state is handed
    on as normed. qk_norm: queries and keys are normed. owns_embeddings: its file brings them.
    """

    layer: LlamaConfig
    draft_vocab_size: int
    target_width: int
    feature_layers: tuple[int, ...]
    window: int = 0
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    qk_norm: bool = False
    owns_embeddings: bool = False

    @property
    def width(self) -> int:
        """Of the head's own hidden state."""
        return int(self.layer.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Of the target."""
        return int(self.layer.vocab_size)


def default_feature_layers(num_layers: int) -> tuple[int, ...]:
    """EAGLE-3's choice of a target's layers; of fewer than seven, where those coincide, three that lie apart.

    Raises ConfigError where there are fewer than three.
    """
    if num_layers < NUM_FEATURES:
        raise ConfigError(f"a head reads {NUM_FEATURES} layers, and the model has {num_layers}")
    if num_layers < 7:
        return (1, (num_layers + 1) // 2, num_layers)
    return (2, num_layers // 2, num_layers - 3)


def is_head(fields: dict[str, Any]) -> bool:
    """Whether a config.json is a head's, not a model's."""
    names = " ".join(fields.get("architectures") or ()).lower()
    return "eagle3" in names or any(
        name in fields for name in ("draft_vocab_size", "speculators_model_type", "eagle_config")
    )


def read_config(fields: dict[str, Any], num_layers: int) -> HeadConfig:
    """fields: of config.json; num_layers: of the target. Raises ConfigError naming a field that cannot be honoured."""
    nested = fields.get("transformer_layer_config")
    layer_fields = fields if nested is None else nested
    eagle_fields = fields.get("eagle_config") or {}
    kind = fields.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise ConfigError(f"the head's speculators_model_type is {kind!r}; 'eagle3' is what can be served")
    layer_type = layer_fields.get("model_type", "llama")
    if layer_type not in LAYER_TYPES:
        raise ConfigError(f"the head's model_type is {layer_type!r}; its layer must be of {' or '.join(LAYER_TYPES)}")
    for name in sorted({*fields, *layer_fields, *eagle_fields}):
        value = fields.get(name, layer_fields.get(name, eagle_fields.get(name)))
        if value and TELLING.search(name) and name not in KNOWN_FIELDS:
            raise ConfigError(f"the head's config has {name} = {value!r}, which is not known here")
    layer = _layer(layer_fields)
    flags = {name: bool(fields.get(name, eagle_fields.get(name, False))) for name in FLAGS}
    if nested is not None and "norm_before_residual" not in fields:
        flags["norm_before_residual"] = True  # speculators' default, not EAGLE's
    return HeadConfig(
        layer=layer,
        draft_vocab_size=int(fields.get("draft_vocab_size") or layer.vocab_size),
        target_width=int(fields.get("target_hidden_size") or layer.hidden_size),
        feature_layers=_feature_layers(fields, eagle_fields, num_layers),
        window=_window(layer_fields),
        qk_norm=layer_type == "qwen3",
        **flags,
    )


def speculators_fields(config: HeadConfig, verifier: str, num_steps: int) -> dict[str, Any]:
    """config.json of a head for the model named `verifier`, which proposes `num_steps` tokens where others load it."""
    layer = config.layer.to_dict()
    layer |= {"model_type": "qwen3" if config.qk_norm else "llama", "num_hidden_layers": 1}
    if config.window:
        layer |= {"layer_types": ["sliding_attention"], "sliding_window": config.window, "use_sliding_window": True}
    return {
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculators",
        "speculators_model_type": "eagle3",
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_width,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
        **{name: getattr(config, name) for name in FLAGS},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": num_steps}],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
    }


def _layer(fields: dict[str, Any]) -> LlamaConfig:
    """Without rope_theta a base of 10000, whatever the target's: so trainers and loaders of such heads have it."""
    known = {name: fields[name] for name in LAYER_FIELDS if fields.get(name) is not None}
    for name in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        if name not in known:
            raise ConfigError(f"the head's config has no {name}")
    return LlamaConfig(**known, num_hidden_layers=1, tie_word_embeddings=False)


def _feature_layers(fields: dict[str, Any], eagle_fields: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    """Those named, or EAGLE-3's. SpecForge counts by outputs, in `eagle_config` and where others have copied it."""
    name = "eagle_aux_hidden_state_layer_ids"
    named = fields.get(name) or eagle_fields.get(name)
    if not named:
        return default_feature_layers(num_layers)
    layers = tuple(int(layer) for layer in named)
    by_outputs = num_layers >= 7 and layers == tuple(layer - 1 for layer in default_feature_layers(num_layers))
    if by_outputs or not fields.get(name):
        layers = tuple(layer + 1 for layer in layers)
    is_fitting = len(layers) == NUM_FEATURES and layers[0] >= 0 and layers[-1] <= num_layers
    if not is_fitting or list(layers) != sorted(set(layers)):
        raise ConfigError(
            f"the head's {name} is {list(named)}; it must name {NUM_FEATURES} of the target's {num_layers} layers, "
            "ascending"
        )
    return layers


def _window(fields: dict[str, Any]) -> int:
    kinds = fields.get("layer_types") or ["full_attention"]
    return int(fields.get("sliding_window") or 0) if kinds[0] == "sliding_attention" else 0
