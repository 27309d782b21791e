"""A GGUF file's tensors under the names of transformers' parameters. Their numbers are read when they are packed.

Knows which tensors llama.cpp's converter stacks; which it moves or changes, `Layout` says. Owns no metadata.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from decoding.errors import ConfigError, listed
from decoding.model.files.gguf_config import IN_CONFIG, architecture_of
from decoding.model.files.gguf_file import GgufFile, GgufTensor
from decoding.model.files.gguf_layout import JOINED, Layout, Rows, joined_rows, layout_of
from decoding.model.files.gguf_metadata import Metadata
from decoding.weights.groups import Groups, groups_of, kernel_group, kernel_width
from decoding.weights.kinds import FLOAT32, KINDS
from decoding.weights.matrix import Matrix
from decoding.weights.numbers.stored_codes import StoredCodes

STACKED = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.(weight|bias)")
BLOCK = re.compile(r"blk\.(\d+)\.")
FIRST_BLOCK = "blk.0."
RENAMED = (  # the end of a parameter's name, and what the published checkpoint calls it
    (".dt_bias", ".dt_proj.bias"),
    (".expert_bias", ".expert_bias.bias"),
    (".block_sparse_moe.router.weight", ".block_sparse_moe.router.layer.weight"),
)
Shape = tuple[int, ...]


def weights_of(file: GgufFile, model: PreTrainedModel) -> dict[str, Matrix]:
    """The file's weights by the model's names. Raises ConfigError for a tensor that no part of the model is named
    after, unless it is of an MTP head, which is left out."""
    architecture, metadata = architecture_of(file), Metadata(file)
    left_out = range(metadata.num_layers, metadata.num_layers + metadata.num_drafting)
    shapes = _shapes(model)
    names = _names(file, list(shapes), metadata.num_layers)
    experts = {
        name.split(".layers.")[1].split(".")[0]: name for name, _ in model.named_modules() if name.endswith(".experts")
    }
    weights, joined = _joined(file, shapes, model)
    strangers = []
    for key, tensor in file.tensors.items():
        stacked, name, block = STACKED.fullmatch(key), names.get(key), BLOCK.match(key)
        if key in joined or (block is not None and int(block[1]) in left_out):
            continue
        if stacked is not None and stacked[1] in experts:
            weights |= _stacked(file, tensor, f"{experts[stacked[1]]}.{{}}.{stacked[2]}_proj.{stacked[3]}")
        elif name is not None:
            layout = layout_of(key, tensor.shape[0], architecture, model.config)
            weights[name] = _read_later(file, [tensor], _own_shape(tensor, shapes[name]), name, layout)
        elif key not in IN_CONFIG:
            strangers.append(tensor.name)
    if strangers:
        raise ConfigError(
            f"it has tensors that a {model.config.model_type} model has no place for: {listed(strangers)}"
        )
    return weights


def mtp_weights(file: GgufFile, model: PreTrainedModel) -> dict[str, Matrix]:
    """The weights of an MTP head's first module, whose layer is the only one of `model`: that layer's by the model's
    names, the others by the file's without the block (nextn.eh_proj.weight). Raises ConfigError as `weights_of`."""
    block, of_layer, others = _mtp_block(file), dict[str, GgufTensor](), dict[str, Matrix]()
    for name, tensor in file.tensors.items():
        if name.startswith(f"{block}nextn."):
            layout = layout_of(name, tensor.shape[0], architecture_of(file), model.config)
            others[name.removeprefix(block)] = _read_later(file, [tensor], tensor.shape, name, layout)
        elif name.startswith(block):
            of_layer[name.replace(block, FIRST_BLOCK, 1)] = tensor
    return weights_of(replace(file, tensors=of_layer), model) | others


def mtp_names(file: GgufFile, model: PreTrainedModel) -> dict[str, str]:
    """The file's tensors of that layer by the model's names."""
    block, names = _mtp_block(file), _names(file, list(_shapes(model)), 1)
    return {own: name.replace(FIRST_BLOCK, block, 1) for name, own in names.items()}


def _mtp_block(file: GgufFile) -> str:
    return f"blk.{Metadata(file).num_layers}."


def _shapes(model: PreTrainedModel) -> dict[str, Shape]:
    """Of all parameters and buffers: a router's bias may be either."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return {name: tuple(each.shape) for name, each in named}


def _names(file: GgufFile, parameters: Sequence[str], num_layers: int) -> dict[str, str]:
    """The model's parameter by the file's tensor, by gguf's map."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    number = next((number for number, name in MODEL_ARCH_NAMES.items() if name == file.architecture), None)
    assert number is not None, file.architecture
    name_map = get_tensor_name_map(number, num_layers)
    found = {}
    for parameter in parameters:
        name = parameter
        for end, published in RENAMED:
            name = name.removesuffix(end) + published if name.endswith(end) else name
        base, _, suffix = name.rpartition(".")
        base = base if suffix in ("weight", "bias") else name
        theirs = name_map.get_name(base) or name_map.get_name(base.replace("model.", "backbone.", 1))
        theirs = theirs or name_map.get_name(name)
        if theirs is not None and suffix == "bias":
            found[f"{theirs}.bias"] = parameter
        elif theirs is not None:  # some are written without an end
            found[theirs] = found[f"{theirs}.weight"] = parameter
    return found


