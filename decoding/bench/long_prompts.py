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

from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.config import EngineConfig, KvDtype
from decoding.model.device.runner import silent
from decoding.model.target_model import TargetModel

TYPES: tuple[KvDtype, ...] = ("float32", "bfloat16")
CHUNK = 512


class Prompt:
    """A model and a cache of random keys and values of one type, in which chunks may begin anywhere."""

    def __init__(self, model: str, kv_dtype: KvDtype, most_tokens: int) -> None:
        self._model = TargetModel.load(EngineConfig(model=model, threads=1, kv_dtype=kv_dtype), silent)
        self._cache = KvCache(self._model.new_store(num_blocks_for(most_tokens + CHUNK)))
        self._rows = self._cache.new_rows(most_tokens + CHUNK)
        for layer in range(len(self._model.layers)):
            for plane in self._cache.store.planes(layer):
                plane.normal_()
        self._tokens = np.random.default_rng(0).integers(0, self._model.vocab_size, CHUNK).astype(np.int32)

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
    chosen = parser.parse_args()
    asked = [int(each) for each in chosen.tokens.split(",")]
    places = [0, *asked]
    prompts = {kind: Prompt(chosen.model, kind, max(places)) for kind in TYPES}
    best = dict.fromkeys(product(TYPES, places), float("inf"))
    for _, place, kind in product(range(chosen.rounds), places, TYPES):
        best[kind, place] = min(best[kind, place], prompts[kind].seconds(place))
    lines = ["| tokens | " + " | ".join(f"{kind}, tokens/s" for kind in TYPES) + " | ratio |"]
    lines.append("|---|" + "---|" * (len(TYPES) + 1))
    for length in asked:
        rates = [rate(places, [best[kind, place] for place in places], length) for kind in TYPES]
        lines.append(f"| {length:,} | {' | '.join(f'{each:.0f}' for each in rates)} | {rates[1] / rates[0]:.2f} |")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
