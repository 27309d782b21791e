"""How long the parts of a step take on the device: attention by loads and tiles, exact and packed products, and with
the host's part commits and draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from decoding.bench.gpu.cost_model import BYTES
from decoding.bench.gpu.first_hour.bench import Bench
from decoding.bench.gpu.first_hour.record import Record
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

LAYERS = 12  # whose keys and values are more than a cache holds
Linear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LOADS = {  # requests, tokens of their contexts, rows of each
    "1 x 1 at 1k": (1, 1024, 1),
    "1 x 64 at 1k": (1, 1024, 64),
    "1 x 1 at 8k": (1, 8192, 1),
    "32 x 1 at 1k": (32, 1024, 1),
    "32 x 6 at 1k": (32, 1024, 6),
    "32 x 16 at 4k": (32, 4096, 16),
    "prompt of 2k": (1, 0, 2048),
}
BEFORE = {  # us a layer of the 8B's shape, one H100 of 80 GB, Triton 3.6, revision d7db6384, 2026-11-27
    "1 x 1 at 1k": 15.7,
    "1 x 64 at 1k": 39.5,
    "1 x 1 at 8k": 42.7,
    "32 x 1 at 1k": 135.6,
    "32 x 6 at 1k": 174.4,
    "32 x 16 at 4k": 692.7,
    "prompt of 2k": 472.6,
}
TILES = ((64, 32, 4, 3), (64, 64, 4, 3), (64, 64, 4, 2, 128), (64, 64, 8, 3))  # beside the one that is used
ROWS = (1, 16, 64, 512, 2048)


def measure(bench: Bench, record: Record) -> None:
    record.measure("attention, us", lambda: attention(bench))
    for sizes in TILES[: bench.count(len(TILES), 1)]:
        record.measure(f"attention, tiles of {sizes}, us", partial(attention, bench, sizes))
    record.measure("exact products, us", lambda: products(bench, exact_linear()))
    record.measure("products of 4 bits, us", lambda: products(bench, packed_linear(bench)))
    record.measure("commits, us", lambda: commits(bench))
    record.measure("draws, us", lambda: draws(bench))


def layers_of(bench: Bench, count: int) -> list[LayerSpec]:
    shape = bench.shape
    first = LayerSpec(
        index=0, num_query_heads=shape.heads, num_kv_heads=shape.kv_heads, key_dim=shape.head_dim,
        value_dim=shape.head_dim, scaling=shape.head_dim**-0.5,
    )  # fmt: skip
    return [replace(first, index=index) for index in range(count)]


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


def attention(bench: Bench, sizes: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Of a layer, by load: microseconds, those of an earlier revision on an H100, and the bytes a second of keys and
    values. sizes: of a tile."""
    from decoding.attention.triton.tiles import Tile
    from decoding.attention.triton.triton_attention import TritonAttention

    layers, found = layers_of(bench, bench.count(LAYERS)), {}
    tiles = None if sizes is None else [Tile(*sizes)] * len(layers)
    for name, (count, context, num_rows) in LOADS.items():
        if bench.is_small:
            count, context, num_rows = min(count, 2), min(context, 40), min(num_rows, 6)
        store = KvStore(layers, count * num_blocks_for(context + num_rows), bench.dtype, bench.device)
        batch = step_over(store, count, context, num_rows)
        backend = TritonAttention(layers, bench.dtype, bench.device, tiles)
        first = layers[0]
        query_HND = torch.randn(first.num_query_heads, batch.num_tokens, first.key_dim, device=bench.device)
        query_HND, plan = query_HND.to(bench.dtype), backend.prepare(batch)
        seconds = bench.queued_seconds([partial(backend.attend_stored, layer, query_HND, plan) for layer in layers])
        num_bytes = count * (context + num_rows) * 2 * first.num_kv_heads * first.key_dim * bench.dtype.itemsize
        found[name] = {"us": 1e6 * seconds, "before_us": BEFORE[name], "bytes_a_second": num_bytes / seconds}
    return found


def products(bench: Bench, linear: Linear) -> dict[str, Any]:
    """Of the 8B's matrix products, by rows: microseconds, and the bytes a second of weights as they were given."""
    shape, found = bench.shape, {}
    sizes = {
        "qkv": ((shape.heads + 2 * shape.kv_heads) * shape.head_dim, shape.width),
        "o": (shape.width, shape.heads * shape.head_dim),
        "gate and up": (2 * shape.inner, shape.width),
        "down": (shape.width, shape.inner),
        "head": (shape.vocab, shape.width),
    }
    for name, (num_out, num_in) in sizes.items():
        copies = bench.count(2 if name == "head" else 8, 1)  # more than a cache holds
        weights = [torch.randn(num_out, num_in, device=bench.device).to(bench.dtype) for _ in range(copies)]
        for num_rows in ROWS[: 3 if name == "head" else len(ROWS)]:
            rows = torch.randn(bench.count(num_rows, min(num_rows, 16)), num_in, device=bench.device).to(bench.dtype)
            seconds = bench.queued_seconds([partial(linear, rows, weight) for weight in weights])
            found[f"{name}, {num_rows} rows"] = {
                "us": 1e6 * seconds,
                "bytes_a_second": num_out * num_in * BYTES / seconds,
            }
    return found


def exact_linear() -> Linear:
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


def commits(bench: Bench) -> dict[str, float]:
    """Microseconds of keeping the accepted paths of a step, moves included, by requests."""
    layers, found = layers_of(bench, bench.shape.layers), {}
    path: IntArray = np.array([0, 2, 5, 9], np.int32)
    for count in (1, 8, 32):
        cache = KvCache(KvStore(layers, 4 * count, bench.dtype, bench.device))
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
    vocab_size, found, sampler = bench.count(151_936, 600), {}, DeviceSampler()

    def draw(logits_RV: torch.Tensor, asked: list[Asked]) -> object:
        return sampler.launch(logits_RV, asked).collect(0)

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
    return Asked(request, law_of(sampling), row, 1, root_only(0), None, 0, request.prompt[:0], 0, request.num_tokens)
