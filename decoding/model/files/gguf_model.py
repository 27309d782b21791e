"""A GGUF file's tensors under the names of transformers' parameters. Their numbers are read when they are packed.

Knows which tensors llama.cpp's converter permutes, offsets or stacks, see `Architecture`. Owns no metadata.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from decoding.errors import ConfigError, listed
from decoding.model.files.gguf_config import IN_CONFIG, Architecture, architecture_of
from decoding.model.files.gguf_file import GgufFile, GgufTensor
from decoding.model.files.gguf_types import BLOCK_FORMATS, FLOATS, groups_of
from decoding.model.files.weight import DenseWeight, PackedWeight, Weight
from decoding.model.linear.groups import Groups

STACKED = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.(weight|bias)")
TURNED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")
Rows = NDArray[np.int64]


def weights_of(file: GgufFile, model: PreTrainedModel) -> dict[str, Weight]:
    """The file's weights by the model's names. Raises ConfigError for a tensor that no part of the model is named
    after."""
    architecture = architecture_of(file)
    names = _names(file, model)
    experts = {
        name.split(".layers.")[1].split(".")[0]: name for name, _ in model.named_modules() if name.endswith(".experts")
    }
    weights: dict[str, Weight] = {}
    strangers = []
    for tensor in file.tensors.values():
        stacked = STACKED.fullmatch(tensor.name)
        if stacked is not None and stacked[1] in experts:
            weights |= _stacked(file, tensor, f"{experts[stacked[1]]}.{{}}.{stacked[2]}_proj.{stacked[3]}")
        elif tensor.name in names:
            weights[names[tensor.name]] = _weight(file, tensor, architecture, names[tensor.name], model)
        elif tensor.name not in IN_CONFIG:
            strangers.append(tensor.name)
    if strangers:
        raise ConfigError(
            f"it has tensors that a {model.config.model_type} model has no place for: {listed(strangers)}"
        )
    return weights


def _names(file: GgufFile, model: PreTrainedModel) -> dict[str, str]:
    """The model's parameter by the file's tensor, by gguf's map."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    number = next((number for number, name in MODEL_ARCH_NAMES.items() if name == file.architecture), None)
    assert number is not None, file.architecture
    name_map = get_tensor_name_map(number, model.config.num_hidden_layers)
    found = {}
    for name, _ in model.named_parameters(remove_duplicate=False):
        base, _, suffix = name.rpartition(".")
        theirs = name_map.get_name(base) if suffix in ("weight", "bias") else name_map.get_name(name)
        if theirs is not None:
            found[f"{theirs}.{suffix if suffix == 'bias' else 'weight'}"] = name
    return found


def _weight(
    file: GgufFile, tensor: GgufTensor, architecture: Architecture, name: str, model: PreTrainedModel
) -> Weight:
    order, offset = None, 0.0
    turned = TURNED.fullmatch(tensor.name)
    if turned is not None and architecture.permutes:
        heads = "attention.head_count" + ("_kv" if turned[1] == "k" else "")
        order = _turned_rows(tensor, _num_heads(model, heads))
    if architecture.norm_offset and tensor.name.endswith("norm.weight"):
        offset = architecture.norm_offset
    shape = tuple(model.get_parameter(name).shape)
    return _read_later(
        file, tensor, tensor.rows, shape if tensor.type_name in FLOATS else tensor.shape, name, order, offset
    )


def _num_heads(model: PreTrainedModel, name: str) -> int:
    config = model.config
    return int(config.num_key_value_heads if name.endswith("_kv") else config.num_attention_heads)


def _turned_rows(tensor: GgufTensor, num_heads: int) -> Rows:
    """The file's row for each of ours: a head's rows are pairs in the file and two halves here."""
    num_rows = tensor.shape[0]
    if num_rows % (2 * num_heads):
        raise ConfigError(f"tensor {tensor.name!r} has {num_rows} rows, which are no pairs of {num_heads} heads")
    rows: Rows = np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return rows


def _stacked(file: GgufFile, tensor: GgufTensor, name: str) -> dict[str, Weight]:
    """Each expert's own weight. name: with a place for the expert's number."""
    is_bias = name.endswith("bias")
    if len(tensor.shape) != (2 if is_bias else 3):
        raise ConfigError(f"tensor {tensor.name!r} has shape {tensor.shape}, which is not one matrix for each expert")
    count = tensor.shape[0]
    rows = tensor.rows.reshape(count, -1, tensor.rows.shape[1])
    shape = tensor.shape[1:]
    return {
        name.format(number): _read_later(file, tensor, rows[number], shape, name.format(number))
        for number in range(count)
    }


def _read_later(
    file: GgufFile,
    tensor: GgufTensor,
    rows: NDArray[np.uint8],
    shape: tuple[int, ...],
    name: str,
    order: Rows | None = None,
    offset: float = 0.0,
) -> Weight:
    """order: the file's row for each of ours."""
    if tensor.type_name in FLOATS:
        return DenseWeight(name, _fitting(tensor, shape, rows), _floats(tensor, rows, shape, order, offset))
    form = BLOCK_FORMATS[tensor.type_name]
    if len(shape) != 2:
        raise ConfigError(f"tensor {tensor.name!r} is of type {tensor.type_name} and no matrix")

    def read(start: int, stop: int) -> Groups:
        part = rows[start:stop] if order is None else rows[order[start:stop]]
        copied = torch.from_numpy(np.array(part))
        file.release()
        return groups_of(copied, tensor.type_name)

    return PackedWeight(name, (shape[0], shape[1]), form.bits, form.group, read)


def _fitting(tensor: GgufTensor, shape: tuple[int, ...], rows: NDArray[np.uint8]) -> tuple[int, ...]:
    """`shape` if the tensor has as many numbers, such as a column kept as a row; else its own."""
    count = rows.size // FLOATS[tensor.type_name].itemsize
    return shape if count == torch.Size(shape).numel() else tensor.shape


def _floats(
    tensor: GgufTensor, rows: NDArray[np.uint8], shape: tuple[int, ...], order: Rows | None, offset: float
) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        numbers = torch.from_numpy(np.array(rows)).view(FLOATS[tensor.type_name]).reshape(shape)
        if order is not None:
            numbers = numbers[torch.from_numpy(order)]
        return numbers.float() - offset if offset else numbers

    return read
