"""A rank's share of a model: every rank has some heads and some inner columns of each layer, and the rest whole.

Column-parallel layers have fewer outputs and row-parallel layers fewer inputs, as in Megatron-LM (Shoeybi et al. 2019,
section 3), so that attention and MLP each give a part of a sum. Knows no processes. Invariant: no more of a file is
read than the share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from decoding.config import EngineConfig
from decoding.errors import ConfigError
from decoding.model.blueprint import num_tensors, num_weights, read_config
from decoding.model.files.gguf_place import gguf_paths
from decoding.model.files.quantized_checkpoint import Shards, of_text
from decoding.model.files.skeleton import empty_model, fill, num_bytes_of
from decoding.model.loading import shards_of
from decoding.model.memory import check_weights_fit
from decoding.model.parallel.collectives import Ranks
from decoding.model.replacing.replacer import Place, Rule, replace
from decoding.model.weights import WRITTEN_AS
from decoding.weights.linear import num_weights_in
from decoding.weights.matrix import Matrix, Target

# Shape suffixes: O outputs, I input width.
MODEL_TYPES = ("llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
COLUMN_PARALLEL = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
LAST = {"self_attn": "o_proj", "mlp": "down_proj"}  # of a layer's parts, their last linear layers
ROW_PARALLEL = ("o_proj", "down_proj")
DIVIDED = (  # of config.json
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)

Narrow = Callable[[Any, "Share"], None]


class Share(NamedTuple):
    """A rank of several."""

    rank: int
    size: int

    def part(self, whole: int) -> slice:
        """Its part of so many rows or columns."""
        length = whole // self.size
        return slice(self.rank * length, (self.rank + 1) * length)


def check_divisible(config: EngineConfig, folder: str) -> None:
    """Raise ConfigError for a model or an option that cannot be divided. config: resolved, as `folder` is."""
    size = config.tensor_parallel_size
    said = f"tensor_parallel_size is {size}, and"
    refused = {
        "weights that are rounded at load (--weights) are not divided": config.weights != "auto",
        "a compiled forward (--compile) is not divided": config.compile,
        "a model that brings its own code (--trust-remote-code) is not divided": config.trust_remote_code,
    }
    for sentence, is_asked in refused.items():
        if is_asked:
            raise ConfigError(f"{said} {sentence}")
    if gguf_paths(config.model, config.gguf_file, config.revision):
        raise ConfigError(f"{said} a GGUF file's packed weights are not divided")
    blueprint = read_config(folder, {"revision": config.revision, "trust_remote_code": False})
    if blueprint.model_type not in MODEL_TYPES:
        kinds = ", ".join(MODEL_TYPES)
        raise ConfigError(f"{said} a model of type {blueprint.model_type!r} is not divided: those of {kinds} are")
    if getattr(blueprint, "rotary_of", None) in WRITTEN_AS:
        raise ConfigError(f"{said} experts that a model that sees has in one tensor are not divided")
    if getattr(blueprint, "quantization_config", None) is not None:
        raise ConfigError(f"{said} quantised weights are not divided")
    for name in DIVIDED:
        count = getattr(blueprint, name, None)
        if count is not None and count % size:
            raise ConfigError(f"{said} it does not divide the model's {name}, {count}")


def load_share(folder: str, config: EngineConfig, ranks: Ranks) -> tuple[PreTrainedModel, int]:
    """This rank's share of a model, whose layers add up what all ranks compute, and the numbers of the whole model.

    Arguments as of `check_divisible`, which they have passed. Raises ConfigError with a message that continues "model
    ... cannot be loaded: ".
    """
    share = Share(ranks.rank, ranks.size)
    blueprint = read_config(folder, {"revision": config.revision, "trust_remote_code": False})
    num_weights(blueprint, num_tensors(folder), False)  # raises where config.json asks for more than the files have
    files = Shards(shards_of(folder, config.revision), of_text)
    target = Target(getattr(torch, config.dtype), torch.device(config.device), False)
    model = empty_model(blueprint, target.dtype)
    whole = num_weights_in(model)
    weights = divide(model, files, share)
    check_weights_fit(num_bytes_of(weights, target), target.device)
    fill(model, weights, target)
    with suppress(OSError):  # there is none
        model.generation_config = GenerationConfig.from_pretrained(files.paths[0].parent)
    replace(model.get_decoder().layers, [summing_rule(ranks, target.device)])
    return model, whole


def summing_rule(ranks: Ranks, device: torch.device) -> Rule:
    """Has what gives a part of a sum in each layer of a decoder add up those of all ranks: on a GPU the last linear
    layers of attention and of a gated MLP, which a fused layer calls, too; on a CPU, where packed ones take their
    place, attention and MLP."""

    def part_of(place: Place) -> nn.Module:
        is_whole = device.type == "cpu"
        part: nn.Module = place.module if is_whole else getattr(place.module, LAST[place.name], place.module)
        return part

    def put(_place: Place, part: nn.Module) -> None:
        part.register_forward_hook(partial(_summed, ranks))

    return Rule("parts summed over ranks", lambda place: place.name in LAST, lambda place: [part_of(place)], put=put)


def divide(model: PreTrainedModel, files: Shards, share: Share) -> dict[str, Matrix]:
    """Narrow the layers of a model without weights to this share; that share of the files, by the model's names."""
    weights = {name: _share(files, name, tuple(each.shape), share) for name, each in model.named_parameters()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    replace(model.get_decoder().layers, [_narrowing_rule(share)])
    return weights


def _narrowing_rule(share: Share) -> Rule:
    """Narrows the layers of a decoder, where they are, to this share."""
    narrow: dict[str, Narrow] = dict.fromkeys(COLUMN_PARALLEL, partial(_narrow_linear, True))
    narrow |= dict.fromkeys(ROW_PARALLEL, partial(_narrow_linear, False))
    narrow["experts"] = _narrow_experts
    return Rule(
        "layers divided",
        lambda place: place.name in narrow,
        lambda place: [place.module],
        put=lambda place, module: narrow[place.name](module, share),
    )


def _narrow_linear(is_column_parallel: bool, linear: Any, share: Share) -> None:
    if is_column_parallel:
        linear.out_features //= share.size
        if linear.bias is not None:
            linear.bias = _empty(linear.bias[: linear.out_features])
    else:
        linear.in_features //= share.size
    linear.weight = _empty(linear.weight[: linear.out_features, : linear.in_features])


def _narrow_experts(experts: Any, share: Share) -> None:
    experts.intermediate_dim //= share.size
    experts.gate_up_proj = _empty(experts.gate_up_proj[:, : 2 * experts.intermediate_dim])
    experts.down_proj = _empty(experts.down_proj[:, :, : experts.intermediate_dim])


def _empty(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(tensor, memory_format=torch.contiguous_format), requires_grad=False)


def _share(files: Shards, name: str, shape: tuple[int, ...], share: Share) -> Matrix:
    """The share of one parameter. shape: of the whole. A bias that is added to a sum over ranks is rank 0's alone."""
    *_, module, kind = name.split(".")
    if module == "experts":
        return _share_of_experts(files, name, shape, share)
    if module in ROW_PARALLEL and kind == "bias" and share.rank > 0:
        return Matrix.of_floats(shape, lambda: torch.zeros(shape))
    cuts = [slice(None)] * len(shape)
    if module in COLUMN_PARALLEL:
        cuts[0] = share.part(shape[0])
    elif module in ROW_PARALLEL and kind == "weight":
        cuts[1] = share.part(shape[1])
    return _part(files, name, shape, cuts)


def _share_of_experts(files: Shards, name: str, shape: tuple[int, ...], share: Share) -> Matrix:
    """Files have the layers of each expert apart, and gate and up as well."""
    base, _, kind = name.rpartition(".")
    is_down, inner = kind == "down_proj", shape[2] if kind == "down_proj" else shape[1] // 2
    own = share.part(inner)
    whole = (shape[1], inner) if is_down else (inner, shape[2])
    cuts = [slice(None), own] if is_down else [own, slice(None)]
    layers = ("down_proj",) if is_down else ("gate_proj", "up_proj")
    parts = [
        [_part(files, f"{base}.{number}.{layer}.weight", whole, cuts) for layer in layers] for number in range(shape[0])
    ]

    def read() -> torch.Tensor:
        return torch.stack([torch.cat([each.dense(torch.float32) for each in expert]) for expert in parts])

    length = inner // share.size
    return Matrix.of_floats((shape[0], shape[1], length) if is_down else (shape[0], 2 * length, shape[2]), read)


def _part(files: Shards, name: str, shape: tuple[int, ...], cuts: Sequence[slice]) -> Matrix:
    """A part of a tensor of the files, which must have this shape; a tied head, which they lack, is never read."""
    if name in files and files.shape(name) != shape:
        raise ConfigError(f"its weights do not fit its config.json: {name} {files.shape(name)} instead of {shape}")
    own = tuple(len(range(length)[cut]) for length, cut in zip(shape, cuts, strict=True))
    return Matrix.of_floats(own, lambda: files.read(name, *cuts))


def _summed(ranks: Ranks, _module: nn.Module, _inputs: Any, output: Any) -> Any:
    """Attention gives its weights as well."""
    return (ranks.sum(output[0]), *output[1:]) if isinstance(output, tuple) else ranks.sum(output)
