"""Loads a model's weights in whatever format they are, once they are known to fit into memory.

Invariant: nothing large is read or built before its size was checked.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from transformers import PreTrainedModel

from decoding.config import EngineConfig
from decoding.errors import ConfigError
from decoding.model.blueprint import num_tensors, num_weights, read_config
from decoding.model.files.gguf_file import GgufFile, read_gguf
from decoding.model.files.gguf_model import weights_of
from decoding.model.files.gguf_place import gguf_paths
from decoding.model.files.gguf_types import BLOCK_FORMATS
from decoding.model.files.skeleton import empty_model, fill, num_bytes_of
from decoding.model.files.weight import Target
from decoding.model.linear.packed import can_pack
from decoding.model.memory import check_weights_fit
from decoding.model.weights import load_weights

SAMPLES = 64  # rows of each tensor that are hashed


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """What a model's state does not show. name: of the format of most weights, "" if none are packed; content: a hash
    of them."""

    name: str = ""
    content: str = ""


UNPACKED = PackedWeights()


def load_model(folder: str, config: EngineConfig) -> tuple[PreTrainedModel, PackedWeights]:
    """The model, and what it holds packed. folder: as `resolve` returns it, with `config`
    resolved. Raises ConfigError with a message that continues "model ... cannot be loaded: ", and what transformers
    raises."""
    dtype, device = getattr(torch, config.dtype), torch.device(config.device)
    paths = gguf_paths(config.model, config.gguf_file, config.revision)
    if not paths:
        origin = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
        blueprint = read_config(folder, origin)
        size = num_weights(blueprint, num_tensors(folder), config.trust_remote_code)
        check_weights_fit(size * dtype.itemsize, device)
        return load_weights(folder, dtype, origin, device), UNPACKED
    if config.weights == "int8":
        raise ConfigError("its weights are packed already: weights 'int8' is for checkpoints in full precision")
    return load_gguf(read_gguf(paths), folder, Target(dtype, device, can_pack(device, dtype)))


def load_gguf(file: GgufFile, folder: str, target: Target) -> tuple[PreTrainedModel, PackedWeights]:
    """folder: of the small files made of it."""
    blueprint = read_config(folder, {"trust_remote_code": False})
    num_weights(blueprint, len(file.tensors), False)
    model = empty_model(blueprint, target.dtype)
    weights = weights_of(file, model)
    check_weights_fit(num_bytes_of(weights, target), target.device)
    fill(model, weights, target)
    content, numbers = hashlib.sha256(file.header_hash.encode()), Counter[str]()
    for tensor in file.tensors.values():
        content.update(np.ascontiguousarray(tensor.rows[:: max(1, len(tensor.rows) // SAMPLES)]).tobytes())
        numbers[tensor.type_name] += prod(tensor.shape)
    file.release()
    name = numbers.most_common(1)[0][0]
    is_packed = target.is_packed and name in BLOCK_FORMATS
    return model, PackedWeights(name if is_packed else "", content.hexdigest())
