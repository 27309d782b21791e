"""The MTP module in a target's own checkpoint: found by the names of its tensors, and loaded by transformers' loader.

Knows no head at work. Invariant: every parameter that is not the target's comes from the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from decoding.config import EngineConfig
from decoding.drafting.mtp.layout import ANY_MODULE, EMBEDDING_NORM, HIDDEN_NORM, LAYOUTS, Layout
from decoding.drafting.mtp.network import MtpHead
from decoding.errors import ConfigError, listed
from decoding.model.checkpoint import resolve
from decoding.model.experts.interface import use_experts
from decoding.model.files.quantized_checkpoint import Shards
from decoding.model.memory import check_weights_fit
from decoding.model.target_model import TargetModel
from decoding.model.weights import check_numbers

JOINING = ("fc.weight", f"{EMBEDDING_NORM}weight", f"{HIDDEN_NORM}weight")  # what goes before the decoder layer
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..*)")
EMBEDDING = "embed_tokens.weight"
Tensors = dict[str, torch.Tensor]


def load_mtp(config: EngineConfig, target: TargetModel) -> MtpHead | None:
    """The head in the checkpoint of `config.model`, on its target's device and in its dtype; None where there is none.

    Raises ConfigError naming the type of model or the tensor that is not known, is missing or does not fit, and where
    there is not enough memory.
    """
    shards, kind = Shards(_files(config)), target.model_type
    layout = LAYOUTS.get(kind)
    if layout is None:
        strange = next(filter(ANY_MODULE.search, shards.names()), None)
        if strange is None:
            return None
        raise ConfigError(
            f"its checkpoint has a tensor {strange}, and how a model of type {kind!r} drafts with it is not known here"
        )
    num_layers = target.shared.config.num_hidden_layers
    found = {own: name for name in shards.names() if (own := layout.own_name(name, num_layers)) is not None}
    if not found:
        return None
    num_weights = sum(prod(shards.shape(name)) for name in found.values())
    check_weights_fit(num_weights * target.dtype.itemsize, target.device)
    tensors = {own: shards.read(name) for own, name in found.items()}
    for own, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise ConfigError(f"the tensor {layout.file_name(own)} of its MTP head holds {tensor.dtype} numbers")
    head = _assemble(tensors, layout, target)
    check_numbers(head)
    return head


def _files(config: EngineConfig) -> list[Path]:
    """The safetensors files that the target was loaded from; none of a GGUF file."""
    _, source = resolve(config)
    folder = Path(source)
    if not folder.is_dir():
        folder = Path(snapshot_download(source, revision=config.revision, local_files_only=True))
    return sorted(folder.glob("*.safetensors"))


def _assemble(tensors: Tensors, layout: Layout, target: TargetModel) -> MtpHead:
    joining = {name: tensors.pop(name) for name in JOINING if name in tensors}
    body = _body(tensors, layout, target).to(target.device)
    if target.attention == "triton":
        from decoding.model.device.grouped_experts import group_experts  # Triton may not be installed elsewhere

        group_experts(body)
    elif target.device.type == "cpu":
        use_experts(body)
    head = MtpHead(body, target.shared, replace(target.layers[-1], index=0))
    for name in JOINING:
        parameter, tensor = head.get_parameter(name), joining.get(name)
        if tensor is None:
            raise ConfigError(f"its MTP head has no tensor {layout.file_name(name)}")
        if tensor.shape != parameter.shape:
            raise _misfit(layout.file_name(name), tensor.shape, parameter.shape)
        parameter.data.copy_(tensor)
    if layout.is_hidden_first:
        head.fc.weight.data = head.fc.weight.data.roll(head.config.width, dims=1)
    return head.eval()


def _body(tensors: Tensors, layout: Layout, target: TargetModel) -> PreTrainedModel:
    """A model of the target's type, or of transformers' that it is made of, with one layer, and an embedding that is
    not used."""
    config = _of_one_layer(target.shared.config)
    _check_experts(tensors, layout)
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
        names = [layout.file_name(name) for name in found["missing_keys"]]
        raise ConfigError(f"its MTP head has no tensor {listed(names)}")
    if found["unexpected_keys"]:
        names = [layout.file_name(name) for name in found["unexpected_keys"]]
        raise ConfigError(f"its MTP head has a tensor {listed(names)}, which is not known here")
    for name, there, wanted in sorted(found["mismatched_keys"]):
        raise _misfit(layout.file_name(name), there, wanted)
    return body


def _check_experts(tensors: Tensors, layout: Layout) -> None:
    """Raise ConfigError where experts, which transformers joins before it compares, are not all there and alike."""
    found = [match for name in tensors if (match := EXPERT.fullmatch(name))]
    count = max((int(match[2]) for match in found), default=-1) + 1
    for first, last in sorted({(match[1], match[3]) for match in found}):
        names = [f"{first}{number}{last}" for number in range(count)]
        for name in names:
            if name not in tensors:
                raise ConfigError(f"its MTP head has no tensor {layout.file_name(name)}")
            if tensors[name].shape != tensors[names[0]].shape:
                raise _misfit(layout.file_name(name), tensors[name].shape, tensors[names[0]].shape)


def _of_one_layer(config: Any) -> Any:
    """The configuration of a model whose one layer is the MTP module's: it attends fully and, where a model has
    experts at all but in its first layers, has them."""
    config = deepcopy(config)
    config.num_hidden_layers, config.vocab_size, config.pad_token_id = 1, 1, None
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = ["full_attention"]
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def _misfit(name: str, there: Iterable[int], wanted: Iterable[int]) -> ConfigError:
    return ConfigError(f"the tensor {name} of its MTP head is {list(there)} instead of {list(wanted)}")
