"""The cost of verifying n tokens: `gander bench shapes` prints the curve of any model. Also shapes of random weights.

Knows nothing of workloads or drafters.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

import msgspec
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from decoding.bench.options import positive
from decoding.bench.tables.table import Table
from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.config import EngineConfig
from decoding.model.target_model import TargetModel

DTYPES = ("float32", "bfloat16")
ROWS = (1, 2, 4, 8, 16, 32, 64)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a Llama with tied embeddings and no grouped heads."""

    num_layers: int
    width: int
    num_heads: int
    mlp_width: int
    vocab_size: int

    def build(self, dtype: str) -> LlamaForCausalLM:
        config = LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.width,
            intermediate_size=self.mlp_width,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=None,
        )
        torch.manual_seed(0)
        return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


GPT2_SIZED = Shape(num_layers=12, width=768, num_heads=12, mlp_width=2048, vocab_size=32000)


def verify_curve(
    model: TargetModel, context: int, repeats: int = 9, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, list[float]]:
    """Seconds of a forward of one token at `context`, and t(n) / t(1) for `ROWS`: medians of interleaved forwards."""
    cache = KvCache(model.new_store(num_blocks_for(context + max(ROWS))))
    store, rows = cache.store, cache.new_rows(context + max(ROWS))
    model.forward(pack([Segment(rows, np.zeros(context, np.int32))], store))
    store.commit(rows, np.arange(context, dtype=np.int32))
    seconds: dict[int, list[float]] = {num_rows: [] for num_rows in ROWS}
    for _ in range(repeats):
        for num_rows in ROWS:
            batch = pack([Segment(rows, np.zeros(num_rows, np.int32))], store)
            started = clock()
            model.forward(batch)[0, 0].item()
            seconds[num_rows].append(clock() - started)
    plain = median(seconds[1])
    return plain, [median(seconds[num_rows]) / plain for num_rows in ROWS]


def main(argv: Sequence[str] | None = None) -> int:
    """Print one model's curve."""
    parser = argparse.ArgumentParser(prog="gander bench shapes", description=__doc__)
    parser.add_argument("--model", default="gosling", help="a folder or a hub name")
    parser.add_argument("--weights", default="float32", choices=(*DTYPES, "int8"))
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--context", type=positive, default=128, help="tokens before the rows")
    parser.add_argument("--rounds", type=positive, default=21)
    parser.add_argument("--processor", action="store_true", help="count processor time, for busy machines")
    chosen = parser.parse_args(argv)
    kind = {"weights": "int8"} if chosen.weights == "int8" else {"dtype": chosen.weights}
    room = chosen.context + max(ROWS)
    config = EngineConfig(model=chosen.model, threads=chosen.threads, max_model_len=room, **kind)
    clock = time.process_time if chosen.processor else time.perf_counter
    model = TargetModel.load(config, lambda *_: None)
    plain, ratios = verify_curve(model, chosen.context, chosen.rounds, clock)
    head = ("weights", "one row, ms", *(f"t({num_rows})" for num_rows in ROWS))
    cells = (chosen.weights, f"{1000 * plain:.1f}", *(f"{ratio:.2f}" for ratio in ratios))
    sys.stdout.write(f"{Table(head, [cells]).markdown()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
