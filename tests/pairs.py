"""A target and a draft model that agrees with it often but not always, and requests for an engine over both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from decoding.cache.block_pool import BLOCK_LEN
from decoding.config import EngineConfig
from decoding.core.events import Finished
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import RequestStats, StepStats
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model import timing
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.target_model import TargetModel
from decoding.model.timing import ModelTimings
from tests.asking import own_nodes
from tests.models import EOS_TOKEN_ID, VOCAB_SIZE, correlated, tiny

MAX_MODEL_LEN = 400
CONFIG = EngineConfig(max_model_len=MAX_MODEL_LEN, kv_slots=8192, max_batch_rows=200, max_nodes=32, threads=1)
GREEDY = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=32, temperature=0.8, top_p=0.95, seed=1234, ignore_eos=True)
NOISE = 0.02


class GivenTimings(KeptMeasurements):
    """Says of any model what its forwards took that takes sequences of this length: none is timed."""

    def __init__(self, max_model_len: int) -> None:
        self._max_model_len = max_model_len

    def read(self, fingerprint: str, kind: type[Any]) -> Any:  # noqa: ARG002 - the same for all
        if kind is not ModelTimings:
            return None
        longest = self._max_model_len
        short, long = timing.SHORT_CONTEXT, min(timing.LONG_CONTEXT, longest // 2)
        sizes = [(rows, short) for rows in timing.ROWS] + [(rows, long) for rows in timing.ROWS[:: timing.LONG_STRIDE]]
        sizes = [(rows, context) for rows, context in sizes if context + rows <= longest]
        quickest = [(rows, context, self.seconds(rows, context)) for rows, context in sizes]
        return ModelTimings(threads=1, head=1e-6, quickest=quickest, experts=self.experts())

    def seconds(self, num_rows: int, context: int) -> float:
        return 1e-3 + 5e-5 * num_rows + 3e-8 * num_rows * context

    def experts(self) -> list[tuple[int, float]]:
        """How many experts so many rows chose; none where nobody asked."""
        return []

    def write(self, fingerprint: str, timings: Any) -> None:
        """Nothing was timed."""


GIVEN = GivenTimings(MAX_MODEL_LEN)


def target_of(model_type: str) -> TargetModel:
    return TargetModel.from_model(tiny(model_type), CONFIG)


def draft_of(model_type: str, max_model_len: int | None = 400) -> TargetModel:
    """The target's weights with noise."""
    config = replace(CONFIG, max_model_len=max_model_len)
    return TargetModel.from_model(correlated(model_type, NOISE), config)


def engine_of(model_type: str) -> Engine:
    return start_engine(target_of(model_type), CONFIG, draft_model=draft_of(model_type), kept=GIVEN)


def prompt_of(length: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(3, vocab_size, length).astype(np.int32)


def request_of(
    name: str, prompt: NDArray[np.int32], sampling: SamplingParams = GREEDY, method: str = "none", **options: object
) -> Request:
    """One whose trees are of its method's own size, whatever they cost, unless `options` says otherwise."""
    options.setdefault("max_nodes", own_nodes(method, CONFIG.max_nodes))
    speculation = SpeculationParams(method=method, **options)  # type: ignore[arg-type]
    return Request(id=name, prompt=prompt, sampling=sampling, speculation=speculation, session_id=name)


def finish(engine: Engine, *, with_guest: bool = False) -> tuple[dict[str, RequestStats], list[StepStats]]:
    """Run until nothing is left; what each request cost, and each step. Nobody holds a block then.

    with_guest: in two of three steps somebody else has taken every block that was to be had.
    """
    ended, steps = {}, []
    for number in range(5000):
        if not engine.has_work:
            break
        guest = engine.pool.open()
        if with_guest and number % 3:
            assert engine.pool.resize(guest, engine.pool.num_available * BLOCK_LEN)
        result = engine.step()
        engine.pool.check_integrity()
        engine.pool.release(guest)
        ended.update({finished.request_id: finished.stats for finished in result.of(Finished)})
        steps += [result.stats] if result.stats else []
    assert not engine.has_work
    assert engine.pool.num_held == 0
    return ended, steps


def reply(engine: Engine, request: Request) -> list[int]:
    engine.add(request)
    finish(engine)
    return request.output.tolist()


def write_tokenizer(folder: Path) -> Path:
    """A byte for each token of the tiny models, as far as there are tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda letter: (ord(letter) > 126, letter))
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": EOS_TOKEN_ID}
    vocabulary |= {letter: 3 + place for place, letter in enumerate(letters[: VOCAB_SIZE - 3])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
