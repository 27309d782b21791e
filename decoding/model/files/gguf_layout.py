"""How llama.cpp's converter lays out tensors otherwise than transformers does: which rows and columns it moves, which
numbers it changes, and of which tensors one of ours is joined.

Read off its converter (conversion/qwen.py, mamba.py, granite.py, llama.py). Knows no file. Invariant: what is not
named here lies as it does in transformers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.errors import ConfigError
from decoding.model.files.gguf_config import Architecture

if TYPE_CHECKING:
    import torch

TURNED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")
DECAY = re.compile(r"blk\.\d+\.ssm_a")
IN_LAYER = re.compile(r"blk\.(\d+)\.(.*)")
# By the end of our parameter's name, the tensors that it is joined of, under the names of any of several converters.
JOINED: dict[str, list[tuple[str, ...]]] = {
    "linear_attn.in_proj_qkvz.weight": [("attn_qkv.weight", "attn_gate.weight")],
    "shared_mlp.input_linear.weight": [
        ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
        ("ffn_gate.weight", "ffn_up.weight"),
    ],
    "shared_mlp.output_linear.weight": [("ffn_down_shexp.weight",), ("ffn_down.weight",)],
}
Rows = NDArray[np.int64]


class Layout(NamedTuple):
    """rows: the file's row for each of ours. columns: our column for each of the file's. number: ours, of the file's
    numbers."""

    rows: Rows | None = None
    columns: Rows | None = None
    number: Callable[[torch.Tensor], torch.Tensor] | None = None


def layout_of(name: str, num_rows: int, architecture: Architecture, config: Any) -> Layout:
    """name: of the file's tensor. config: of the model. Raises ConfigError where rows are no pairs."""
    turned = TURNED.fullmatch(name)
    if turned is not None and architecture.permutes:
        num_heads = config.num_key_value_heads if turned[1] == "k" else config.num_attention_heads
        return Layout(rows=turned_rows(name, num_rows, num_heads))
    if DECAY.fullmatch(name):
        return Layout(rows=_tiled(config, 1) if _is_tiled(architecture) else None, number=_log_of_negative)
    if architecture.norm_offset and name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
        offset = architecture.norm_offset
        return Layout(number=lambda numbers: numbers.float() - offset)
    in_layer = IN_LAYER.fullmatch(name)
    return _tiled_layout(in_layer[2], config) if in_layer and _is_tiled(architecture) else Layout()


def joined_rows(parameter: str, config: Any) -> Rows | None:
    """The row of the parts, one after the other, for each of a joined parameter's; None where they lie so."""
    if not parameter.endswith("in_proj_qkvz.weight"):
        return None
    num_keys, key_dim = config.linear_num_key_heads, config.linear_key_head_dim
    value_dim = config.linear_num_value_heads // num_keys * config.linear_value_head_dim
    rows, start = [], 0
    for width in (key_dim, key_dim, value_dim, value_dim):  # queries, keys, values, gates
        rows.append(start + np.arange(num_keys * width).reshape(num_keys, width))
        start += num_keys * width
    return np.concatenate(rows, axis=1).reshape(-1)


def _is_tiled(architecture: Architecture) -> bool:
    """Whether value heads lie in turns, one of each key head's, and not key head by key head."""
    return architecture.model_type in ("qwen3_5_text", "qwen3_5_moe_text")


def _tiled_layout(name: str, config: Any) -> Layout:
    width = config.linear_value_head_dim
    if name in ("attn_qkv.weight", "ssm_conv1d.weight"):
        num_others = 2 * config.linear_num_key_heads * config.linear_key_head_dim
        return Layout(rows=np.concatenate((np.arange(num_others), num_others + _tiled(config, width))))
    if name == "attn_gate.weight":
        return Layout(rows=_tiled(config, width))
    if name in ("ssm_alpha.weight", "ssm_beta.weight", "ssm_dt.bias"):
        return Layout(rows=_tiled(config, 1))
    return Layout(columns=np.argsort(_tiled(config, width))) if name == "ssm_out.weight" else Layout()


def _tiled(config: Any, width: int) -> Rows:
    """The file's row for each of ours, of value heads of `width` rows."""
    num_keys, num_values = config.linear_num_key_heads, config.linear_num_value_heads
    if num_values % num_keys:
        raise ConfigError(f"its ssm.time_step_rank is {num_values}, no multiple of its ssm.group_count {num_keys}")
    rows: Rows = np.arange(num_values * width).reshape(-1, num_keys, width).swapaxes(0, 1).reshape(-1)
    return rows


def turned_rows(name: str, num_rows: int, num_heads: int) -> Rows:
    """The file's row for each of ours, of queries or keys: a head's rows are pairs in the file and two halves here."""
    if num_rows % (2 * num_heads):
        raise ConfigError(f"tensor {name!r} has {num_rows} rows, which are no pairs of {num_heads} heads")
    rows: Rows = np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return rows


def _log_of_negative(numbers: torch.Tensor) -> torch.Tensor:
    """The file has what the logarithm stands for, below zero."""
    return (-numbers.float()).log()
