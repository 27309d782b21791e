"""What `auto` makes of a prediction that is right with some chance, beside plain decoding, on random weights.

Knows nothing of tables. Invariant: both gave the same tokens.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import numpy as np

from decoding.bench.contestant import Contestant, Reply, Task
from decoding.config import EngineConfig
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel

CHANCES = (1.0, 0.7, 0.4, 0.0)  # that a predicted token is the reply's
PROMPT_LEN, REPLY_LEN = 64, 96


def drafted_ratios(model: TargetModel, config: EngineConfig, rounds: int, by_processor: bool) -> list[float]:
    """For each of `CHANCES` plain decoding's seconds over those of `auto`, prompts included: the median of rounds, each
    with another prompt. Raises RuntimeError where replies differ."""
    engine = start_engine(model, replace(config, prefix_cache=False, kv_slots=4 * (PROMPT_LEN + REPLY_LEN)))
    plain, auto = (
        Contestant(engine, method, SpeculationParams(method=method), is_cold=True) for method in ("none", "auto")
    )
    ratios: list[list[float]] = [[] for _ in CHANCES]
    for number in range(rounds):
        random = np.random.default_rng(number)
        prompt = random.integers(0, model.vocab_size, PROMPT_LEN, dtype=np.int32)
        task = Task(prompt=prompt, max_tokens=REPLY_LEN, temperature=0.0, seed=0, ignore_eos=True)
        for chance, found in zip(CHANCES, ratios, strict=True):
            expected = plain.answer(task)
            wrong = random.integers(0, model.vocab_size, REPLY_LEN, dtype=np.int32)
            predicted = np.where(random.random(REPLY_LEN) < chance, expected.tokens, wrong)
            reply = auto.answer(replace(task, prediction=predicted))
            if not np.array_equal(reply.tokens, expected.tokens):
                raise RuntimeError(f"with a prediction the reply to prompt {number} was another one")
            found.append(_seconds(expected, by_processor) / _seconds(reply, by_processor))
    return [median(found) for found in ratios]


def _seconds(reply: Reply, by_processor: bool) -> float:
    return reply.cpu_seconds if by_processor else reply.seconds
