"""What a model's config.json asks for: read, checked and sized before anything is built of it.

Knows nothing of what the weights hold. Invariant: reading and sizing take bounded memory, whatever config.json says.
"""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from decoding.errors import ConfigError
from decoding.process.machine import address_bytes, limit_addresses

CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
WRAPPERS_FIELDS = ("dtype", "quantization_config", "bos_token_id", "eos_token_id", "pad_token_id")
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    *CONTEXT_NAMES,
)
LARGEST = 2**31 - 1  # ids and positions are 32-bit integers
PARTS = 8  # parameters that a model may have for each tensor of its files, since some tensors are split or shared
MOST_TENSORS = 100_000  # of a model whose files are not here to be counted
ROOM = 2**29  # bytes that reading or sizing may take
READ_SECONDS, SIZE_SECONDS = 1.0, 5.0  # of processor time; the largest models are sized in less than one
AGAIN_SECONDS = 0.1  # until it is told again, should the first time have been caught on the way
_LIMITING = threading.Lock()

# Types of text models that transformers has within others alone, and what they are but for their rotary embeddings.
ALONE = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
UNSAID = {"qwen3_vl_moe_text": {"norm_topk_prob": True}}  # fields that these types have not, since it is always so
SECTIONS = ("mrope_section", "mrope_interleaved")  # which of its numbers turn by time, height and width
T = TypeVar("T")


def read_config(source: str, origin: dict[str, Any]) -> Any:
    """The configuration of a folder or hub name; of one that sees or hears as well, that of its text model. origin:
    revision and trust_remote_code. Raises ConfigError naming the field at fault, and what transformers raises."""
    seconds = 0.0 if origin["trust_remote_code"] else READ_SECONDS  # code from elsewhere may import anything
    config = text_part(_bounded(seconds, lambda: AutoConfig.from_pretrained(source, **origin)))
    kind = config.model_type
    is_known = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING  # or registered
    if not is_known and not origin["trust_remote_code"]:
        raise ConfigError(
            f"config.json: transformers has no causal language model of type {kind!r}, nor does it wrap one"
        )
    is_causal = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not is_causal:
        raise ConfigError(
            f"config.json: a model of type {kind!r} is an encoder, each of whose tokens sees the whole text; what "
            "is served are causal language models, whose tokens see what comes before them"
        )
    text_config = config.get_text_config()
    for name in SIZES:
        value = getattr(text_config, name, None)
        if value is None or isinstance(value, list | tuple):  # some types have a value for each layer
            continue
        if type(value) is not int or not 1 <= value <= LARGEST:
            raise ConfigError(f"config.json: {name} is {value!r}; it must be an integer from 1 to {LARGEST}")
    return config


def text_part(config: Any) -> Any:
    """The configuration of the text model that another model wraps, where it is a causal language model on its own, or
    but for its rotary embeddings; `rotary_of` then is the type that these are of. Any other configuration as it is."""
    text_config = config.get_text_config()
    if text_config.model_type in ALONE:
        text_config = _alone(text_config)
    if text_config is config or text_config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return config
    for name in WRAPPERS_FIELDS:
        value = getattr(config, name, None)
        if value is not None and getattr(text_config, name, None) is None:
            setattr(text_config, name, value)
    text_config.tie_word_embeddings = getattr(config, "tie_word_embeddings", text_config.tie_word_embeddings)
    return text_config


def _alone(text_config: Any) -> Any:
    fields = text_config.to_dict() | {"rotary_of": text_config.model_type}
    rope = dict(fields["rope_parameters"] or {})
    sections = {name: rope.pop(name) for name in SECTIONS if name in rope}  # which other types would warn of
    fields |= UNSAID.get(text_config.model_type, {}) | {"rope_parameters": rope}
    config = CONFIG_MAPPING[ALONE[fields.pop("model_type")]](**fields)
    config.rope_parameters |= sections
    return config


def num_weights(config: Any, found: int | None, trust_remote_code: bool) -> int:
    """The numbers that a model of this configuration holds. found: tensors of its files, None if not known. Raises
    ConfigError where the model would have many more."""
    most = MOST_TENSORS if found is None else PARTS * (found + PARTS)
    num_tensors = 0

    def count(_module: nn.Module, _name: str, _parameter: nn.Parameter | None) -> None:
        nonlocal num_tensors
        num_tensors += 1
        if num_tensors > most:
            there = "" if found is None else f", and its files have {found}"
            raise ConfigError(f"config.json asks for more than {most} tensors{there}")

    hook = register_module_parameter_registration_hook(count)
    try:
        return size_of(lambda: AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code))
    finally:
        hook.remove()


def size_of(build: Callable[[], Any]) -> int:
    """The numbers that the model holds that `build` would build, which takes bounded memory and time. Raises
    ConfigError where that is not enough."""

    def without_numbers() -> Any:
        with torch.device("meta"):
            return build()

    model = _bounded(SIZE_SECONDS, without_numbers)
    return sum(each.numel() for each in chain(model.parameters(), model.buffers()))


def num_tensors(source: str) -> int | None:
    """The tensors in a folder's safetensors files; None where there are none, or they cannot be read."""
    paths = sorted(Path(source).glob("*.safetensors"))
    try:
        return sum(_num_named(path) for path in paths) or None
    except Exception:  # whoever loads them says what is wrong
        return None


def _num_named(path: Path) -> int:
    with safe_open(path, "pt") as file:
        return len(file.keys())


def _bounded(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns. It may take `ROOM` bytes and, in a process's main thread, so many seconds of processor time
    unless they are 0. Raises ConfigError where that is not enough. One thread at a time has the limits, which are the
    process's. No context manager: a signal between its steps would leave them in force."""
    too_much = ConfigError("config.json asks for more than can be built: some count in it is absurdly large")
    is_running = True

    def stop(_number: int, _frame: FrameType | None) -> None:
        if is_running:
            raise too_much

    is_timed = threading.current_thread() is threading.main_thread()
    with _LIMITING:
        room = resource.getrlimit(resource.RLIMIT_AS)
        before = signal.signal(signal.SIGPROF, stop) if is_timed else None
        try:
            try:
                limit_addresses(address_bytes() + ROOM)
                if is_timed:
                    signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN_SECONDS)
                return work()
            except MemoryError:
                raise too_much from None
            finally:
                is_running = False  # should it be stopped right here, what follows is done all the same
        finally:
            is_running = False
            if is_timed:
                signal.setitimer(signal.ITIMER_PROF, 0.0)
                signal.signal(signal.SIGPROF, before)
            resource.setrlimit(resource.RLIMIT_AS, room)
