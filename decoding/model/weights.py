"""A checkpoint's weights, all of them and none but numbers, or one sentence that says what is wrong with the folder.

Knows nothing of what is done with a model. Invariant: no parameter of what is loaded was drawn at random.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import is_accelerate_available

from decoding.errors import ConfigError

NAMED = 3  # tensors in a sentence


def load_weights(source: str, dtype: torch.dtype, origin: dict[str, Any], device: torch.device) -> PreTrainedModel:
    """The model in a folder or on the hub, with eager attention, on `device`: straight from the files where accelerate
    is installed, else by way of the host's memory. origin: what else says which. Raises ConfigError after
    "model ... cannot be loaded: "."""
    goes_straight = device.type != "cpu" and is_accelerate_available()
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            device_map={"": device} if goes_straight else None,
            **origin,
        )
    except (SafetensorError, EOFError) as error:
        raise ConfigError(f"its weights cannot be read: {error}") from error
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ConfigError(first_line(error)) from error
    if found["mismatched_keys"]:
        misfits = [
            f"{name} {tuple(there)} instead of {tuple(wanted)}" for name, there, wanted in found["mismatched_keys"]
        ]
        raise ConfigError(f"its weights do not fit its config.json: {_listed(misfits)}")
    if found["missing_keys"]:
        raise ConfigError(f"its weights lack {_listed(found['missing_keys'])}")
    model.to(device)
    check_numbers(model)
    return model


def check_numbers(model: nn.Module) -> None:
    """Raises ConfigError for weights that are not finite numbers. Reads all of them once."""
    broken = [name for name, weight in model.named_parameters() if not _is_finite(weight.detach())]
    if broken:
        raise ConfigError(f"its weights are not all finite numbers: {_listed(broken)}")


def first_line(error: Exception) -> str:
    """Of what an exception says; the libraries' go on for paragraphs."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _is_finite(weight: torch.Tensor) -> bool:
    if weight.numel() == 0 or not weight.is_floating_point():
        return True
    return all(bool(torch.isfinite(bound)) for bound in torch.aminmax(weight))


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
