"""How long the parts of a step take alone: attention by ranges and tiles, matrix products, commits, draws."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from decoding.bench.gpu.cost_model import BYTES, ModelShape
from decoding.bench.gpu.first_hour.bench import Bench
from decoding.bench.gpu.first_hour.deadline import Measure
from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvStore
from decoding.core.layer import LayerSpec
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import IntArray, root_only
from decoding.sampling.asked import Asked
from decoding.sampling.law import law_of
from decoding.weights.numbers.device_codes import TILE, CodeTensors, DeviceCodes

SPLITS = (64, 128, 256)  # keys of the first ranges
Linear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LOADS = {  # requests, tokens of their contexts, rows of each
    "1 root at 1k": (1, 1024, 1),
    "1 tree of 64 at 1k": (1, 1024, 64),
    "1 root at 8k": (1, 8192, 1),
    "32 roots at 1k": (32, 1024, 1),
    "32 trees of 6 at 1k": (32, 1024, 6),
    "1 prompt of 2k": (1, 0, 2048),
}
# Ranges are constants of kernels, so each length is tried in a process of its own, where they are set before anything
# is compiled; the host's part is not timed.
PROGRAM = """
import sys
from decoding.attention.triton import work
work.SPLIT = int(sys.argv[1])
from decoding.bench.gpu.first_hour import kernels
kernels.print_attention(sys.argv[2], sys.argv[3] == "small")
"""


def measures(bench: Bench) -> dict[str, Measure]:
    found: dict[str, Measure] = {
        f"attention, ranges of {split}": partial(attention_in_ranges, bench, split) for split in SPLITS
    }
    return found | {
        "tiles": lambda: tiles(bench),
        "products": lambda: products(bench, torch.nn.functional.linear),
        "exact products": lambda: products(bench, exact_linear(bench)),
        "products of 4 bits": lambda: products(bench, packed_linear(bench)),
        "commits": lambda: commits(bench),
        "draws": lambda: draws(bench),
    }


def layer_of(shape: ModelShape) -> LayerSpec:
    return LayerSpec(
        index=0, num_query_heads=shape.heads, num_kv_heads=shape.kv_heads, key_dim=shape.head_dim,
        value_dim=shape.head_dim, scaling=shape.head_dim**-0.5,
    )  # fmt: skip


def step_over(store: KvStore, count: int, context: int, num_rows: int) -> StepBatch:
    """Trees that fork at every other node, or a prompt."""
    cache, segments = KvCache(store), []
    for _ in range(count):
        rows = cache.new_rows(context + num_rows)
        rows.length = context
        parents = None if context == 0 else np.maximum(np.arange(num_rows) - 2, -1).astype(np.int32)
        if parents is not None:
            parents[1:2] = 0
        segments.append(Segment(rows, np.zeros(num_rows, np.int32), parents))
    return pack(segments, store)


def attention(bench: Bench, tile: Any = None) -> dict[str, float]:
    """Microseconds of a layer's attention, by load."""
    from decoding.attention.triton.triton_attention import TritonAttention

    layer = layer_of(bench.shape(1))
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    found = {}
    for name, (count, context, num_rows) in LOADS.items():
        if bench.is_small:
            count, context, num_rows = min(count, 2), min(context, 40), min(num_rows, 6)
        store = KvStore([layer], count * num_blocks_for(context + num_rows), dtype, bench.device)
        batch = step_over(store, count, context, num_rows)
        backend = TritonAttention([layer], dtype, bench.device, tile and [tile])
        heads = layer.num_query_heads, layer.num_kv_heads, layer.num_kv_heads
        query, key, value = (
            torch.randn(1, each, batch.num_tokens, layer.key_dim, device=bench.device).to(dtype) for each in heads
        )
        plan = backend.prepare(batch)
        found[name] = 1e6 * bench.seconds(partial(backend.attend, layer, query, key, value, plan))
    return found


def print_attention(device: str, is_small: bool) -> None:
    with np.errstate(all="ignore"):
        sys.stdout.buffer.write(msgspec.json.encode(attention(Bench(torch.device(device), is_small))))


def attention_in_ranges(bench: Bench, split: int) -> dict[str, float]:
    command = [sys.executable, "-c", PROGRAM, str(split), str(bench.device), "small" if bench.is_small else "full"]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}  # compiled code on the disk knows other ranges
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    return msgspec.json.decode(done.stdout, type=dict[str, float])


def tiles(bench: Bench) -> dict[str, Any]:
    """Of the tiles that the device can run, by the first load that has one root, a tree and a prompt each."""
    from triton.runtime.errors import OutOfResources

    from decoding.attention.triton.tiles import Tile

    found: dict[str, Any] = {}
    for tile in (Tile(pairs, keys, 4 * warps, 3) for pairs in (16, 64) for keys in (32, 64) for warps in (1, 2)):
        try:
            found[str(tuple(tile))] = attention(bench, tile)
        except OutOfResources as error:
            found[str(tuple(tile))] = str(error)
        if bench.is_small:
            break
    return found


