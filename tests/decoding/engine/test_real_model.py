"""A file that people have, SmolLM2-135M-Instruct in Q4_1: what is drafted for it is what it says."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from decoding.config import EngineConfig
from decoding.core.grammar import Grammar
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.drafting import registry
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.model.checkpoint import folder_of
from tests.asking import ask

FOLDER = os.environ.get("GANDER_REAL_MODELS")
MODEL = Path(FOLDER or "") / "smollm2.gguf"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not MODEL.is_file(), reason="GANDER_REAL_MODELS names no folder that holds smollm2.gguf"),
]

METHODS = sorted(set(registry.available(has_draft_model=False)) - {registry.PLAIN})
PROMPT = """<|im_start|>user
Repeat this list, and then its first half once more: red, green, blue, white, red, green, blue, white.<|im_end|>
<|im_start|>assistant
red, green,"""
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
WARM = replace(GREEDY, temperature=0.7, seed=7)
LAWS = {
    "greedy": GREEDY,
    "sampled": WARM,
    "grammar": replace(WARM, grammar=Grammar("regex", "( (red|green|blue|white),)+")),
    "logprobs": replace(GREEDY, logprobs=2),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine(EngineConfig(model=str(MODEL), device="cpu", threads=1, max_model_len=512, kv_slots=4096))


@pytest.fixture(scope="module")
def prompt() -> NDArray[np.int32]:
    tokenizer = Tokenizer.from_file(f"{folder_of(str(MODEL))}/tokenizer.json")
    return np.array(tokenizer.encode(PROMPT).ids, np.int32)


@pytest.mark.parametrize("law", LAWS)
def test_every_method_gives_the_plain_tokens(engine: Engine, prompt: NDArray[np.int32], law: str) -> None:
    assert engine.model.is_exact
    plain = ask(engine, prompt, LAWS[law])
    accepted = 0
    for method in METHODS:
        drafted = ask(engine, prompt, LAWS[law], method)
        assert (drafted.tokens, drafted.logprobs, drafted.reason) == (plain.tokens, plain.logprobs, plain.reason), (
            method
        )
        assert drafted.stats is not None
        accepted += drafted.stats.counts.accepted
    assert accepted > 0


def test_four_choices_in_one_batch_are_those_asked_alone(engine: Engine, prompt: NDArray[np.int32]) -> None:
    choices = [replace(WARM, seed=seed) for seed in range(4)]
    alone = [ask(engine, prompt, choice).tokens for choice in choices]
    requests = [
        Request(
            id=f"choice-{number}",
            prompt=prompt,
            sampling=choice,
            speculation=SpeculationParams(method="auto"),
            eos_token_ids=engine.model.eos_token_ids,
        )
        for number, choice in enumerate(choices)
    ]
    for request in requests:
        engine.add(request)
    for _ in range(1000):
        if not engine.has_work:
            break
        engine.step()
    assert [request.output.tolist() for request in requests] == alone
    assert len({tuple(tokens) for tokens in alone}) > 1
