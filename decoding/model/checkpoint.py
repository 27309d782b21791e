"""Reads a checkpoint's configuration: its folder, dtype, context length, end tokens, identity.

Invariant: device, dtype and attention are never "auto" after `resolve`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from decoding.config import BUNDLED_MODEL, Attention, EngineConfig, KvDtype
from decoding.errors import ConfigError
from decoding.kernels.gpu.card import capability, card_name
from decoding.kernels.gpu.toolchain import why_no_triton
from decoding.model.blueprint import CONTEXT_NAMES, read_config
from decoding.model.files.gguf_place import gguf_paths, small_files
from decoding.model.refusal import refusing

logger = logging.getLogger(__name__)
CHOSEN = "its layers choose for a token (index_topk in config.json), beyond which attention is sparse"

BUNDLED_FOLDER = Path(__file__).parents[1] / "gosling"
SAMPLES_PER_TENSOR = 256
FP8_CAPABILITY = (8, 9)  # of GPUs that convert fp8 in hardware


def resolve(config: EngineConfig) -> tuple[EngineConfig, str]:
    """The configuration without "auto" for device, dtype and attention, and the folder or hub name to load."""
    source = folder_of(config.model, config.gguf_file, config.revision)
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device_type = _type_of(device)
    if device_type == "cuda" and config.num_processes > 1:
        device = own_device(device, config)
    dtype = config.dtype
    if dtype == "auto":
        dtype = "float32" if device_type == "cpu" else _checkpoint_dtype(source, config)
    attention = resolve_attention(config.attention, device_type, dtype)
    resolve_kv_dtype(config.kv_dtype, torch.device(device), dtype, attention)
    if config.exact and device_type != "cpu" and attention != "triton":
        raise ConfigError(f"exact needs Triton's kernels on a GPU, and attention is {attention!r}")
    return replace(config, device=device, dtype=dtype, attention=attention), source


def _type_of(device: str) -> str:
    """The device's type. Raises ConfigError if it is no device, or not on this machine."""
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device {device!r} is not a device: {error}") from error
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} CUDA devices" if torch.cuda.is_available() else "no CUDA device"
        raise ConfigError(f"device {device!r} is not there: torch sees {found} on this machine")
    return wanted.type


def own_device(device: str, config: EngineConfig) -> str:
    """This worker's own GPU, or the first of them if its model is divided. Raises ConfigError if there are fewer GPUs
    than are needed, or `device` names another one."""
    own = f"cuda:{config.place * config.tensor_parallel_size}"
    size = config.tensor_parallel_size
    asked = f"workers is {config.workers}" + (f" and tensor_parallel_size {size}" if size > 1 else "")
    if device not in ("cuda", own):
        raise ConfigError(f"device {device!r} is one GPU and {asked}; 'cuda' gives each its own")
    if config.num_processes > torch.cuda.device_count():
        each = "worker has one" if size == 1 else f"worker has {size}"
        raise ConfigError(
            f"{asked}, but torch sees {torch.cuda.device_count()} CUDA devices, and each {each} of its own"
        )
    return own


def folder_of(model: str, gguf_file: str | None = None, revision: str | None = None) -> str:
    """The folder of the bundled model, or of the small files made of a GGUF file; any other folder or hub name as it
    is. Raises ConfigError where a GGUF file makes none."""
    if model == BUNDLED_MODEL:
        return str(BUNDLED_FOLDER)
    paths = gguf_paths(model, gguf_file, revision)
    return str(small_files(paths)) if paths else model


def resolve_kv_dtype(kv_dtype: KvDtype, device: torch.device, dtype: str, attention: Attention) -> str:
    """The type of keys and values for "auto": the model's. Raises ConfigError if the requested one cannot be had."""
    if kv_dtype in ("auto", dtype):
        return dtype
    if kv_dtype == "fp8" and attention == "triton":
        if device.type == "cuda" and capability(device) < FP8_CAPABILITY:
            found, needed = (".".join(map(str, each)) for each in (capability(device), FP8_CAPABILITY))
            raise ConfigError(
                f"kv_dtype 'fp8' needs a GPU of compute capability {needed} or more, and this one's is {found}"
            )
        return kv_dtype
    if device.type != "cpu" or attention == "triton":
        raise ConfigError(
            f"kv_dtype {kv_dtype!r} needs a CPU, and no attention 'triton': on {device.type} with {attention!r} keys "
            f"and values have the model's dtype, which is {dtype}, or are 'fp8' where attention is 'triton'"
        )
    return kv_dtype


