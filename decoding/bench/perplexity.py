"""What each type of keys and values costs on a CPU: `python -m decoding.bench.perplexity --model FILE --text FILE`.

The text's tokens are scored in windows, each of which begins from an empty cache and is read in chunks, as prompts are,
by one model over a cache of each type in turn. Invariant: all types score the same tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from math import exp
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from decoding.bench.peers.asks import ModelAsks
from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_format import dtype_of
from decoding.cache.kv_store import KvStore, bytes_per_slot
from decoding.config import EngineConfig
from decoding.errors import ConfigError
from decoding.kernels.cpu.attention.formats import FORMATS
from decoding.model.device.runner import silent
from decoding.model.target_model import TargetModel

CHUNK = 512


def nats(model: TargetModel, cache: KvCache, window: Sequence[int]) -> float:
    """Of all tokens of a window but its first."""
    tokens, rows, total = np.array(window, np.int32), cache.new_rows(len(window)), 0.0
    for first in range(0, len(tokens), CHUNK):
        chunk, then = tokens[first : first + CHUNK], tokens[first + 1 : first + 1 + CHUNK]
        logits_RV = model.forward(pack([Segment(rows, chunk)], cache.store))
        cache.store.commit(rows, np.arange(len(chunk), dtype=np.int32))
        total += float(cross_entropy(logits_RV[: len(then)], torch.from_numpy(then.astype(np.int64)), reduction="sum"))
    cache.pool.release(rows.table)
    return total


def score(model: TargetModel, windows: Sequence[Sequence[int]], kinds: Sequence[str]) -> str:
    """A row for each type: its bytes a token, the perplexity, and by how much it is above the first type's."""
    most = max(len(window) for window in windows)
    caches = {
        kind: KvCache(KvStore(model.layers, num_blocks_for(most), dtype_of(kind), model.device)) for kind in kinds
    }
    found = {kind: sum(nats(model, cache, window) for window in windows) for kind, cache in caches.items()}
    num_scored = sum(len(window) - 1 for window in windows)
    lines = [
        f"{num_scored:,} tokens scored",
        "",
        "| keys and values | bytes a token | perplexity | more |",
        "|---|---|---|---|",
    ]
    for kind, total in found.items():
        more = 100 * (exp((total - found[kinds[0]]) / num_scored) - 1)
        size = bytes_per_slot(model.layers, dtype_of(kind))
        lines.append(f"| {kind} | {size:,} | {exp(total / num_scored):.4f} | {more:+.3f}% |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m decoding.bench.perplexity", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder or a GGUF file")
    parser.add_argument("--text", type=Path, required=True, help="a text, or JSON lines with a `prompt` each")
    parser.add_argument("--kv-dtypes", default=",".join(FORMATS), help="apart by commas; the first is compared with")
    parser.add_argument("--tokens", type=int, default=30_000, help="of the text, from its beginning")
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    kinds = chosen.kv_dtypes.split(",")
    if not set(kinds) <= set(FORMATS):
        parser.error(f"--kv-dtypes {chosen.kv_dtypes}: known are {', '.join(FORMATS)}")
    try:
        windows = ModelAsks(chosen.model).windows(chosen.text, chosen.tokens, chosen.window)
        model = TargetModel.load(EngineConfig(model=str(chosen.model), device="cpu", threads=chosen.threads), silent)
    except ConfigError as error:
        parser.error(str(error))
    sys.stdout.write(score(model, windows, kinds))


if __name__ == "__main__":
    main()
