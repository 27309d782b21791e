"""Compiles the kernels of attention, layers, exact products, experts and the sampler for GPUs that this machine need
not have, and prints their resources as Markdown: `python -m decoding.bench.kernels.compile [PART ...]`.

A new kernel is one more case in the list of its part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
import triton
from triton.compiler import ASTSource

from decoding.attention.triton.constants import constants_of, kind_of
from decoding.attention.triton.tiles import EXACT, default_tile, padded_width
from decoding.attention.triton.triton_attention import AT_ONCE
from decoding.bench.kernels.compiled import Compiled, compile_for
from decoding.bench.tables.table import table
from decoding.core.layer import LayerSpec
from decoding.kernels.gpu.attention import Results, Step, attend_tiles
from decoding.kernels.gpu.experts import add_chosen, lay_tiles, multiply_chosen
from decoding.kernels.gpu.kv_rows import store_rows
from decoding.kernels.gpu.merge import merge_ranges
from decoding.kernels.gpu.moves import move
from decoding.kernels.gpu.products import Operands, add_parts, mean, multiply
from decoding.kernels.gpu.rows import gate, normalise, rotate_and_store
from decoding.kernels.gpu.sampling import draw, edit, scan, walk
from decoding.kernels.gpu.toolchain import NO_FUSION
from decoding.model.checkpoint import FP8_CAPABILITY
from decoding.model.experts.device_experts import added_in, chosen_in, expert_tile, laid_in
from decoding.model.layers.device_layer import Norm, gated_in, normalised_in, rotated_in
from decoding.sampling.device.launch import BLOCK, ENTRIES, FEWEST_NODES
from decoding.weights.device_products import (
    ADDED,
    LEAST_PART,
    MOST_PARTS,
    ProductTile,
    packing_of,
    product_tile,
)
from decoding.weights.device_products import constants_of as products_of

CAPABILITIES = [(8, 0), (9, 0), (10, 0)]
NOWHERE = (1000, 0)  # of a kernel that a device has another one for
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
WORDS = {"moves", "pairs", "firsts", "chosen"}
OF_MODEL = {"query", "keys", "values", "key", "value", "sinks", "out", "rows", "weight", "bias", "results", "shares"}
OF_MODEL |= {"added", "summed", "normed", "query_norm", "key_norm", "cosines", "sines", "rotated", "gates", "ups"}
SUMS = {"sums", "stats", "factors"}
ONE = "constexpr"  # the kind of a step of 1, which Triton compiles in
PACKED_KINDS: dict[str, Any] = {"operands": Operands._make(["*u8", "*fp16", "*fp16", "*fp32", "i32", ONE])}
FP8_KINDS = dict.fromkeys(("keys", "values"), "*fp8e4nv")
COUNTS = {"num_rows", "num_sequences", "num_blocks", "num_numbers"}
NUMBERS = COUNTS | {"key_head", "key_row", "value_head", "value_row", "query_head", "query_row", "expert_step"}
NUMBERS |= {"gate_row", "up_row"}
PACKINGS = {
    "exact": packing_of(0, 2 * LEAST_PART, 0),
    "4 bits, 128 share a scale": packing_of(4, 128, 8),
    "4 bits, 32 a scale and minimum": packing_of(4, 32, -1),
    "4 bits, 16 a scale and minimum": packing_of(4, 16, -1),
    "8 bits, 32 share a scale": packing_of(8, 32, 128),
    "6 bits, 16 share a scale": packing_of(8, 16, 32),
}


@dataclass(frozen=True)
class Case:
    """One kernel. constants: see `constants_of`; arguments among them are constant, too. kinds: of arguments that are
    not of their usual type. tile: its sizes, warps and stages; with one it multiplies matrices. least: capability of a
    device that it runs on."""

    name: str
    kernel: Any
    constants: dict[str, Any]
    dtype: torch.dtype = torch.bfloat16
    kinds: Mapping[str, Any] = field(default_factory=dict)
    tile: str = ""
    least: tuple[int, int] = CAPABILITIES[0]

    def compile(self, capability: tuple[int, int]) -> Compiled:
        signature = {name: _type(name, NAMES[self.dtype]) for name in self.kernel.arg_names} | dict(self.kinds)
        signature |= {name: "constexpr" for name in signature if name in self.constants}
        known: dict[Any, Any] = {name: self.constants[name] for name, kind in signature.items() if kind == "constexpr"}
        aligned: list[tuple[int, ...]] = []
        for place, (name, kind) in enumerate(signature.items()):
            if isinstance(kind, tuple):
                known |= {(place, part): 1 for part, each in enumerate(kind) if each == ONE}
                aligned += [(place, part) for part, each in enumerate(kind) if each != ONE]
            elif kind.startswith("*") or name in NUMBERS - COUNTS:
                aligned.append((place,))
        source = ASTSource(self.kernel, signature, known, {path: [["tt.divisibility", 16]] for path in aligned})
        options = {name: value for name, value in self.constants.items() if name not in signature}
        return compile_for(source, 10 * capability[0] + capability[1], options)

    def cell(self, capability: tuple[int, int]) -> str:
        if capability < self.least:
            return ""
        made = self.compile(capability)
        found = f"{made.registers}, {made.shared:,}, {made.spilled}"
        return f"{self.tile}: {found}, {made.product}" if self.tile else found


def _type(name: str, dtype: str) -> Any:
    if name == "step":
        return Step._make(["*i32"] * len(Step._fields))
    if name == "results":
        return Results(f"*{dtype}", "*fp32", "*fp32")  # type: ignore[arg-type]
    if name == "operands":
        return Operands._make([*[f"*{dtype}"] * 4, "i32", ONE])
    if name in OF_MODEL:
        return f"*{dtype}"
    if name in SUMS:
        return "*fp32"
    if name in WORDS:
        return "*i64"
    return "fp32" if name == "scaling" else "i32" if name in NUMBERS else "*i32"


def layer_of(group: int, key_dim: int, value_dim: int, **features: Any) -> LayerSpec:
    fields = {"index": 0, "num_query_heads": 8 * group, "num_kv_heads": 8, "scaling": key_dim**-0.5} | features
    return LayerSpec(key_dim=key_dim, value_dim=value_dim, **fields)


FEATURES = {"window": 4096, "softcap": 50.0, "sinks": torch.zeros(32)}
HEADS = {
    **{f"{width}, 4 share keys": layer_of(4, width, width) for width in (64, 80, 96, 128, 256)},
    **{f"128, {group} share keys": layer_of(group, 128, 128) for group in (1, 2, 8)},
    "128, 4, window, cap, sinks": layer_of(4, 128, 128, **FEATURES),
    "256, 4, window, cap, sinks": layer_of(4, 256, 256, **FEATURES),
    "192 and 128, 1 (MLA)": layer_of(1, 192, 128),
    "512, 4": layer_of(4, 512, 512),
}


def attention(capability: tuple[int, int]) -> Iterator[Case]:
    """With the default tiles; and what moves the rows of accepted paths."""
    fp32 = [("128, 4 share keys", layer_of(4, 128, 128), torch.float32)]
    for name, layer, dtype in [*((name, layer, torch.bfloat16) for name, layer in HEADS.items()), *fp32]:
        tile = default_tile(padded_width(max(layer.key_dim, layer.value_dim)), dtype.itemsize, capability)
        usual, *others = constants_of(layer, tile, [kind_of(layer, tile)]).attend
        for kind, constants in (("attend", usual), ("attend many", (others or [usual])[0])):
            least = NOWHERE if kind == "attend many" and not others else CAPABILITIES[0]
            sizes = f"{constants['M']}x{tile.keys}, {constants['num_warps']}, {tile.num_stages}"
            called = f"{kind}, {name}"
            yield Case(called, attend_tiles, constants, dtype, {}, sizes, least)
            if name == "128, 4 share keys" and dtype == torch.bfloat16:
                yield Case(
                    f"{called}, fp8", attend_tiles, constants, dtype, FP8_KINDS, sizes, max(least, FP8_CAPABILITY)
                )
    store, _, merge = constants_of(layer_of(4, 128, 128), EXACT, [kind_of(layer_of(4, 128, 128), EXACT)])
    yield Case("store, 128", store_rows, store)
    yield Case("store, 128, fp8", store_rows, store, kinds=FP8_KINDS, least=FP8_CAPABILITY)
    yield Case("merge, 128", merge_ranges, merge | {"AT_ONCE": AT_ONCE})
    widths = dict.fromkeys(("KEY_DIM", "VALUE_DIM", "KEY_WIDTH", "VALUE_WIDTH"), 128)
    yield Case("move, 128", move, widths | {"NUM_HEADS": 8, "num_warps": 4})


def layers(_: tuple[int, int], width: int = 8192) -> Iterator[Case]:
    """What a fused layer of this width computes between its products, with norms of queries and keys."""
    norm = Norm(torch.ones(128), 1e-6)
    for dtype in (torch.bfloat16, torch.float32):
        yield Case("layer, norm and sum", normalise, normalised_in(width, 1e-6, True), dtype)
        rotated = rotated_in(layer_of(4, 128, 128), (norm, norm))
        yield Case("layer, rotation and store", rotate_and_store, rotated, dtype)
        yield Case("layer, silu and product", gate, gated_in(width), dtype)


def products(_: tuple[int, int]) -> Iterator[Case]:
    """A layer of two parts, for few rows and for many; what adds up parts, and means."""
    for (name, packing), dtype, is_whole in product(PACKINGS.items(), (torch.bfloat16, torch.float32), (False, True)):
        is_packed = packing["BITS"] > 0
        tile, rows = product_tile(dtype, is_packed), "many" if is_whole else "few"
        constants = products_of(2 * LEAST_PART, is_whole, tile) | packing
        constants |= {"OUTPUTS": 4096, "PARTS": 2, "HAS_BIAS": True}
        kinds = (PACKED_KINDS if is_packed else {}) | ({} if is_whole else {"out": "*fp32"})
        yield Case(f"product, {name}, {rows} rows", multiply, constants, dtype, kinds, _sizes(tile))
    parts = {"OUTPUTS": 4096, "PARTS": MOST_PARTS, "HAS_BIAS": True, "N": ADDED} | NO_FUSION
    yield Case("product, adding parts", add_parts, parts)
    yield Case("mean, 4,096", mean, {"WIDTH": 4096, "N": 4096} | NO_FUSION)


def experts(_: tuple[int, int]) -> Iterator[Case]:
    """Experts with biases, of which a row has eight; what shares pairs out to tiles, and what adds them up."""
    for (name, packing), dtype in product(PACKINGS.items(), (torch.bfloat16, torch.float32)):
        is_packed = packing["BITS"] > 0
        tile = expert_tile(dtype, is_packed)
        constants = chosen_in((1536, 2048), 8, True, tile) | packing
        kinds = PACKED_KINDS if is_packed else {}
        yield Case(f"experts, {name}", multiply_chosen, constants, dtype, kinds, _sizes(tile))
    yield Case("experts, tiles of 512", lay_tiles, laid_in(512))
    yield Case("experts, adding 8", add_chosen, added_in(8, 128, 2048))


SAMPLED = {
    "*fp32": {"logits", "edited", "masses", "noisy", "values"},
    "*fp64": {"numbers", "biases"},
    "*i32": {"results", "drawn", "masks"},
    "i32": {"vocab_size", "num_blocks", "first"},
}


def sampler(_: tuple[int, int]) -> Iterator[Case]:
    """Of a vocabulary of 152,000, which is 128 blocks."""
    sizes: list[tuple[Any, dict[str, int]]] = [(edit.mask, {"BLOCK": BLOCK}), (edit.change, {"BLOCK": ENTRIES})]
    sizes += [(scan.scan, {"NUM_TOP": count, "BLOCK": BLOCK}) for count in (10, 20)]
    sizes += [(draw.draw, {"BLOCKS": 128, "BLOCK": BLOCK}), (scan.score, {"BLOCK": BLOCK})]
    sizes += [(walk.walk, {"NODES": count}) for count in (FEWEST_NODES, 4 * FEWEST_NODES)]
    sizes += [
        (scan.rank, {"NUM_TOP": count, "BLOCKS": 128, "PLACES": places}) for count, places in ((10, 1024), (20, 2048))
    ]
    for kernel, constants in sizes:
        kinds = {
            name: next((kind for kind, names in SAMPLED.items() if name in names), "*i64") for name in kernel.arg_names
        }
        named = ", ".join(map(str, constants.values()))
        options = {"enable_fp_fusion": kernel is not edit.change}
        yield Case(f"sampler, {kernel.fn.__name__}, {named}", kernel, constants | options, torch.float32, kinds)


PARTS: dict[str, Callable[[tuple[int, int]], Iterator[Case]]] = {
    "attention": attention,
    "layers": layers,
    "products": products,
    "experts": experts,
    "sampler": sampler,
}


def _sizes(tile: ProductTile) -> str:
    return f"{tile.outputs}x{tile.tokens}x{tile.inputs}, {tile.num_warps}, {tile.num_stages}"


def main(parts: Sequence[str]) -> None:
    """Raises KeyError for a part that is none."""
    rows = []
    for part in parts or PARTS:
        for same in zip(*map(PARTS[part], CAPABILITIES), strict=True):
            cells = (case.cell(capability) for case, capability in zip(same, CAPABILITIES, strict=True))
            rows.append([same[0].name, NAMES[same[0].dtype], *cells])
    head = ("kernel, head width", "type", *(f"sm_{major}{minor}" for major, minor in CAPABILITIES))
    told = (
        f"Triton {triton.__version__}, no device. Pairs x keys of a tile, warps, stages: registers, shared and spilled"
    )
    sys.stdout.write(f"{told} bytes, by what matrices are multiplied.\n\n{table(head, rows)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