def _joined(file: GgufFile, shapes: dict[str, Shape], model: PreTrainedModel) -> tuple[dict[str, Matrix], set[str]]:
    """The weights that the file has in parts, and the tensors that are these."""
    weights: dict[str, Matrix] = {}
    used: set[str] = set()
    for name in shapes:
        end = next((end for end in JOINED if name.endswith(end)), None)
        if end is None:
            continue
        block = f"blk.{name.split('.layers.')[1].split('.')[0]}."
        for parts in JOINED[end]:
            tensors = [file.tensors[block + part] for part in parts if block + part in file.tensors]
            if len(tensors) == len(parts) and len({tensor.shape[1:] for tensor in tensors}) == 1:
                shape: Shape = (sum(tensor.shape[0] for tensor in tensors), *tensors[0].shape[1:])
                layout = Layout(rows=joined_rows(name, model.config))
                weights[name] = _read_later(file, tensors, shape, name, layout)
                used |= {block + part for part in parts}
                break
    return weights, used


def _own_shape(tensor: GgufTensor, shape: Shape) -> Shape:
    """`shape` if the tensor has as many plain numbers, such as a column kept as a row; else its own."""
    is_alike = tensor.kind.is_float and torch.Size(shape).numel() == torch.Size(tensor.shape).numel()
    return shape if is_alike else tensor.shape


def _stacked(file: GgufFile, tensor: GgufTensor, name: str) -> dict[str, Matrix]:
    """Each expert's own weight. name: with a place for the expert's number."""
    is_bias = name.endswith("bias")
    if len(tensor.shape) != (2 if is_bias else 3):
        raise ConfigError(f"tensor {tensor.name!r} has shape {tensor.shape}, which is not one matrix for each expert")
    count = tensor.shape[0]
    rows = tensor.rows.reshape(count, -1, tensor.rows.shape[1])
    parts = [GgufTensor(tensor.name, tensor.kind, tensor.shape[1:], rows[number]) for number in range(count)]
    return {
        name.format(number): _read_later(file, [part], part.shape, name.format(number), Layout())
        for number, part in enumerate(parts)
    }


def _read_later(file: GgufFile, parts: Sequence[GgufTensor], shape: Shape, name: str, layout: Layout) -> Matrix:
    """One weight of a tensor, or of several whose rows come one after the other."""
    kinds = {part.kind for part in parts}
    kind = kinds.pop()
    if kinds or kind.is_float:
        return Matrix.of_floats(shape, _numbers(file, parts, shape, layout), KINDS[FLOAT32] if kinds else kind)
    if len(shape) != 2:
        raise ConfigError(f"tensor {parts[0].name!r} is of type {kind.name} and no matrix")
    rows, unpack = parts[0].rows if len(parts) == 1 else None, kind.unpack()

    def read(start: int, stop: int) -> Groups:
        if rows is None:
            picked = _picked(parts, np.arange(start, stop) if layout.rows is None else layout.rows[start:stop])
        else:
            picked = np.array(rows[start:stop] if layout.rows is None else rows[layout.rows[start:stop]])
        if stop == shape[0]:
            file.release()
        blocks = torch.from_numpy(picked).reshape(-1, kind.num_bytes)
        return groups_of(unpack(blocks), len(picked), kind.bits, kind.group)

    order_I = None if layout.columns is None else torch.from_numpy(layout.columns)
    own = (shape[0], shape[1])
    stored = (shape[0], kernel_width(shape[1], kind.group))
    codes = StoredCodes(name, stored, read, kind.bits, kernel_group(kind.group), scale_bytes=kind.scale_bytes)
    return Matrix.of_codes(kind, own, codes, order_I)


def _picked(parts: Sequence[GgufTensor], rows: Rows) -> NDArray[np.uint8]:
    """Some rows of all parts', counted through."""
    picked = np.empty((len(rows), parts[0].rows.shape[1]), np.uint8)
    start = 0
    for part in parts:
        is_here = (rows >= start) & (rows < start + len(part.rows))
        picked[is_here] = part.rows[rows[is_here] - start]
        start += len(part.rows)
    return picked


def _numbers(file: GgufFile, parts: Sequence[GgufTensor], shape: Shape, layout: Layout) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        found = [unpacked(file, part) for part in parts]
        numbers = (found[0] if len(found) == 1 else torch.cat(found)).reshape(shape)
        if layout.rows is not None:
            numbers = numbers[torch.from_numpy(layout.rows)]
        if layout.columns is not None:
            numbers = numbers[:, torch.from_numpy(np.argsort(layout.columns))]
        return numbers if layout.number is None else layout.number(numbers)

    return read


def unpacked(file: GgufFile, tensor: GgufTensor) -> torch.Tensor:
    """A tensor's numbers, in its shape: as they are, or float32 where they are packed."""
    if tensor.kind.is_float:
        return torch.from_numpy(np.array(tensor.rows)).view(getattr(torch, tensor.kind.dtype)).reshape(tensor.shape)
    return _read_later(file, [tensor], tensor.shape, tensor.name, Layout()).dense(torch.float32)
