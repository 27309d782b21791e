"""Quantised checkpoints of Hugging Face's kind, as weights in groups: compressed-tensors, GPTQ, AWQ, FP8 and MXFP4.

Tensors are read from safetensors; no kernel library is asked. Formats: compressed_tensors' pack_to_int32, AutoGPTQ's
and AutoAWQ's WQLinear, transformers' integrations of FP8 and MXFP4. Invariant: integers and scales stay as they are,
but for FP8, whose numbers are rounded to 256 levels for each 32.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from decoding.errors import ConfigError
from decoding.model.files.gguf_types import mxfp4_parts
from decoding.model.files.weight import DenseWeight, PackedWeight, Weight
from decoding.model.linear.groups import Groups
from decoding.model.weights import OF_WRAPPERS

# Shape suffixes: O outputs, I input width, G groups, N packed integers.
METHODS = ("compressed-tensors", "gptq", "awq", "fp8", "mxfp4")
GROUP = 32  # wider groups become several of these
WORD_BITS = 32
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where a word has each of eight outputs
MOST_MAPPED = 2**26  # bytes that a thread reads before it lets go of the files
IGNORED = re.compile(r".*\.(input_scale|output_scale|input_global_scale|k_scale|v_scale|q_scale|rotary_emb\.inv_freq)")
MIXTRAL = (("block_sparse_moe.", "mlp."), (".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj."))
Fields = Mapping[str, Any]
Parts = Callable[[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # codes [O, I], scales and zeros [O, G]


class Shards:
    """The tensors of some safetensors files. Each thread maps the files anew from time to time: what it has read would
    stay in memory otherwise."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._own = threading.local()
        self._paths: dict[str, Path] = {}
        for path in paths:
            with safe_open(path, "pt") as file:
                self._paths |= dict.fromkeys(file.keys(), path)

    def __contains__(self, name: str) -> bool:
        return name in self._paths

    def names(self) -> list[str]:
        return list(self._paths)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def is_float8(self, name: str) -> bool:
        return str(self._slice(name).get_dtype()).startswith("F8")

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
        path = self._paths.get(name)
        if path is None:
            raise ConfigError(f"its weights lack {name}")
        files = self._own.__dict__.setdefault("files", {})
        if path not in files:
            files[path] = safe_open(path, "pt")
        return files[path].get_slice(name)


def weights_of(shards: Shards, quantization: Fields, model: PreTrainedModel) -> dict[str, Weight]:
    """The weights by the model's names. quantization: of config.json. Raises ConfigError for what is not served."""
    wanted = {name for name, _ in model.named_parameters()}
    others = [re.compile(each) for each in model._keys_to_ignore_on_load_unexpected or ()]  # such as layers that draft
    names = [name for name in shards.names() if not any(each.search(name) for each in others)]
    if any(_of_text(name) != name for name in names):  # of the parts of a larger model only one is loaded
        names = [name for name in names if _of_text(name) != name or name.startswith("lm_head.")]
    weights = weights_among(shards, quantization, names, wanted)
    if model.config.get_text_config().tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return weights


def weights_among(
    shards: Shards, quantization: Fields, names: Iterable[str], wanted: Container[str]
) -> dict[str, Weight]:
    """What tensors of these names say, by the names of a model: a matrix that is packed as one weight. wanted: weights
    that are read even if they change nothing. Raises ConfigError for what is not served."""
    method = quantization.get("quant_method")
    if method not in METHODS:
        raise ConfigError(f"its quantization is {method!r}; those that are served are {', '.join(METHODS)}")
    weights: dict[str, Weight] = {}
    for name in names:
        base, _, kind = name.rpartition(".")
        ours = _renamed(base)
        if kind in ("weight_packed", "qweight") or (
            kind == "weight" and (shards.is_float8(name) or _is_scaled(shards, base))
        ):
            weights[f"{ours}.weight"] = _matrix(shards, quantization, base, f"{ours}.weight")
        elif kind.endswith("_blocks"):
            weights |= _mxfp4_experts(shards, name, f"{ours}.{kind.removesuffix('_blocks')}")
        elif not _belongs_to_another(shards, name) and (f"{ours}.{kind}" in wanted or not _is_idle(shards, name)):
            weights |= _dense(shards, name, f"{ours}.{kind}")
    return weights


def is_packed_on_device(shards: Shards, quantization: Fields) -> bool:
    """Whether a GPU multiplies by these weights as they are packed. Other formats, mixtures and what is part of
    a larger model are left to transformers there."""
    others = re.compile(r"\.experts\.|\blanguage_model\.")
    return quantization.get("quant_method") in METHODS and not any(map(others.search, shards.names()))


