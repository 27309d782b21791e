"""The bundled model, with its draft model or its head: on text, every method has the tokens of plain decoding."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from decoding.bench.gpu.first_hour.bench import Bench, start_of
from decoding.bench.gpu.first_hour.record import Record
from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.drafting.registry import PLAIN
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.model.checkpoint import BUNDLED_FOLDER

TEXTS = (
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n",
    "Once upon a time there was a",
    "Question: Tom has 3 apples and buys 4 more. How many",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
)
TEMPERATURES = (0.0, 0.8)
MODEL_LEN = 1024


def measure(bench: Bench, record: Record) -> None:
    told: list[str] = []
    small = {"kv_slots": 4096, "threads": 1} if bench.is_small else {}
    config = EngineConfig(device=str(bench.device), max_model_len=MODEL_LEN, **small)  # type: ignore[arg-type]
    engine = record.measure(
        "start",
        lambda: load_engine(config, lambda sentence, _: told.append(sentence)),
        lambda engine: start_of(engine, told),
    )
    if engine is not None:
        record.measure("same tokens", lambda: same_tokens(bench, engine))


def same_tokens(bench: Bench, engine: Engine) -> dict[str, Any]:
    """Of each method and temperature, how many replies are the plain ones, in how many steps and seconds."""
    tokenizer, found = Tokenizer.from_file(str(BUNDLED_FOLDER / "tokenizer.json")), {}
    prompts = [np.array(tokenizer.encode(text).ids, np.int32) for text in TEXTS]
    methods = [PLAIN, *(each for each in engine.methods if each != PLAIN)]
    for temperature in TEMPERATURES:
        plain: list[Request] = []
        for method in methods:
            requests = [_request(bench, prompt, method, temperature, seed) for seed, prompt in enumerate(prompts)]
            started, steps = time.perf_counter(), 0
            for request in requests:
                engine.add(request)
            while engine.has_work:
                engine.step()
                steps += 1
            plain = plain or requests
            same = sum(one.output.tolist() == other.output.tolist() for one, other in zip(plain, requests, strict=True))
            seconds = round(time.perf_counter() - started, 2)
            found[f"{method}, T = {temperature}"] = {"same": same, "of": len(plain), "steps": steps, "seconds": seconds}
    return found


def compile_host(bench: Bench, record: Record) -> None:
    """Have everything compiled that the host runs beside a device: an engine of the bundled model on the CPU, with
    attention that could be captured, answers by every method."""
    config = EngineConfig(device="cpu", attention="padded", max_model_len=256, kv_slots=1024, threads=1)
    record.measure("kernels of the host", lambda: same_tokens(bench, load_engine(config)), lambda _: {})


def _request(bench: Bench, prompt: Any, method: str, temperature: float, seed: int) -> Request:
    return Request(
        id=f"{method} {temperature} {seed}",
        prompt=prompt,
        sampling=SamplingParams(
            max_tokens=bench.count(96, 8), temperature=temperature, top_p=0.95, seed=seed, ignore_eos=True
        ),
        speculation=SpeculationParams(method=method),
    )
