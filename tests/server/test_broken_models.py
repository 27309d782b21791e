"""Broken models, drawn at random: each is refused in one sentence, or serves what transformers makes of it."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding.config import EngineConfig
from decoding.core.sampling_params import SamplingParams
from decoding.engine.compiling.kernels import Kernels
from decoding.engine.start import load_engine
from decoding.errors import GanderError, RequestRejected
from server.config import ServerSettings
from server.models.prompt_files import load_prompts
from tests.asking import ask
from tests.server.broken_models import TYPES, break_at_random, make_whole

PROMPT, NUM_TOKENS = np.array([72, 101, 108, 108], np.int32), 6
NUM_BROKEN, NUM_QUICK = 200, 12
FEW_SLOTS = 256  # of the cache
MOST_KIB = 2**20
TEXT = "Hello <|end|>"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for model_type in TYPES:
        make_whole(folder / model_type, model_type)
    return folder


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels()


def refusal(folder: Path, kernels: Kernels) -> str | None:
    """The sentence that the model is refused with; None where it serves, and then rightly."""
    try:
        template, tokenizer = load_prompts(ServerSettings(model=str(folder)))
        if template is not None:
            template.close()
        tokenizer.decode(tokenizer.encode(TEXT))
        engine = load_engine(
            EngineConfig(model=str(folder), device="cpu", threads=1, kv_slots=FEW_SLOTS), kernels=kernels
        )
    except GanderError as error:
        return str(error)
    try:
        reply = ask(engine, PROMPT, SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)).tokens
    except RequestRejected:  # a context of three tokens
        return None
    assert reply == transformers_reply(folder, engine.model.eos_token_ids, len(reply))
    return None


def transformers_reply(folder: Path, eos_token_ids: frozenset[int], most: int) -> list[int]:
    """The likeliest tokens, one after the other."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = PROMPT.tolist()
    with torch.inference_mode():
        while len(ids) < len(PROMPT) + most and ids[-1] not in eos_token_ids:
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def check(folder: Path, kernels: Kernels, seed: int) -> None:
    what = break_at_random(folder, seed)
    said = refusal(folder, kernels)
    assert said is None or (said.strip() and "\n" not in said and len(said) < 1000), (what, said)


@pytest.mark.parametrize("seed", range(NUM_QUICK))
def test_a_random_broken_model_is_refused_or_served_rightly(
    whole: Path, tmp_path: Path, kernels: Kernels, seed: int
) -> None:
    check(shutil.copytree(whole / TYPES[seed % len(TYPES)], tmp_path / "broken"), kernels, seed)


@pytest.mark.slow
def test_so_is_each_of_many_and_none_takes_much_memory(whole: Path, tmp_path: Path, kernels: Kernels) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(NUM_QUICK, NUM_BROKEN):
        folder = shutil.copytree(whole / TYPES[seed % len(TYPES)], tmp_path / str(seed))
        check(folder, kernels, seed)
        shutil.rmtree(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KIB