def _renamed(name: str) -> str:
    """The model's name: files of larger models say that it is a part, and Mixtral's have older names."""
    name = _of_text(f"{name}.").removesuffix(".")
    for theirs, ours in MIXTRAL if "block_sparse_moe" in name else ():
        name = f"{name}.".replace(theirs, ours).removesuffix(".")
    return name


def _of_text(name: str) -> str:
    """The name in a text model of what a larger model's files have as a part of that."""
    for pattern, ours in OF_WRAPPERS.items():
        name = re.sub(pattern, ours, name)
    return name


def _is_scaled(shards: Shards, base: str) -> bool:
    """Whether a module's weight is of whole bytes with scales beside it."""
    return f"{base}.weight_scale" in shards and f"{base}.weight_packed" not in shards


def _belongs_to_another(shards: Shards, name: str) -> bool:
    """Whether a tensor only says how another is to be read."""
    base, _, kind = name.rpartition(".")
    packed = any(f"{base}.{each}" in shards for each in ("weight_packed", "qweight"))
    described = ("weight_scale", "weight_scale_inv", "weight_zero_point", "weight_shape", "weight_g_idx")
    return kind in described or kind.endswith("_scales") or (packed and kind in ("qzeros", "scales", "g_idx"))


def _is_idle(shards: Shards, name: str) -> bool:
    """Whether a tensor changes nothing: it calibrates activations, or is a bias of zeros, which AutoGPTQ writes."""
    return IGNORED.fullmatch(name) is not None or (name.endswith(".bias") and not bool(shards.read(name).any()))


