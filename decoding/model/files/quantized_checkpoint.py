"""The weights of safetensors files by a model's names: plain ones, and those of quantised checkpoints.

Knows names; which tensors show a kind, and what reads them, its record says. No kernel library is asked. Invariant: a
tensor is read when its numbers are asked for.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from decoding.errors import ConfigError
from decoding.model.weights import OF_WRAPPERS
from decoding.weights.kinds import FLOAT32, KINDS, marked, methods
from decoding.weights.matrix import Matrix
from decoding.weights.module_tensors import Fields, Opening

MOST_MAPPED = 2**26  # bytes that a thread reads before it lets go of the files
IGNORED = re.compile(r".*\.(input_scale|output_scale|input_global_scale|k_scale|v_scale|q_scale|rotary_emb\.inv_freq)")
MIXTRAL = (("block_sparse_moe.", "mlp."), (".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj."))


class Shards:
    """The tensors of some safetensors files. Each thread maps the files anew from time to time: what it has read would
    stay in memory otherwise. named: what a tensor of the files is called here."""

    def __init__(self, paths: Sequence[Path], named: Callable[[str], str] = str) -> None:
        self.paths = list(paths)
        self._own = threading.local()
        self._places: dict[str, tuple[Path, str]] = {}
        for path in paths:
            with safe_open(path, "pt") as file:
                self._places |= {named(name): (path, name) for name in file.keys()}  # noqa: SIM118 - no dict

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def names(self) -> list[str]:
        return list(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As safetensors names it."""
        return str(self._slice(name).get_dtype())

    def matrix(self, name: str) -> Matrix:
        """Of floats."""
        kind = KINDS.get(self.dtype(name), KINDS[FLOAT32])
        return Matrix.of_floats(self.shape(name), partial(self.read, name), kind)

    def read(self, name: str, *places: slice) -> torch.Tensor:
        """A copy of the tensor, or of a part of it."""
        own = self._slice(name)
        part = own[places] if places else own[...]
        self._own.num_read = getattr(self._own, "num_read", 0) + part.nbytes
        copied: torch.Tensor = part.clone()
        if self._own.num_read > MOST_MAPPED:
            self._own.files, self._own.num_read = {}, 0
        return copied

    def _slice(self, name: str) -> Any:
        if name not in self._places:
            raise ConfigError(f"its weights lack {name}")
        path, own_name = self._places[name]
        files = self._own.__dict__.setdefault("files", {})
        if path not in files:
            files[path] = safe_open(path, "pt")
        return files[path].get_slice(own_name)


def weights_of(shards: Shards, quantization: Fields, model: PreTrainedModel) -> dict[str, Matrix]:
    """The weights by the model's names. quantization: of config.json. Raises ConfigError for what is not served."""
    wanted = {name for name, _ in model.named_parameters()}
    others = [re.compile(each) for each in model._keys_to_ignore_on_load_unexpected or ()]  # such as layers that draft
    names = [name for name in shards.names() if not any(each.search(name) for each in others)]
    if any(of_text(name) != name for name in names):  # of the parts of a larger model only one is loaded
        names = [name for name in names if of_text(name) != name or name.startswith("lm_head.")]
    weights = weights_among(shards, quantization, names, wanted)
    if model.config.get_text_config().tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return weights


def weights_among(
    shards: Shards, quantization: Fields, names: Iterable[str], wanted: Container[str]
) -> dict[str, Matrix]:
    """What tensors of these names say, by the names of a model: a matrix that is packed as one weight. wanted: weights
    that are read even if they change nothing. Raises ConfigError for what is not served."""
    method = quantization.get("quant_method")
    if method not in methods():
        raise ConfigError(f"its quantization is {method!r}; those that are served are {', '.join(methods())}")
    weights: dict[str, Matrix] = {}
    for name in names:
        base, _, end = name.rpartition(".")
        ours, kind = _renamed(base), marked(end, shards.dtype(name), method)
        if kind is not None:
            weights |= kind.open()(Opening(kind, shards, base, ours, end, quantization))
        elif not _belongs_to_another(shards, name) and (f"{ours}.{end}" in wanted or not _is_idle(shards, name)):
            weights |= _dense(shards, name, f"{ours}.{end}")
    return weights


def is_packed_on_device(shards: Shards, quantization: Fields) -> bool:
    """Whether a GPU multiplies by these weights as they are packed. Other formats, mixtures and what is part of
    a larger model are left to transformers there."""
    others = re.compile(r"\.experts\.|\blanguage_model\.")
    return quantization.get("quant_method") in methods() and not any(map(others.search, shards.names()))


def _renamed(name: str) -> str:
    """The model's name: files of larger models say that it is a part, and Mixtral's have older names."""
    name = of_text(f"{name}.").removesuffix(".")
    for theirs, ours in MIXTRAL if "block_sparse_moe" in name else ():
        name = f"{name}.".replace(theirs, ours).removesuffix(".")
    return name


def of_text(name: str) -> str:
    """The name in a text model of what a larger model's files have as a part of that."""
    for pattern, ours in OF_WRAPPERS.items():
        name = re.sub(pattern, ours, name)
    return name


def _belongs_to_another(shards: Shards, name: str) -> bool:
    """Whether a tensor only says how another is to be read."""
    base, _, kind = name.rpartition(".")
    packed = any(f"{base}.{each}" in shards for each in ("weight_packed", "qweight"))
    described = ("weight_scale", "weight_scale_inv", "weight_zero_point", "weight_shape", "weight_g_idx")
    return kind in described or kind.endswith("_scales") or (packed and kind in ("qzeros", "scales", "g_idx"))


def _is_idle(shards: Shards, name: str) -> bool:
    """Whether a tensor changes nothing: it calibrates activations, or is a bias of zeros, which AutoGPTQ writes."""
    return IGNORED.fullmatch(name) is not None or (name.endswith(".bias") and not bool(shards.read(name).any()))


def _dense(shards: Shards, name: str, ours: str) -> dict[str, Matrix]:
    """A tensor as it is. gpt-oss's biases of experts are one tensor, in which gate and up alternate."""
    shape = shards.shape(name)
    if ".experts." not in ours or not ours.endswith("_proj_bias"):
        return {ours: shards.matrix(name)}
    layer, _, part = ours.removesuffix("_bias").rpartition(".")
    parts = (
        {"down_proj": slice(None)}
        if part == "down_proj"
        else {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
    )
    found: dict[str, Matrix] = {}
    for number in range(shape[0]):
        for each, places in parts.items():
            bias = f"{layer}.{number}.{each}.bias"
            numbers = shards.read(name)[number, places].clone()
            found[bias] = Matrix.of(numbers)
    return found
