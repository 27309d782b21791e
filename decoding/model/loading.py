"""Loads a model's weights in whatever format they are, once they are known to fit into memory.

Invariant: nothing large is read or built before its size was checked.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from decoding.config import EngineConfig
from decoding.errors import ConfigError, listed
from decoding.kernels.gpu.card import has_kernels
from decoding.model.blueprint import num_tensors, num_weights, read_config
from decoding.model.files.gguf_file import GgufFile, read_gguf
from decoding.model.files.gguf_model import weights_of
from decoding.model.files.gguf_place import gguf_paths
from decoding.model.files.quantized_checkpoint import Shards, is_packed_on_device
from decoding.model.files.quantized_checkpoint import weights_of as quantized_weights
from decoding.model.files.skeleton import empty_model, fill, num_bytes_of, with_dense_embedding
from decoding.model.memory import check_weights_fit
from decoding.model.refusal import sentence
from decoding.model.weights import load_weights
from decoding.weights.groups import kernel_group
from decoding.weights.kinds import Kind
from decoding.weights.matrix import Target
from decoding.weights.module_tensors import Fields
from decoding.weights.numbers.onednn_floats import can_pack
from decoding.weights.rounding import rounded_kinds

NUM_SAMPLES, SAMPLE_BYTES = 1024, 4096  # blocks of each file that are hashed


@dataclass(frozen=True, slots=True)
class Packing:
    """Of packed weights, which a model's state does not show. name: of a file's mixture of kinds, else of the kind of
    most, "" if none are packed; content: a hash of them."""

    name: str = ""
    content: str = ""


UNPACKED = Packing()


def load_model(folder: str, config: EngineConfig) -> tuple[PreTrainedModel, Packing]:
    """The model, and what it holds packed. folder: as `resolve` returns it, with `config`
    resolved. Raises ConfigError with a message that continues "model ... cannot be loaded: ", and what transformers
    raises."""
    dtype, device = getattr(torch, config.dtype), torch.device(config.device)
    by_triton = has_kernels(device)
    target = Target(dtype, device, by_triton or can_pack(device, dtype), by_triton)
    paths = gguf_paths(config.model, config.gguf_file, config.revision)
    if not paths:
        origin = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
        blueprint = read_config(folder, origin)
        quantization = getattr(blueprint, "quantization_config", None)
        if quantization is not None and (device.type == "cpu" or (by_triton and not config.trust_remote_code)):
            shards = Shards(shards_of(folder, config.revision))
            if not by_triton or is_packed_on_device(shards, _fields(quantization)):
                _refuse_rounding(config)
                return load_quantized(blueprint, _fields(quantization), shards, target)
        size = num_weights(blueprint, num_tensors(folder), config.trust_remote_code)
        if quantization is None:
            check_weights_fit(size * dtype.itemsize, device, size)
        else:  # they stay as packed as their files
            check_weights_fit(sum(path.stat().st_size for path in shards_of(folder, config.revision)), device)
        return load_weights(folder, blueprint, dtype, origin, device), UNPACKED
    _refuse_rounding(config)
    return load_gguf(read_gguf(paths), folder, target)


def packed_kinds(config: EngineConfig) -> set[tuple[int, int, int]]:
    """Bits, group and bytes of a scale, of the weights that a GGUF file, or `--weights`, has on the CPU; of quantised
    checkpoints in other formats they show when they are read. config: resolved."""
    device, dtype = torch.device(config.device), getattr(torch, config.dtype)
    if not can_pack(device, dtype):
        return set()
    paths = gguf_paths(config.model, config.gguf_file, config.revision)
    if paths:
        kinds = {tensor.kind for tensor in read_gguf(paths).tensors.values()}
    else:
        kinds = set() if config.weights == "auto" else set(rounded_kinds(config.weights, device, dtype))
    return {(kind.bits, kernel_group(kind.group), kind.scale_bytes) for kind in kinds if kind.group}


def _refuse_rounding(config: EngineConfig) -> None:
    if config.weights != "auto":
        raise ConfigError(
            f"its weights are quantised already: weights {config.weights!r} is for checkpoints in full precision"
        )


def load_gguf(file: GgufFile, folder: str, target: Target) -> tuple[PreTrainedModel, Packing]:
    """folder: of the small files made of it."""
    blueprint = read_config(folder, {"trust_remote_code": False})
    num_weights(blueprint, len(file.tensors), False)
    model = empty_model(blueprint, target.dtype)
    weights = with_dense_embedding(model, weights_of(file, model), target)
    check_weights_fit(num_bytes_of(weights, target), target.device)
    fill(model, weights, target)
    numbers = Counter[Kind]()
    for tensor in file.tensors.values():
        numbers[tensor.kind] += prod(tensor.shape)
    kind = numbers.most_common(1)[0][0]
    is_packed = target.is_packed and not kind.is_float
    return model, Packing((file.mixture or kind.name) if is_packed else "", content_of(file.paths))


def load_quantized(blueprint: Any, fields: Fields, shards: Shards, target: Target) -> tuple[PreTrainedModel, Packing]:
    """blueprint: the configuration. fields: of its quantization."""
    del blueprint.quantization_config
    num_weights(blueprint, len(shards.names()), False)
    model = empty_model(blueprint, target.dtype)
    weights = with_dense_embedding(model, quantized_weights(shards, fields, model), target)
    check_weights_fit(num_bytes_of(weights, target), target.device)
    fill(model, weights, target)
    with suppress(OSError):  # there is none
        model.generation_config = GenerationConfig.from_pretrained(shards.paths[0].parent)
    name = str(fields["quant_method"]) if target.is_packed else ""
    return model, Packing(name, content_of(shards.paths))


def _fields(quantization: Any) -> Fields:
    fields: Fields = quantization if isinstance(quantization, dict) else quantization.to_dict()
    return fields


def shards_of(folder: str, revision: str | None) -> list[Path]:
    """The safetensors files of a folder or hub model, with the small files beside them: those of its index, or else the
    one file, as transformers reads them; any where it has neither. Raises ConfigError where there are none. Blocks:
    may download."""
    path, patterns = Path(folder), ["*.safetensors", "*.json"]
    if not path.is_dir():
        path = Path(snapshot_download(folder, revision=revision, allow_patterns=patterns, ignore_patterns="*/*"))
    index, one = path / SAFE_WEIGHTS_INDEX_NAME, path / SAFE_WEIGHTS_NAME
    if index.is_file():
        found = [path / name for name in _named_in(index)]
    else:
        found = [one] if one.is_file() else sorted(path.glob("*.safetensors"))
    if not found:
        raise ConfigError("it has no safetensors files, which quantised weights are read from")
    if missing := [each.name for each in found if not each.is_file()]:
        raise ConfigError(f"it lacks {listed(missing)}, which {index.name} names")
    return found


def _named_in(index: Path) -> list[str]:
    """The files that an index of tensors names."""
    try:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"its {index.name} cannot be read: {sentence(error)}") from error


def content_of(paths: Sequence[Path]) -> str:
    """A hash of blocks of the files, all of them where they are small."""
    content = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        with path.open("rb") as file:
            for place in range(0, size, max(SAMPLE_BYTES, size // NUM_SAMPLES)):
                file.seek(place)
                content.update(file.read(SAMPLE_BYTES))
    return content.hexdigest()
