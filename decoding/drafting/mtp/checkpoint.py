"""The MTP module in a target's own checkpoint: found by the names of its tensors, and loaded by transformers' loader.

Knows no head at work. Invariant: every parameter that is not the target's comes from the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod

import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from decoding.config import EngineConfig
from decoding.drafting.mtp.layout import EMBEDDING_NORM, HIDDEN_NORM, LAYOUTS
from decoding.drafting.mtp.network import MtpHead, of_one_layer
from decoding.drafting.mtp.stored_module import StoredModule, stored_module
from decoding.errors import ConfigError, listed
from decoding.model.experts.separate import SERVED
from decoding.model.memory import check_weights_fit
from decoding.model.replacing import replacer
from decoding.model.replacing.rules import Setting, rules_on_device
from decoding.model.target_model import TargetModel
from decoding.model.weights import check_numbers
from decoding.weights.matrix import Matrix

JOINING = ("fc.weight", f"{EMBEDDING_NORM}weight", f"{HIDDEN_NORM}weight")  # what goes before the decoder layer
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..*)")
EMBEDDING = "embed_tokens.weight"
Tensors = dict[str, torch.Tensor]
Told = Callable[[str], str]  # as of a `StoredModule`


def load_mtp(config: EngineConfig, target: TargetModel) -> MtpHead | None:
    """The head in the checkpoint of `config.model`, on its target's device and in its dtype; None where there is none.

    Raises ConfigError naming the type of model or the tensor that is not known, is missing or does not fit, and where
    there is not enough memory.
    """
    stored = stored_module(config, target)
    if stored is None:
        return None
    num_weights = sum(prod(weight.shape) for weight in stored.weights.values())
    check_weights_fit(num_weights * target.dtype.itemsize, target.device)
    head = _assemble(stored, target)
    check_numbers(head)
    return head


def _read(weight: Matrix, name: str, target: TargetModel) -> torch.Tensor:
    tensor = weight.dense(target.dtype)
    if tensor.dtype not in DTYPES:
        raise ConfigError(f"the tensor {name} of its MTP head holds {tensor.dtype} numbers")
    return tensor


def _assemble(stored: StoredModule, target: TargetModel) -> MtpHead:
    told = stored.told
    tensors = {own: _read(weight, told(own), target) for own, weight in stored.weights.items()}
    joining = {name: tensors.pop(name) for name in JOINING if name in tensors}
    body = _body(tensors, told, target).to(target.device)
    if target.attention == "triton":
        replacer.replace(body, rules_on_device(Setting(target.dtype)))
    elif target.device.type == "cpu":
        replacer.replace(body, [SERVED])
    head = MtpHead(body, target.shared, replace(target.layers[-1], index=0))
    for name in JOINING:
        parameter, tensor = head.get_parameter(name), joining.get(name)
        if tensor is None:
            raise ConfigError(f"its MTP head has no tensor {told(name)}")
        if tensor.shape != parameter.shape:
            raise _misfit(told(name), tensor.shape, parameter.shape)
        parameter.data.copy_(tensor)
    if LAYOUTS[target.shared.model_type].is_hidden_first:
        head.fc.weight.data = head.fc.weight.data.roll(head.config.width, dims=1)
    return head.eval()


def _body(tensors: Tensors, told: Told, target: TargetModel) -> PreTrainedModel:
    """A model of the target's type, or of transformers' that it is made of, with one layer, and an embedding that is
    not used."""
    config = of_one_layer(target.shared.config)
    _check_experts(tensors, told)
    tensors[EMBEDDING] = torch.zeros(1, config.hidden_size)
    body: PreTrainedModel
    model_class = next(MODEL_MAPPING[each] for each in type(config).__mro__ if each in MODEL_MAPPING)
    body, found = model_class.from_pretrained(
        None,
        config=config,
        state_dict=tensors,
        dtype=target.dtype,
        attn_implementation="eager",
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused below, by name
    )
    if found["missing_keys"]:
        names = [told(name) for name in found["missing_keys"]]
        raise ConfigError(f"its MTP head has no tensor {listed(names)}")
    strangers = [name for name in found["unexpected_keys"] if not _is_idle(name, tensors)]
    if strangers:
        names = [told(name) for name in strangers]
        raise ConfigError(f"its MTP head has a tensor {listed(names)}, which is not known here")
    for name, there, wanted in sorted(found["mismatched_keys"]):
        raise _misfit(told(name), there, wanted)
    return body


def _is_idle(name: str, tensors: Tensors) -> bool:
    """Whether a tensor is a bias of zeros, which AutoGPTQ writes of layers that have none."""
    return name.endswith(".bias") and name in tensors and not bool(tensors[name].any())


def _check_experts(tensors: Tensors, told: Told) -> None:
    """Raise ConfigError where experts, which transformers joins before it compares, are not all there and alike."""
    found = [match for name in tensors if (match := EXPERT.fullmatch(name))]
    count = max((int(match[2]) for match in found), default=-1) + 1
    for first, last in sorted({(match[1], match[3]) for match in found}):
        names = [f"{first}{number}{last}" for number in range(count)]
        for name in names:
            if name not in tensors:
                raise ConfigError(f"its MTP head has no tensor {told(name)}")
            if tensors[name].shape != tensors[names[0]].shape:
                raise _misfit(told(name), tensors[name].shape, tensors[names[0]].shape)


def _misfit(name: str, there: Iterable[int], wanted: Iterable[int]) -> ConfigError:
    return ConfigError(f"the tensor {name} of its MTP head is {list(there)} instead of {list(wanted)}")