def exact_linear(_bench: Bench) -> Linear:
    from decoding.weights.device_products import linear

    return linear


def packed_linear(bench: Bench) -> Linear:
    """Of weights' first numbers, as bytes of 4-bit codes."""
    matrices: dict[int, DeviceCodes] = {}

    def linear(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if weight.data_ptr() not in matrices:
            num_out, num_in = weight.shape
            row_bytes = -(-num_in // TILE) * TILE // 2
            codes = weight.view(torch.uint8).flatten()[: num_out * row_bytes].view(num_out, -1)
            scales = torch.full((num_out, -(-num_in // 128)), 0.01, dtype=torch.float16, device=bench.device)
            tensors = CodeTensors(codes, scales, scales, torch.ones(num_out, device=bench.device))
            matrices[weight.data_ptr()] = DeviceCodes((num_out, num_in), 4, 128, 8, tensors, None, rows.dtype)
        return matrices[weight.data_ptr()].multiply(rows)

    return linear


def products(bench: Bench, linear: Linear) -> dict[str, Any]:
    """Microseconds of the 8B shape's matrix products by rows, and the bytes a second of weights as they were given."""
    shape, found = bench.shape(1), {}
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    sizes = {
        "qkv": ((shape.heads + 2 * shape.kv_heads) * shape.head_dim, shape.width),
        "o": (shape.width, shape.heads * shape.head_dim),
        "gate and up": (2 * shape.inner, shape.width),
        "down": (shape.width, shape.inner),
        "head": (shape.vocab, shape.width),
    }
    for name, (num_out, num_in) in sizes.items():
        copies = bench.count(4, 1)  # more than the cache holds of the small ones
        weights = [torch.randn(num_out, num_in, device=bench.device).to(dtype) for _ in range(copies)]
        for num_rows in (1, 16, 64, 256):
            rows = torch.randn(num_rows, num_in, device=bench.device).to(dtype)

            def multiply(rows: torch.Tensor = rows, weights: Sequence[torch.Tensor] = weights) -> None:
                for weight in weights:
                    linear(rows, weight)

            seconds = bench.seconds(multiply) / copies
            found[f"{name}, {num_rows} rows"] = {
                "us": 1e6 * seconds,
                "bytes_a_second": num_out * num_in * BYTES / seconds,
            }
    return found


def commits(bench: Bench) -> dict[str, float]:
    """Microseconds of keeping the accepted paths of a step, moves included, by requests."""
    shape, found = bench.shape(1), {}
    layers = [layer_of(shape)] * shape.layers
    path: IntArray = np.array([0, 2, 5, 9], np.int32)
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    for count in (1, 8, 32):
        cache = KvCache(KvStore(layers, 4 * count, dtype, bench.device))
        sequences = [cache.new_rows(64) for _ in range(count)]

        def commit(sequences: Any = sequences, store: KvStore = cache.store) -> None:
            for rows in sequences:
                rows.length = 3
                store.commit(rows, path)
            store.settle()

        found[str(count)] = 1e6 * bench.seconds(commit)
    return found


def draws(bench: Bench) -> dict[str, float]:
    """Microseconds of drawing a step's tokens, its copies included, by rows and law."""
    from decoding.sampling.device.device_sampler import DeviceSampler

    laws = {
        "greedy": SamplingParams(max_tokens=4, temperature=0.0),
        "top-p": SamplingParams(max_tokens=4, temperature=0.8, top_p=0.95),
        "top-k and top-p": SamplingParams(max_tokens=4, temperature=0.8, top_k=50, top_p=0.95),
        "ten likeliest": SamplingParams(max_tokens=4, temperature=0.0, logprobs=10),
    }
    vocab_size, found = bench.count(151_936, 600), {}

    def draw(logits_RV: torch.Tensor, asked: list[Asked]) -> object:
        return DeviceSampler().launch(logits_RV, asked).collect(0)

    for num_rows in (1, 32):
        logits_RV = 3 * torch.randn(num_rows, vocab_size, device=bench.device)
        for name, sampling in laws.items():
            asked = [_asked(sampling, row) for row in range(num_rows)]
            found[f"{name}, {num_rows} rows"] = 1e6 * bench.seconds(partial(draw, logits_RV, asked), 10)
            if bench.is_small:
                break
    return found


def _asked(sampling: SamplingParams, row: int) -> Asked:
    request = Request(
        id=str(row), prompt=np.zeros(1, np.int32), sampling=sampling, speculation=SpeculationParams(),
        eos_token_ids=frozenset(),
    )  # fmt: skip
    return Asked(request, law_of(sampling), row, 1, root_only(0), None, 0, request.prompt[:0], 0)
