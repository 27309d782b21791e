"""Compiles the kernels of attention, layers, exact products and experts for GPUs that this machine need not have, and
prints their resources as Markdown.

`python -m decoding.bench.kernels.compile`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
import triton
from triton.compiler import ASTSource

from decoding.attention.triton.constants import constants_of
from decoding.attention.triton.tiles import EXACT, Tile, default_tile, padded_width
from decoding.bench.kernels.compiled import Compiled, compile_for
from decoding.core.layer import LayerSpec
from decoding.kernels.gpu import attention as kernels
from decoding.kernels.gpu.experts import add_chosen, lay_tiles, multiply_chosen
from decoding.kernels.gpu.moves import move
from decoding.kernels.gpu.products import Operands, add_parts, mean, multiply
from decoding.kernels.gpu.rows import gate, normalise, rotate_and_store
from decoding.model.device.grouped_experts import added_in, chosen_in, expert_tile, laid_in
from decoding.model.device.layers.device_layer import Norm, gated_in, normalised_in, rotated_in
from decoding.weights.device_products import (
    ADDED,
    LEAST_PART,
    MOST_PARTS,
    NO_FUSION,
    ProductTile,
    packing_of,
    product_tile,
)
from decoding.weights.device_products import constants_of as products_of

CAPABILITIES = [(8, 0), (9, 0), (10, 0)]
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
WORDS = {"moves", "pairs", "firsts", "chosen"}
OF_MODEL = {"query", "keys", "values", "key", "value", "sinks", "out", "rows", "weight", "bias", "results", "shares"}
OF_MODEL |= {"added", "summed", "normed", "query_norm", "key_norm", "cosines", "sines", "rotated", "gates", "ups"}
SUMS = {"sums", "stats", "factors"}
ONE = "constexpr"  # the kind of a step of 1, which Triton compiles in
PACKED_KINDS: dict[str, Any] = {"operands": Operands._make(["*u8", "*fp16", "*fp16", "*fp32", "i32", ONE])}
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


def compile_kernel(
    kernel: Any,
    constants: dict[str, Any],
    dtype: torch.dtype,
    capability: tuple[int, int],
    kinds: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compile one kernel. constants: see `constants_of`; arguments among them are constant, too. kinds: of arguments
    that are not of their usual type."""
    signature = {name: _type(name, NAMES[dtype]) for name in kernel.arg_names} | dict(kinds or {})
    signature |= {name: "constexpr" for name in signature if name in constants}
    known: dict[Any, Any] = {name: constants[name] for name, kind in signature.items() if kind == "constexpr"}
    aligned: list[tuple[int, ...]] = []
    for place, (name, kind) in enumerate(signature.items()):
        if isinstance(kind, tuple):
            known |= {(place, part): 1 for part, each in enumerate(kind) if each == ONE}
            aligned += [(place, part) for part, each in enumerate(kind) if each != ONE]
        elif kind.startswith("*") or name in NUMBERS - COUNTS:
            aligned.append((place,))
    source = ASTSource(kernel, signature, known, {path: [["tt.divisibility", 16]] for path in aligned})
    options = {name: value for name, value in constants.items() if name not in signature}
    return compile_for(source, 10 * capability[0] + capability[1], options)


def _type(name: str, dtype: str) -> Any:
    if name == "step":
        return kernels.Step._make(["*i32"] * len(kernels.Step._fields))
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


def tile_for(layer: LayerSpec, dtype: torch.dtype, capability: tuple[int, int]) -> Tile:
    return default_tile(padded_width(max(layer.key_dim, layer.value_dim)), dtype.itemsize, capability)


def compile_attend(layer: LayerSpec, dtype: torch.dtype, capability: tuple[int, int]) -> Compiled:
    """Compile `attend_tiles` with the default tile."""
    constants = constants_of(layer, tile_for(layer, dtype, capability), 0, 1)
    return compile_kernel(kernels.attend_tiles, constants.attend, dtype, capability)


def compile_move(dtype: torch.dtype, capability: tuple[int, int]) -> Compiled:
    """Compile what moves the rows of accepted paths."""
    widths = dict.fromkeys(("KEY_DIM", "VALUE_DIM", "KEY_WIDTH", "VALUE_WIDTH"), 128)
    return compile_kernel(move, widths | {"NUM_HEADS": 8, "num_warps": 4}, dtype, capability)


def compile_product(
    dtype: torch.dtype, capability: tuple[int, int], is_whole: bool, packing: dict[str, int] = PACKINGS["exact"]
) -> Compiled:
    """Compile `multiply` for a layer of two parts. is_whole: as for many rows."""
    tile, width, is_packed = product_tile(dtype, packing["BITS"] > 0), 2 * LEAST_PART, packing["BITS"] > 0
    constants = products_of(width, is_whole, tile) | packing | {"OUTPUTS": 4096, "PARTS": 2, "HAS_BIAS": True}
    kinds = PACKED_KINDS if is_packed else {}
    kinds = kinds if is_whole else {**kinds, "out": "*fp32"}
    return compile_kernel(multiply, constants, dtype, capability, kinds)


def compile_rows(dtype: torch.dtype, capability: tuple[int, int]) -> tuple[Compiled, Compiled]:
    """Compile what adds up a layer's parts, and means."""
    parts = {"OUTPUTS": 4096, "PARTS": MOST_PARTS, "HAS_BIAS": True, "N": ADDED} | NO_FUSION
    means = {"WIDTH": 4096, "N": 4096} | NO_FUSION
    return compile_kernel(add_parts, parts, dtype, capability), compile_kernel(mean, means, dtype, capability)


