"""Calculates the seconds of a decoding step on a GPU from bytes, bandwidth and a fixed cost per operation.

We measured nothing here. Every constant names its source, or says that it is an assumption.
Invariant: a step is the sum of its matrix products (bound by reading or by computing), its small operations one after
the other, and the host's part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

BYTES = 2  # of a weight, a key or a value in bfloat16
LOGIT_BYTES = 4
READ_SHARE = 0.85  # the share of the bandwidth that matrix products of few rows reach: an assumption
COMPUTE_SHARE = 0.6  # the share of the peak that products of some hundred rows reach: an assumption
SMALL_SECONDS = 2.2e-6  # of a small kernel in a graph, with the gap after it: an assumption
# Seconds of an operation that Python launches: 4-5 us in modelling code, measured on a CPU, and 4-6 us for the launch
# (susun-blog.com/blog/pegainfer-3-cuda-graph).
EAGER_SECONDS = 10e-6
HOST_SECONDS = 0.4e-3  # of a step outside its forward, both copies included: an assumption, our own budget


class Launches(NamedTuple):
    """Of a layer: matrix products, attention, everything else."""

    products: int
    attention: int
    others: int


# Of a Qwen3 layer in bfloat16, as tests count them: by transformers' code seven products, three launches of attention
# (storing keys and values, attending, merging) and the rest; compiled, two norms, the rotation with its norms, the
# activation and a copy should be left of that. Fused, queries, keys and values are one product, gate and up another,
# and the rotation stores.
LAUNCHES = {
    "as they come": Launches(7, 3, 46),
    "graphs": Launches(7, 3, 46),
    "compiled": Launches(7, 3, 5),
    "fused": Launches(4, 2, 5),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes as in a Llama-like configuration."""

    name: str
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def weights(self) -> int:
        """The number of weights that a step reads: all but the embeddings, of which it reads a few rows."""
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.inner) + self.width * self.vocab

    @property
    def kv_bytes(self) -> int:
        """The bytes of one token's keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES


@dataclass(frozen=True, slots=True)
class Gpu:
    """bandwidth: bytes a second; peak: dense bfloat16 operations a second. From NVIDIA's data sheets."""

    name: str
    bandwidth: float
    peak: float


@dataclass(frozen=True, slots=True)
class Load:
    """rows: tokens that a step runs for each sequence, its root and the drafted ones. tokens: that it emits for
    each."""

    sequences: int
    context: int
    rows: int = 1
    tokens: float = 1.0


QWEN3 = (  # the config.json of Qwen/Qwen3-0.6B, 8B and 32B
    ModelShape("0.6B", 28, 1024, 3072, 16, 8, 128, 151_936),
    ModelShape("8B", 36, 4096, 12_288, 32, 8, 128, 151_936),
    ModelShape("32B", 64, 5120, 25_600, 64, 8, 128, 151_936),
)
LLAMA_8B = ModelShape("Llama 3.1 8B", 32, 4096, 14_336, 32, 8, 128, 128_256)
H100, H200 = Gpu("H100", 3.35e12, 989e12), Gpu("H200", 4.8e12, 989e12)  # SXM
A100_40, H100_NVL = Gpu("A100 40 GB", 1.555e12, 312e12), Gpu("H100 NVL", 3.9e12, 835e12)


def bound_seconds(model: ModelShape, gpu: Gpu, load: Load) -> float:
    """The lower bound of a step's seconds: to read everything once, or to compute it."""
    return max(_bytes(model, load) / gpu.bandwidth, _operations(model, load) / gpu.peak)


def step_seconds(model: ModelShape, gpu: Gpu, load: Load, way: str) -> float:
    """The seconds of one step. way: one of `LAUNCHES`."""
    reading = _bytes(model, load) / (READ_SHARE * gpu.bandwidth)
    products = max(reading, _operations(model, load) / (COMPUTE_SHARE * gpu.peak))
    launches = LAUNCHES[way]
    small = model.layers * (launches.attention + launches.others)
    if way == "as they come":  # the slower of device and host counts, as they work at the same time
        return max(products, EAGER_SECONDS * model.layers * sum(launches)) + HOST_SECONDS
    return products + SMALL_SECONDS * small + HOST_SECONDS


def tokens_a_second(model: ModelShape, gpu: Gpu, load: Load, way: str) -> float:
    """The tokens a second of all sequences together."""
    return load.sequences * load.tokens / step_seconds(model, gpu, load, way)


def _bytes(model: ModelShape, load: Load) -> float:
    keys = load.sequences * load.context * model.kv_bytes
    return model.weights * BYTES + keys + load.sequences * load.rows * model.vocab * LOGIT_BYTES * 2


def _operations(model: ModelShape, load: Load) -> float:
    return 2.0 * model.weights * load.sequences * load.rows
