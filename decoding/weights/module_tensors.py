"""Kinds of quantised checkpoints whose matrices are several tensors of a module: a function a kind reads them.

Formats: compressed_tensors' pack_to_int32, AutoGPTQ's and AutoAWQ's WQLinear, transformers' integrations of FP8 and
MXFP4. Knows no file. Invariant: integers and scales stay as they are, but for FP8, whose numbers are rounded to 256
levels for each 32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from decoding.errors import ConfigError
from decoding.weights.gguf_blocks import mxfp4_parts
from decoding.weights.groups import Groups, symmetric
from decoding.weights.kinds import Kind
from decoding.weights.matrix import Matrix
from decoding.weights.numbers.stored_codes import StoredCodes

# Shape suffixes: O outputs, I input width, G groups, N packed integers.
GROUP = 32  # wider groups become several of these
WORD_BITS = 32
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where a word has each of eight outputs
Fields = Mapping[str, Any]
Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # codes [O, I], scales and zeros [O, G]


class Source(Protocol):
    """The tensors of a checkpoint, by name."""

    def __contains__(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> str: ...

    def read(self, name: str, *places: slice) -> torch.Tensor: ...


class Opening(NamedTuple):
    """A module, by what its tensors' names begin with; `ours`: what the model calls it. end: of the tensor that showed
    the kind. fields: of the quantization in config.json."""

    kind: Kind
    source: Source
    base: str
    ours: str
    end: str
    fields: Fields

    def has(self, end: str) -> bool:
        return f"{self.base}.{end}" in self.source

    def shape(self, end: str) -> tuple[int, ...]:
        return self.source.shape(f"{self.base}.{end}")

    def dtype(self, end: str) -> str:
        """As safetensors names it."""
        return self.source.dtype(f"{self.base}.{end}")

    def read(self, end: str, *places: slice) -> torch.Tensor:
        return self.source.read(f"{self.base}.{end}", *places)

    def matrix(
        self,
        shape: tuple[int, int],
        bits: int,
        read_rows: Callable[[int, int], Rows],
        num_groups: int,
        order_I: torch.Tensor | None = None,
    ) -> dict[str, Matrix]:
        """The module's. order_I: sorts its columns into groups."""
        name = f"{self.ours}.weight"
        wide = _width(shape[1], num_groups, name)
        group = 16 if wide == 16 else GROUP
        times = max(1, -(-wide // group))
        if wide % group and num_groups > 1:
            raise ConfigError(f"{name} has groups of {wide}; 16 and multiples of {GROUP} are served")

        def read(start: int, stop: int) -> Groups:
            codes_OI, scales_OG, zeros_OG = read_rows(start, stop)
            if order_I is not None:
                codes_OI = codes_OI[:, order_I]
            count = -(-shape[1] // group)
            scales, minima = (
                each.repeat_interleave(times, 1)[:, :count].contiguous() for each in (scales_OG, scales_OG * zeros_OG)
            )
            return Groups(codes_OI.contiguous(), scales, minima, bits, group)

        codes = StoredCodes(name, shape, read, bits, group, times)
        return {name: Matrix.of_codes(self.kind, shape, codes, order_I)}


def compressed(module: Opening) -> dict[str, Matrix]:
    """Integers along the input, eight or four to a word, each half the range more than it is."""
    if not module.has("weight_scale") or not module.has("weight_shape"):
        raise ConfigError(
            f"{module.base} is packed in a format that is not served: it has no weight_scale or weight_shape"
        )
    num_outputs, width = module.read("weight_shape").tolist()
    num_words = module.shape("weight_packed")[1]
    bits = _bits(WORD_BITS // -(-width // num_words), module.base)

    def read(start: int, stop: int) -> Rows:
        rows = slice(start, stop)
        codes_OI = _unpacked(module.read("weight_packed", rows), bits)[:, :width]
        scales_OG = module.read("weight_scale", rows).float()
        if not module.has("weight_zero_point"):
            return codes_OI, scales_OG, torch.full_like(scales_OG, 2 ** (bits - 1))
        in_word = WORD_BITS // bits
        words = module.read("weight_zero_point", slice(start // in_word, -(-stop // in_word)))
        zeros_OG = _unpacked(words.t(), bits).t()[start % in_word :][: stop - start]
        return codes_OI, scales_OG, zeros_OG

    order_I = _order(module, "weight_g_idx")
    return module.matrix((num_outputs, width), bits, read, module.shape("weight_scale")[1], order_I)


def gptq(module: Opening) -> dict[str, Matrix]:
    """Integers along the input, in words [I / 8, O]; zero points along the output, one less than they are."""
    bits = _bits(module.fields.get("bits"), module.base)
    missing = 0 if module.fields.get("checkpoint_format") == "gptq_v2" else 1
    num_words, num_outputs = module.shape("qweight")
    in_word = WORD_BITS // bits

    def read(start: int, stop: int) -> Rows:
        columns = slice(start, stop)
        codes_OI = _unpacked(module.read("qweight", slice(None), columns).t(), bits)
        words = module.read("qzeros", slice(None), slice(start // in_word, -(-stop // in_word)))
        zeros_GO = _unpacked(words, bits)[:, start % in_word :][:, : stop - start]
        return codes_OI, module.read("scales", slice(None), columns).float().t(), zeros_GO.t() + missing

    order_I = _order(module, "g_idx")
    num_groups = module.shape("scales")[0]
    return module.matrix((num_outputs, num_words * in_word), bits, read, num_groups, order_I)


def awq(module: Opening) -> dict[str, Matrix]:
    """Integers along the output, in words [I, O / 8], where a word has its outputs in an order of its own."""
    bits, version = module.fields.get("bits", module.fields.get("w_bit")), module.fields.get("version", "gemm")
    bits = _bits(bits, module.base)
    if bits != 4 or str(version).lower() != "gemm":
        raise ConfigError(f"its AWQ version is {version} with {bits} bits; gemm with 4 is served")
    width, num_words = module.shape("qweight")

    def read(start: int, stop: int) -> Rows:
        words = slice(start // 8, -(-stop // 8))
        codes_IO, zeros_GO = (
            _unpacked(module.read(each, slice(None), words), 4)
            .view(-1, words.stop - words.start, 8)[..., AWQ_PLACES]
            .flatten(1)[:, : stop - start]
            for each in ("qweight", "qzeros")
        )
        scales_GO = module.read("scales", slice(None), slice(start, stop)).float()
        return codes_IO.t(), scales_GO.t(), zeros_GO.t()

    return module.matrix((num_words * 8, width), 4, read, module.shape("scales")[0])


def whole_bytes(module: Opening) -> dict[str, Matrix]:
    """Whole bytes, integers or FP8, with one scale for all, for each output or for each block."""
    scale_name = next(filter(module.has, ("weight_scale_inv", "weight_scale")), None)
    shape = module.shape("weight")
    if len(shape) != 2:
        raise ConfigError(f"{module.base}.weight has shape {shape} and is no matrix")
    block = _block_of(module.fields)
    num_outputs, width = shape

    def of_outputs(end: str, start: int, stop: int) -> torch.Tensor:
        """[O, G] or [O, 1]: the numbers that a tensor has for these outputs."""
        numbers = module.read(end).float()
        if numbers.numel() == 1:
            return numbers.reshape(1, 1).expand(stop - start, 1)
        numbers = numbers.reshape(len(numbers), -1)
        height = 1 if len(numbers) == num_outputs else block[0]
        if -(-num_outputs // height) != len(numbers):
            raise ConfigError(f"{module.base}.{end} has shape {tuple(numbers.shape)}, which does not fit {shape}")
        return numbers[torch.arange(start, stop) // height]

    def scales_of(start: int, stop: int) -> torch.Tensor:
        return torch.ones(stop - start, 1) if scale_name is None else of_outputs(scale_name, start, stop)

    def read(start: int, stop: int) -> Rows:
        codes_OI, scales_OG = module.read("weight", slice(start, stop)).view(torch.uint8) ^ 128, scales_of(start, stop)
        has_zeros = module.has("weight_zero_point")
        zeros_OG = of_outputs("weight_zero_point", start, stop) if has_zeros else torch.zeros_like(scales_OG)
        return codes_OI, scales_OG, zeros_OG + 128

    def read_rounded(start: int, stop: int) -> Rows:
        scales_OG = scales_of(start, stop)
        num_blocks = scales_OG.shape[1]
        block_width = block[1] if -(-width // block[1]) == num_blocks else _width(width, num_blocks, module.base)
        scales_OI = scales_OG.repeat_interleave(block_width, 1)[:, :width]
        groups = symmetric(module.read("weight", slice(start, stop)).float() * scales_OI, 8, GROUP)
        return groups.codes_OI, groups.scales_OG, torch.full_like(groups.scales_OG, 128)

    if module.dtype("weight").startswith("F8"):
        return module.matrix((num_outputs, width), 8, read_rounded, -(-width // GROUP))
    return module.matrix((num_outputs, width), 8, read, scales_of(0, 1).shape[1])


def _block_of(fields: Fields) -> tuple[int, int]:
    """How many outputs and inputs have one scale; one of each where the fields do not say so."""
    groups = (fields.get("config_groups") or {}).values()
    described = [(group.get("weights") or {}).get("block_structure") for group in groups]
    block = next((each for each in (fields.get("weight_block_size"), *described) if each), (1, 1))
    height, width = block.split("x") if isinstance(block, str) else block
    return int(height), int(width)


def mxfp4_experts(module: Opening) -> dict[str, Matrix]:
    """gpt-oss: blocks [experts, O, G, 16] of two numbers a byte, the lower half first; gate and up rows alternate."""
    part = module.end.removesuffix("_blocks")
    num_experts, num_rows, num_groups, num_bytes = module.shape(module.end)
    shape = (num_rows if part == "down_proj" else num_rows // 2, num_groups * num_bytes * 2)
    parts = {"down_proj": (0, 1)} if part == "down_proj" else {"gate_proj": (0, 2), "up_proj": (1, 2)}
    found: dict[str, Matrix] = {}
    for number in range(num_experts):
        for each, (first, step) in parts.items():
            name = f"{module.ours}.{number}.{each}.weight"

            def read(start: int, stop: int, number: int = number, first: int = first, step: int = step) -> Groups:
                rows = slice(first + start * step, first + (stop - 1) * step + 1)
                packed, exponents = (
                    module.read(f"{part}_{kind}", slice(number, number + 1), rows)[0, ::step]
                    for kind in ("blocks", "scales")
                )
                codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
                codes_OI, scales_OG, minima_OG = mxfp4_parts(codes, exponents)
                return Groups(codes_OI, scales_OG, minima_OG, 5, GROUP)

            found[name] = Matrix.of_codes(module.kind, shape, StoredCodes(name, shape, read, 5, GROUP))
    return found


def _width(width: int, num_groups: int, name: str) -> int:
    """The inputs of a group. The last group may be cut short."""
    wide = -(-width // num_groups)
    if num_groups > 1 and wide % 16:  # a cut last group makes the quotient too small
        wide = -(-wide // 128) * 128
    if -(-width // wide) != num_groups:
        raise ConfigError(f"{name} has {num_groups} groups for {width} inputs, which fit no width")
    return wide


def _order(module: Opening, end: str) -> torch.Tensor | None:
    """The columns sorted by their groups; None where they are."""
    if not module.has(end):
        return None
    groups_I = module.read(end).long()
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
