"""What long prompts cost on a CPU with each type of cache: `python -m decoding.bench.long_prompts --model FILE`.

Each prompt's chunks are timed at a few places of its context, in turns of all types; between these places the cost of a
chunk is taken as linear, which it is. Time is the processor's, of one thread: other work on the machine changes it
little.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import product

import numpy as np
import torch

from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import BLOCK_LEN, num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_format import dtype_of
from decoding.cache.kv_store import KvStore
from decoding.config import EngineConfig
from decoding.kernels.cpu.attention.formats import FORMATS
from decoding.model.device.runner import silent
from decoding.model.target_model import TargetModel

CHUNK = 512


class Prompt:
    """A cache of random keys and values of one type, in which a model's chunks may begin anywhere."""

    def __init__(self, model: TargetModel, kv_dtype: str, most_tokens: int) -> None:
        num_slots = num_blocks_for(most_tokens + CHUNK) * BLOCK_LEN
        store = KvStore(model.layers, num_slots // BLOCK_LEN, dtype_of(kv_dtype), model.device)
        self._model, self._cache = model, KvCache(store)
        self._rows = self._cache.new_rows(most_tokens + CHUNK)
        for layer in model.layers:
            key_HMD, value_HMV = (
                torch.randn(layer.num_kv_heads, num_slots, width) for width in (layer.key_dim, layer.value_dim)
            )
            store.write(layer.index, key_HMD, value_HMV, torch.arange(num_slots))
        self._tokens = np.random.default_rng(0).integers(0, model.vocab_size, CHUNK).astype(np.int32)

    def seconds(self, num_before: int) -> float:
        """The processor's, for a chunk after `num_before` tokens."""
        self._rows.length = num_before
        batch = pack([Segment(self._rows, self._tokens, None, "last")], self._cache.store)
        started = time.process_time()
        self._model.forward(batch)
        return time.process_time() - started


def rate(lengths: list[int], seconds: list[float], num_tokens: int) -> float:
    """Tokens a second of a prompt. seconds: of a chunk after each of `lengths` tokens, ascending."""
    starts = np.arange(0, num_tokens, CHUNK)
    shares = np.minimum(num_tokens - starts, CHUNK) / CHUNK
    return num_tokens / float((np.interp(starts, lengths, seconds) * shares).sum())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m decoding.bench.long_prompts", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", default="600,2400,6000,9000,18000", help="of the prompts, apart by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-dtypes", default=",".join(FORMATS), help="apart by commas; ratios are to the first")
    chosen = parser.parse_args()
    asked, kinds = [int(each) for each in chosen.tokens.split(",")], chosen.kv_dtypes.split(",")
    if not set(kinds) <= set(FORMATS):
        parser.error(f"--kv-dtypes {chosen.kv_dtypes}: known are {', '.join(FORMATS)}")
    places, model = [0, *asked], TargetModel.load(EngineConfig(model=chosen.model, threads=1), silent)
    prompts = {kind: Prompt(model, kind, max(places)) for kind in kinds}
    best = dict.fromkeys(product(kinds, places), float("inf"))
    for _, place, kind in product(range(chosen.rounds), places, kinds):
        best[kind, place] = min(best[kind, place], prompts[kind].seconds(place))
    lines = ["| tokens | " + " | ".join(f"{kind}, tokens/s" for kind in kinds) + " |"]
    lines.append("|---|" + "---|" * len(kinds))
    for length in asked:
        rates = [rate(places, [best[kind, place] for place in places], length) for kind in kinds]
        cells = [f"{each:.0f} ({each / rates[0]:.2f})" for each in rates]
        lines.append(f"| {length:,} | {' | '.join(cells)} |")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