def _dense(shards: Shards, name: str, ours: str) -> dict[str, Weight]:
    """A tensor as it is. gpt-oss's biases of experts are one tensor, in which gate and up alternate."""
    shape = shards.shape(name)
    if ".experts." not in ours or not ours.endswith("_proj_bias"):
        return {ours: DenseWeight(ours, shape, lambda: shards.read(name))}
    layer, _, part = ours.removesuffix("_bias").rpartition(".")
    parts = (
        {"down_proj": slice(None)}
        if part == "down_proj"
        else {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
    )
    found: dict[str, Weight] = {}
    for number in range(shape[0]):
        for each, places in parts.items():
            bias = f"{layer}.{number}.{each}.bias"
            numbers = shards.read(name)[number, places].clone()
            found[bias] = DenseWeight(bias, tuple(numbers.shape), lambda numbers=numbers: numbers)  # type: ignore[misc]
    return found


def _matrix(shards: Shards, quantization: Fields, base: str, name: str) -> PackedWeight:
    if f"{base}.weight_packed" in shards:
        return _compressed(shards, base, name)
    if f"{base}.qweight" in shards:
        is_awq = quantization["quant_method"] == "awq"
        return _awq(shards, quantization, base, name) if is_awq else _gptq(shards, quantization, base, name)
    return _bytes(shards, quantization, base, name)


def _compressed(shards: Shards, base: str, name: str) -> PackedWeight:
    """Integers along the input, eight or four to a word, each half the range more than it is."""
    if f"{base}.weight_scale" not in shards or f"{base}.weight_shape" not in shards:
        raise ConfigError(f"{base} is packed in a format that is not served: it has no weight_scale or weight_shape")
    num_outputs, width = shards.read(f"{base}.weight_shape").tolist()
    num_words = shards.shape(f"{base}.weight_packed")[1]
    bits = _bits(WORD_BITS // -(-width // num_words), base)

    def read(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = slice(start, stop)
        codes_OI = _unpacked(shards.read(f"{base}.weight_packed", rows), bits)[:, :width]
        scales_OG = shards.read(f"{base}.weight_scale", rows).float()
        if f"{base}.weight_zero_point" not in shards:
            return codes_OI, scales_OG, torch.full_like(scales_OG, 2 ** (bits - 1))
        in_word = WORD_BITS // bits
        words = shards.read(f"{base}.weight_zero_point", slice(start // in_word, -(-stop // in_word)))
        zeros_OG = _unpacked(words.t(), bits).t()[start % in_word :][: stop - start]
        return codes_OI, scales_OG, zeros_OG

    order_I = _order(shards, f"{base}.weight_g_idx")
    return _packed(name, (num_outputs, width), bits, read, shards.shape(f"{base}.weight_scale")[1], order_I)


def _gptq(shards: Shards, quantization: Fields, base: str, name: str) -> PackedWeight:
    """Integers along the input, in words [I / 8, O]; zero points along the output, one less than they are."""
    bits = _bits(quantization.get("bits"), base)
    missing = 0 if quantization.get("checkpoint_format") == "gptq_v2" else 1
    num_words, num_outputs = shards.shape(f"{base}.qweight")
    in_word = WORD_BITS // bits

    def read(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        columns = slice(start, stop)
        codes_OI = _unpacked(shards.read(f"{base}.qweight", slice(None), columns).t(), bits)
        words = shards.read(f"{base}.qzeros", slice(None), slice(start // in_word, -(-stop // in_word)))
        zeros_GO = _unpacked(words, bits)[:, start % in_word :][:, : stop - start]
        return codes_OI, shards.read(f"{base}.scales", slice(None), columns).float().t(), zeros_GO.t() + missing

    order_I = _order(shards, f"{base}.g_idx")
    num_groups = shards.shape(f"{base}.scales")[0]
    return _packed(name, (num_outputs, num_words * in_word), bits, read, num_groups, order_I)


def _awq(shards: Shards, quantization: Fields, base: str, name: str) -> PackedWeight:
    """Integers along the output, in words [I, O / 8], where a word has its outputs in an order of its own."""
    bits, version = (
        _bits(quantization.get("bits", quantization.get("w_bit")), base),
        quantization.get("version", "gemm"),
    )
    if bits != 4 or str(version).lower() != "gemm":
        raise ConfigError(f"its AWQ version is {version} with {bits} bits; gemm with 4 is served")
    width, num_words = shards.shape(f"{base}.qweight")

    def read(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        words = slice(start // 8, -(-stop // 8))
        codes_IO, zeros_GO = (
            _unpacked(shards.read(f"{base}.{each}", slice(None), words), 4)
            .view(-1, words.stop - words.start, 8)[..., AWQ_PLACES]
            .flatten(1)[:, : stop - start]
            for each in ("qweight", "qzeros")
        )
        scales_GO = shards.read(f"{base}.scales", slice(None), slice(start, stop)).float()
        return codes_IO.t(), scales_GO.t(), zeros_GO.t()

    return _packed(name, (num_words * 8, width), 4, read, shards.shape(f"{base}.scales")[0], None)


def _bytes(shards: Shards, quantization: Fields, base: str, name: str) -> PackedWeight:
    """Whole bytes, integers or FP8, with one scale for all, for each output or for each block."""
    scale_name = next(
        (f"{base}.{each}" for each in ("weight_scale_inv", "weight_scale") if f"{base}.{each}" in shards), None
    )
    shape = shards.shape(f"{base}.weight")
    if len(shape) != 2:
        raise ConfigError(f"{base}.weight has shape {shape} and is no matrix")
    block = _block_of(quantization)
    num_outputs, width = shape

    def of_outputs(name: str, start: int, stop: int) -> torch.Tensor:
        """[O, G] or [O, 1]: the numbers that a tensor has for these outputs."""
        numbers = shards.read(name).float()
        if numbers.numel() == 1:
            return numbers.reshape(1, 1).expand(stop - start, 1)
        numbers = numbers.reshape(len(numbers), -1)
        height = 1 if len(numbers) == num_outputs else block[0]
        if -(-num_outputs // height) != len(numbers):
            raise ConfigError(f"{name} has shape {tuple(numbers.shape)}, which does not fit {shape}")
        return numbers[torch.arange(start, stop) // height]

    def scales_of(start: int, stop: int) -> torch.Tensor:
        return torch.ones(stop - start, 1) if scale_name is None else of_outputs(scale_name, start, stop)

    if not shards.is_float8(f"{base}.weight"):
        zero_name = f"{base}.weight_zero_point"

        def read(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            codes_OI = shards.read(f"{base}.weight", slice(start, stop)).view(torch.uint8) ^ 128
            scales_OG = scales_of(start, stop)
            zeros_OG = of_outputs(zero_name, start, stop) if zero_name in shards else torch.zeros_like(scales_OG)
            return codes_OI, scales_OG, zeros_OG + 128

        return _packed(name, (num_outputs, width), 8, read, scales_of(0, 1).shape[1], None)

    def read_rounded(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weight_OI = shards.read(f"{base}.weight", slice(start, stop)).float()
        scales_OG = scales_of(start, stop)
        num_blocks = scales_OG.shape[1]
        block_width = block[1] if -(-width // block[1]) == num_blocks else _width(width, num_blocks, base)
        weight_OI *= scales_OG.repeat_interleave(block_width, 1)[:, :width]
        num_groups = -(-width // GROUP)
        padded = torch.zeros(len(weight_OI), num_groups * GROUP)
        padded[:, :width] = weight_OI
        steps_OG = padded.view(len(padded), num_groups, GROUP).abs().amax(2) / 127
        steps_OI = steps_OG.repeat_interleave(GROUP, 1)
        codes = torch.where(steps_OI > 0, padded / steps_OI, 0).round().to(torch.int16) + 128
        return codes[:, :width].to(torch.uint8), steps_OG, torch.full_like(steps_OG, 128)

    return _packed(name, (num_outputs, width), 8, read_rounded, -(-width // GROUP), None)


def _block_of(quantization: Fields) -> tuple[int, int]:
    """How many outputs and inputs have one scale; one of each where the fields do not say so."""
    groups = (quantization.get("config_groups") or {}).values()
    described = [(group.get("weights") or {}).get("block_structure") for group in groups]
    block = next((each for each in (quantization.get("weight_block_size"), *described) if each), (1, 1))
    height, width = block.split("x") if isinstance(block, str) else block
    return int(height), int(width)


def _mxfp4_experts(shards: Shards, name: str, ours: str) -> dict[str, Weight]:
    """gpt-oss: blocks [experts, O, G, 16] of two numbers a byte, the lower half first; gate and up rows alternate."""
    scales = f"{name.removesuffix('_blocks')}_scales"
    num_experts, num_rows, num_groups, num_bytes = shards.shape(name)
    width = num_groups * num_bytes * 2
    layer, _, part = ours.rpartition(".")
    parts = {"down_proj": (0, 1)} if part == "down_proj" else {"gate_proj": (0, 2), "up_proj": (1, 2)}
    found: dict[str, Weight] = {}
    for number in range(num_experts):
        for each, (first, step) in parts.items():
            matrix = f"{layer}.{number}.{each}.weight"

            def read(start: int, stop: int, number: int = number, first: int = first, step: int = step) -> Groups:
                rows = slice(first + start * step, first + (stop - 1) * step + 1)
                packed = shards.read(name, slice(number, number + 1), rows)[0, ::step]
                exponents = shards.read(scales, slice(number, number + 1), rows)[0, ::step]
                codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
                codes_OI, scales_OG, minima_OG = mxfp4_parts(codes, exponents)
                return Groups(codes_OI, scales_OG, minima_OG, 5, GROUP)

            found[matrix] = PackedWeight(matrix, (num_rows // step, width), 5, GROUP, read)
    return found


def _packed(
    name: str, shape: tuple[int, int], bits: int, parts: Parts, num_groups: int, order_I: torch.Tensor | None
) -> PackedWeight:
    """A matrix of which `parts` reads rows; `order_I` sorts its columns into groups."""
    wide = _width(shape[1], num_groups, name)
    group = 16 if wide == 16 else GROUP
    times = max(1, -(-wide // group))
    if wide % group and num_groups > 1:
        raise ConfigError(f"{name} has groups of {wide}; 16 and multiples of {GROUP} are served")

    def read(start: int, stop: int) -> Groups:
        codes_OI, scales_OG, zeros_OG = parts(start, stop)
        if order_I is not None:
            codes_OI = codes_OI[:, order_I]
        count = -(-shape[1] // group)
        scales, minima = (
            each.repeat_interleave(times, 1)[:, :count].contiguous() for each in (scales_OG, scales_OG * zeros_OG)
        )
        return Groups(codes_OI.contiguous(), scales, minima, bits, group)

    return PackedWeight(name, shape, bits, group, read, order_I, times)


def _width(width: int, num_groups: int, name: str) -> int:
    """The inputs of a group. The last group may be cut short."""
    wide = -(-width // num_groups)
    if num_groups > 1 and wide % 16:  # a cut last group makes the quotient too small
        wide = -(-wide // 128) * 128
    if -(-width // wide) != num_groups:
        raise ConfigError(f"{name} has {num_groups} groups for {width} inputs, which fit no width")
    return wide


def _order(shards: Shards, name: str) -> torch.Tensor | None:
    """The columns sorted by their groups; None where they are."""
    if name not in shards:
        return None
    groups_I = shards.read(name).long()
    order_I = torch.argsort(groups_I, stable=True)
    return None if torch.equal(order_I, torch.arange(len(order_I))) else order_I


def _bits(given: Any, base: str) -> int:
    if given not in (4, 8):
        raise ConfigError(f"{base} has integers of {given} bits; 4 and 8 are served")
    return int(given)


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [..., N] to uint8 [..., N * 32 / bits], the lowest bits first."""
    whole = words.contiguous().view(torch.uint8)
    return whole if bits == 8 else torch.stack((whole & 15, whole >> 4), -1).flatten(-2)
