"""Our own engine as a peer: plain, and drafting by prompt lookup, a draft model, or all sources.

Every prompt has its own session, since prompts repeat. Unlike the other adapters this one imports the package, which
the running interpreter has.
"""

from collections.abc import Callable
from dataclasses import fields
from itertools import count
from typing import Any

import numpy as np

import decoding
from decoding.bench.contestant import step
from decoding.config import EngineConfig
from decoding.core.events import PromptLogprobs, Tokens
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.start import load_engine

CALIBRATION_ROUNDS = 6  # measurements of step costs before the comparison starts
METHODS = {"plain": "none", "prompt lookup": "lookup", "draft model": "dynamic", "auto": "auto"}
NODES = {"lookup": 10}  # at any price, as the others draft


class Peer:
    version = decoding.__version__

    def __init__(self, options: dict[str, Any]) -> None:
        """Raises ValueError if the engine does not support the dtype."""
        self._engine = load_engine(_config(options))
        for _ in range(CALIBRATION_ROUNDS):
            self._engine.on_idle()
        self._numbers = count()
        self.draftings = [name for name in METHODS if options["draft_model"] or name != "draft model"]
        self.steps, self.phase_seconds = 0, dict[str, float]()

    def answer(self, task: dict[str, Any], on_token: Callable[[], None]) -> list[int]:
        """Answer a task; also count the steps after the prompt's last one and sum up their phases."""
        engine, method, number = self._engine, METHODS[task["drafting"]], str(next(self._numbers))
        request = Request(
            id=number,
            prompt=np.array(task["prompt"], np.int32),
            sampling=SamplingParams(max_tokens=task["max_tokens"], temperature=0.0, ignore_eos=not task["end_tokens"]),
            speculation=SpeculationParams(method=method, max_nodes=NODES.get(method)),
            eos_token_ids=frozenset(task["end_tokens"]),
            session_id=number,
        )
        engine.add(request)
        self.steps, self.phase_seconds = 0, {}
        while engine.has_work:
            result = step(engine)
            if result.of(Tokens):
                on_token()
            if result.stats is not None and result.stats.prefill_rows == 0:
                self.steps += 1
                for phase, seconds in result.stats.phase_seconds.items():
                    self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + seconds
        tokens: list[int] = request.output.tolist()
        return tokens

    def nats(self, window: list[int]) -> float:
        number, nats = str(next(self._numbers)), 0.0
        request = Request(
            id=number,
            prompt=np.array(window, np.int32),
            sampling=SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0),
            speculation=SpeculationParams(method="none", max_nodes=0),
            eos_token_ids=frozenset(),
            session_id=number,
        )
        self._engine.add(request)
        while self._engine.has_work:
            for scored in step(self._engine).of(PromptLogprobs):
                nats -= sum(token.logprob for token in scored.logprobs if token is not None)
        return nats


def _config(options: dict[str, Any]) -> EngineConfig:
    dtype = options["dtype"]
    chosen: dict[str, Any] = {"int8": {"weights": "int8"}, "gguf": {}}.get(dtype, {"dtype": dtype})
    if not chosen.keys() <= {field.name for field in fields(EngineConfig)}:
        raise ValueError(f"this engine has no {dtype} weights")
    return EngineConfig(
        model=options["model"],
        draft_model=options["draft_model"] or "none",
        threads=options["threads"],
        max_model_len=options["max_len"],
        prefix_cache=False,
        **chosen,
    )
