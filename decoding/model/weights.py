"""Loads a checkpoint's weights and checks that they are complete and finite, or says in one sentence what is wrong.

Invariant: every parameter of a loaded model comes from the files, none from random initialisation.
"""

from __future__ import annotations

from importlib import import_module
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import is_accelerate_available

from decoding.errors import ConfigError, listed
from decoding.model.refusal import sentence

# Where the weights of a text model lie in the files of one that wraps it, today's way and earlier ones.
OF_WRAPPERS = {
    r"^model\.language_model\.": "model.",
    r"^model\.text_model\.": "model.",
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}
# The rotary embeddings of text models whose type transformers has within others alone: where they are, and their name.
OWN_ROTARIES = {
    "qwen2_vl_text": ("qwen2_vl.modeling_qwen2_vl", "Qwen2VLRotaryEmbedding"),
    "qwen2_5_vl_text": ("qwen2_5_vl.modeling_qwen2_5_vl", "Qwen2_5_VLRotaryEmbedding"),
    "qwen3_vl_text": ("qwen3_vl.modeling_qwen3_vl", "Qwen3VLTextRotaryEmbedding"),
    "qwen3_vl_moe_text": ("qwen3_vl_moe.modeling_qwen3_vl_moe", "Qwen3VLMoeTextRotaryEmbedding"),
}
# Types whose files have other shapes, by which transformers knows it.
WRITTEN_AS = {"qwen3_vl_moe_text": "qwen3_vl_moe"}


def load_weights(
    source: str, config: Any, dtype: torch.dtype, origin: dict[str, Any], device: torch.device
) -> PreTrainedModel:
    """Load a model from a folder or the hub, with eager attention, to `device`: directly if accelerate is installed,
    else through the host's memory. config: as `read_config` returns it. origin: revision and trust_remote_code. Raises
    ConfigError with a message that continues "model ... cannot be loaded: ", and what transformers raises."""
    own_type, kind = config.model_type, getattr(config, "rotary_of", "")
    config.model_type = WRITTEN_AS.get(kind, own_type)
    goes_straight = device.type != "cpu" and is_accelerate_available()
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            key_mapping=OF_WRAPPERS,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            device_map={"": device} if goes_straight else None,
            **origin,
        )
    except UnpicklingError as error:
        raise ConfigError("its weights cannot be read: they are pickled, and not tensors alone") from error
    except (SafetensorError, EOFError) as error:
        raise ConfigError(f"its weights cannot be read: {sentence(error)}") from error
    if found["mismatched_keys"]:
        misfits = [
            f"{name} {tuple(there)} instead of {tuple(wanted)}" for name, there, wanted in found["mismatched_keys"]
        ]
        raise ConfigError(f"its weights do not fit its config.json: {listed(misfits)}")
    if found["missing_keys"]:
        raise ConfigError(f"its weights lack {listed(found['missing_keys'])}")
    model.config.model_type = own_type
    place_own_rotary(model)
    model.to(device)
    check_numbers(model)
    return model


def place_own_rotary(model: PreTrainedModel) -> None:
    """Give a text model whose type transformers has within others alone the rotary embeddings of that type."""
    if (kind := getattr(model.config, "rotary_of", None)) in OWN_ROTARIES:
        module, name = OWN_ROTARIES[kind]
        rotary = _of_text_too(getattr(import_module(f"transformers.models.{module}"), name))
        model.get_decoder().rotary_emb = rotary(model.config)


def _of_text_too(kind: type[nn.Module]) -> Any:
    """The class of rotary embeddings, which take one position a token, too; earlier ones of transformers want three."""

    def forward(self: nn.Module, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        turn: Any = kind.forward
        return turn(self, x, position_ids if position_ids.dim() == 3 else position_ids.expand(3, -1, -1))

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def check_numbers(model: nn.Module) -> None:
    """Raise ConfigError if weights are not finite numbers. Reads all of them once."""
    broken = [name for name, weight in model.named_parameters() if not _is_finite(weight.detach())]
    if broken:
        raise ConfigError(f"its weights are not all finite numbers: {listed(broken)}")


def _is_finite(weight: torch.Tensor) -> bool:
    if weight.numel() == 0 or not weight.is_floating_point():
        return True
    if weight.itemsize == 1:  # FP8, which few operations know
        weight = weight.bfloat16()
    return all(bool(torch.isfinite(bound)) for bound in torch.aminmax(weight))