def compile_layer(dtype: torch.dtype, capability: tuple[int, int], width: int = 8192) -> dict[str, Compiled]:
    """Compile what a fused layer of this width computes between its products, with norms of queries and keys."""
    norm = Norm(torch.ones(128), 1e-6)
    kernels = {
        "norm and sum": (normalise, normalised_in(width, 1e-6, True)),
        "rotation and store": (rotate_and_store, rotated_in(layer_of(4, 128, 128), (norm, norm))),
        "silu and product": (gate, gated_in(width)),
    }
    return {name: compile_kernel(*kernel, dtype, capability) for name, kernel in kernels.items()}


def compile_experts(
    dtype: torch.dtype, capability: tuple[int, int], packing: dict[str, int] = PACKINGS["exact"]
) -> Compiled:
    """Compile `multiply_chosen` for experts with biases, of which a row has eight."""
    tile = expert_tile(dtype, packing["BITS"] > 0)
    constants = chosen_in((1536, 2048), 8, True, tile) | packing
    return compile_kernel(multiply_chosen, constants, dtype, capability, PACKED_KINDS if packing["BITS"] else {})


def compile_pairs(dtype: torch.dtype, capability: tuple[int, int]) -> tuple[Compiled, Compiled]:
    """Compile what shares pairs out to tiles, and what adds them up."""
    tiles = compile_kernel(lay_tiles, laid_in(512), dtype, capability)
    return tiles, compile_kernel(add_chosen, added_in(8, 128, 2048), dtype, capability)


def _lines() -> Iterator[str]:
    yield f"Triton {triton.__version__}, no device. Pairs x keys of a tile, warps, stages: registers,"
    yield "shared and spilled bytes, by what matrices are multiplied.\n"
    yield "| kernel, head width | type | " + " | ".join(f"sm_{major}{minor}" for major, minor in CAPABILITIES) + " |"
    yield "|---|---|" + "---|" * len(CAPABILITIES)
    cases = [(f"attend, {name}", layer, torch.bfloat16) for name, layer in HEADS.items()]
    for name, layer, dtype in [*cases, ("attend, 128, 4 share keys", layer_of(4, 128, 128), torch.float32)]:
        yield _line(name, dtype, [_attend_cell(layer, dtype, capability) for capability in CAPABILITIES])
    store, _, merge = constants_of(layer_of(4, 128, 128), EXACT, 0, 1)
    for name, kernel, constants in (("store", kernels.store_rows, store), ("merge", kernels.merge_ranges, merge)):
        made = [compile_kernel(kernel, constants, torch.bfloat16, capability) for capability in CAPABILITIES]
        yield _line(
            f"{name}, 128", torch.bfloat16, [f"{each.registers}, {each.shared:,}, {each.spilled}" for each in made]
        )
    made = [compile_move(torch.bfloat16, capability) for capability in CAPABILITIES]
    yield _line("move, 128", torch.bfloat16, [f"{each.registers}, {each.shared:,}, {each.spilled}" for each in made])
    layers = [compile_layer(torch.bfloat16, capability) for capability in CAPABILITIES]
    for name in layers[0]:
        cells = [f"{each[name].registers}, {each[name].shared:,}, {each[name].spilled}" for each in layers]
        yield _line(f"layer, {name}", torch.bfloat16, cells)
    for name, packing in PACKINGS.items():
        for dtype, is_whole in product((torch.bfloat16, torch.float32), (False, True)):
            tile = product_tile(dtype, packing["BITS"] > 0)
            made = [compile_product(dtype, capability, is_whole, packing) for capability in CAPABILITIES]
            rows = "many" if is_whole else "few"
            yield _line(f"product, {name}, {rows} rows", dtype, [_product_cell(tile, each) for each in made])
    both = zip(*(compile_rows(torch.bfloat16, capability) for capability in CAPABILITIES), strict=True)
    for name, each_made in zip(("product, adding parts", "mean, 4,096"), both, strict=True):
        cells = [f"{each.registers}, {each.shared:,}, {each.spilled}" for each in each_made]
        yield _line(name, torch.bfloat16, cells)

    for name, packing in PACKINGS.items():
        for dtype in (torch.bfloat16, torch.float32):
            tile = expert_tile(dtype, packing["BITS"] > 0)
            made = [compile_experts(dtype, capability, packing) for capability in CAPABILITIES]
            yield _line(f"experts, {name}", dtype, [_product_cell(tile, each) for each in made])
    both = zip(*(compile_pairs(torch.bfloat16, capability) for capability in CAPABILITIES), strict=True)
    for name, each_made in zip(("experts, tiles of 512", "experts, adding 8"), both, strict=True):
        cells = [f"{each.registers}, {each.shared:,}, {each.spilled}" for each in each_made]
        yield _line(name, torch.bfloat16, cells)


def _product_cell(tile: ProductTile, made: Compiled) -> str:
    sizes = f"{tile.outputs}x{tile.tokens}x{tile.inputs}, {tile.num_warps}, {tile.num_stages}"
    return f"{sizes}: {made.registers}, {made.shared:,}, {made.spilled}, {made.product}"


def _attend_cell(layer: LayerSpec, dtype: torch.dtype, capability: tuple[int, int]) -> str:
    tile, made = tile_for(layer, dtype, capability), compile_attend(layer, dtype, capability)
    sizes = f"{tile.pairs}x{tile.keys}, {tile.num_warps}, {tile.num_stages}"
    return f"{sizes}: {made.registers}, {made.shared:,}, {made.spilled}, {made.product}"


def _line(name: str, dtype: torch.dtype, cells: list[str]) -> str:
    return "| " + " | ".join([name, NAMES[dtype], *cells]) + " |"


if __name__ == "__main__":
    for line in _lines():
        print(line, flush=True)  # noqa: T201