def resolve_attention(attention: Attention, device_type: str, dtype: str) -> Attention:
    """The backend for "auto": exact where possible, Triton on a GPU, else sdpa. Raises ConfigError if the requested one
    cannot run here."""
    can_be_exact = device_type == "cpu" and dtype in ("float32", "bfloat16")
    if attention == "exact" and not can_be_exact:
        raise ConfigError(
            f"attention 'exact' needs the CPU and float32 or bfloat16, not {device_type} and {dtype}; use 'sdpa'"
        )
    if attention == "triton":
        if find_spec("triton") is None:
            raise ConfigError("attention 'triton' needs the package triton, which is not installed; use 'sdpa'")
        if device_type == "cpu" and not _is_interpreted():
            raise ConfigError("attention 'triton' needs a GPU (or TRITON_INTERPRET=1, for tests); use 'exact'")
        if device_type == "cuda" and (reason := why_no_triton()) is not None:
            raise ConfigError(f"attention 'triton' cannot run: {reason}; mend that or use 'sdpa'")
    if attention != "auto":
        return attention
    if can_be_exact:
        return "exact"
    if device_type != "cuda":
        return "sdpa"
    reason = why_no_triton()
    if reason is not None:
        logger.warning("Attention copies keys and values for torch's own kernels, which is slower: %s.", reason)
    return "triton" if reason is None else "sdpa"


def _is_interpreted() -> bool:
    """Whether Triton runs its kernels on the CPU."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def max_model_len(config: Any, wanted: int | None) -> int:
    """The context length to serve. Raises ConfigError with both lengths if less than `wanted` can be."""
    text_config = config.get_text_config()
    lengths = (getattr(text_config, name, None) for name in CONTEXT_NAMES)
    supported = next((length for length in lengths if length is not None), None)
    if supported is None:
        return wanted or 2048
    chosen = _keys_chosen(text_config)
    if chosen is not None and chosen < supported:
        if wanted is not None and wanted > chosen:
            raise ConfigError(f"max_model_len {wanted} is more than the {chosen} keys that {CHOSEN}")
        logger.warning("Sequences of more than %d tokens are not served: that is how many keys %s.", chosen, CHOSEN)
        supported = chosen
    if wanted is not None and wanted > supported:
        raise ConfigError(f"max_model_len {wanted} is more than the {supported} tokens that the model supports")
    return int(wanted or supported)


def _keys_chosen(text_config: Any) -> int | None:
    """How many keys a token attends to at most, of a model with sparse attention, which no kernel here computes."""
    blocks = getattr(text_config, "index_topk_blocks", None)
    return getattr(text_config, "index_topk", None) if blocks is None else blocks * text_config.index_block_size


def eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    """The end tokens of the generation configuration, or else of the model's configuration. Ids beyond the vocabulary
    are left out: they are never drawn. Raises ConfigError for what is no id."""
    num_tokens = model.get_input_embeddings().num_embeddings
    for source in (model.generation_config, model.config.get_text_config()):
        given = getattr(source, "eos_token_id", None)
        if given is not None:
            ids = given if isinstance(given, list | tuple) else [given]
            if not all(type(each) is int for each in ids):
                raise ConfigError(f"the model's eos_token_id is {given!r}; it must be an integer or a list of integers")
            return frozenset(each for each in ids if 0 <= each < num_tokens)
    return frozenset()


def fingerprint(device: torch.device, *parts: object) -> str:
    """16 hex digits that hash everything a seeded reply depends on. parts: the model's identity, and how it is run."""
    text = f"{torch.__version__} {transformers.__version__} {device_name(device)} {parts}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def device_name(device: torch.device) -> str:
    """The kind of device and the version of its libraries: another one rounds otherwise, and takes other times."""
    if device.type != "cuda":
        return device.type
    major, minor = capability(device)
    return f"{card_name(device)} {major}.{minor}, CUDA {torch.version.cuda}"


def identity(model: PreTrainedModel, content: str = "") -> str:
    """16 hex digits that identify the model on any machine. The hash reads a sample of the weights. content: of packed
    weights, which the model's state does not show."""
    digest = hashlib.sha256(content.encode())
    config = model.config.to_diff_dict() | {"transformers_version": None}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    digest.update(f"{model.dtype}".encode())
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // SAMPLES_PER_TENSOR)
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(flat[::step].float().cpu().numpy().astype(np.float32).tobytes())
    return digest.hexdigest()[:16]


def freeze_rope(model: nn.Module, length: int) -> None:
    """Fix the rotary frequencies that transformers would otherwise choose anew from each batch's longest position."""
    for module in model.modules():
        rope_type = getattr(module, "rope_type", None)
        if isinstance(rope_type, str) and ("dynamic" in rope_type or rope_type == "longrope"):
            _freeze(module, length)
        elif isinstance(rope_type, dict) and any("dynamic" in t or t == "longrope" for t in rope_type.values()):
            raise ConfigError("rotary embeddings that change with length per layer type are not supported")


def _freeze(module: Any, length: int) -> None:
    """Run the module once at the longest position that is served, then stop it from choosing again."""
    positions = torch.tensor([[length - 1]], device=module.inv_freq.device)
    with torch.inference_mode():
        module(torch.zeros(1, 1, 1, device=module.inv_freq.device), positions)
    module.rope_type = "default"


def _checkpoint_dtype(source: str, config: EngineConfig) -> Any:
    origin = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    with refusing(f"model {config.model!r} cannot be loaded"):
        loaded = read_config(source, origin)
    name = str(getattr(loaded, "dtype", None)).removeprefix("torch.")
    return name if name in ("float16", "bfloat16") else "bfloat16"
