"""Trains every server's initial acceptance model on the bundled model: `python -m decoding.training.tune_acceptance`.

Owns the run: replies to prompts of the training side, greedy and sampled, with and without the draft model, in sessions
that hold a few other replies. The acceptance model at the end is written beside its code, where every server loads it.
The prompts include none of a benchmark.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.progress import track

from decoding.config import BUNDLED_MODEL, EngineConfig
from decoding.core.files.output import check_output, write_output
from decoding.core.grammar import Grammar
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import IntArray
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.stores import acceptance_model
from decoding.stores.acceptance_model import AcceptanceModel, unmeasured_model
from decoding.training.heads.prompts import generated_prompts

TEMPERATURES = (0.0, 0.6, 0.0, 1.0)  # taken in turn
SESSION_LEN = 12  # replies
LEARNING_RATE = 0.002
MOST_TRIED = 2.0**20
BUDGETS = (8, 16, 32, 60)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "total": {"type": "integer"}, "is_done": {"type": "boolean"}},
    "required": ["name", "total", "is_done"],
    "additionalProperties": False,
}
GRAMMAR = Grammar("json_schema", json.dumps(SCHEMA))


def measure(
    draft_model: str, models: tuple[AcceptanceModel, AcceptanceModel], num_prompts: int, max_tokens: int
) -> None:
    """Let an engine with these acceptance models answer. Of eight requests one has a prediction and one a grammar."""
    engine = load_engine(EngineConfig(model=BUNDLED_MODEL, draft_model=draft_model))
    engine.sessions.acceptance_models = models
    prompts = generated_prompts(str(BUNDLED_FOLDER), num_prompts, seed=2)
    for number, prompt in enumerate(track(prompts, description=f"draft model: {draft_model}")):
        temperature = TEMPERATURES[number // 3 % len(TEMPERATURES)]  # prompts take turns by skill
        request = Request(
            id=str(number),
            prompt=np.array(prompt, np.int32),
            sampling=SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=number),
            speculation=SpeculationParams(method="auto", max_nodes=BUDGETS[number % len(BUDGETS)]),
            session_id=f"{number % 3}-{number // (3 * SESSION_LEN)}",
            eos_token_ids=engine.model.eos_token_ids,
        )
        if number % 8 == 1:
            plain = _reply(engine, replace(request, speculation=SpeculationParams(method="none")))
            request = replace(request, prediction=_edited(plain, number), session_id=f"predicted-{number}")
        if number % 8 == 5:
            request = replace(request, sampling=replace(request.sampling, grammar=GRAMMAR))
        _reply(engine, request)


def _reply(engine: Engine, request: Request) -> IntArray:
    engine.add(request)
    while engine.has_work:
        engine.step()
    return request.output.copy()


def _edited(tokens: IntArray, seed: int) -> IntArray:
    """A prediction made of a reply: in each twenty tokens up to three are replaced by up to three others. One
    prediction in four is the reply's tokens shuffled."""
    random = np.random.default_rng(seed)
    if random.random() < 0.25:
        return random.permutation(tokens)
    parts = []
    for part in np.array_split(tokens, max(1, len(tokens) // 20)):
        parts += [random.choice(tokens, random.integers(0, 4)), part[random.integers(0, 4) :]]
    return np.concatenate(parts).astype(np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what evidence is worth.")
    parser.add_argument("--prompts", type=int, default=1800, help="with and without the draft model each")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path(acceptance_model.__file__).with_name("acceptance_model.json"))
    args = parser.parse_args()
    check_output(args.out, _is_ours)
    models = (_learning(unmeasured_model()), _learning(unmeasured_model()))
    for draft_model in ("none", "auto"):
        measure(draft_model, models, args.prompts, args.max_tokens)
    command = f"tune_acceptance --prompts {args.prompts} --max-tokens {args.max_tokens}"
    told = f"python -m decoding.training.{command}: the bundled model, prompts of its training side"
    kinds = {name: _rounded(each) for name, each in zip(("greedy", "sampled"), models, strict=True)}
    write_output(args.out, json.dumps({"provenance": told, **kinds}).encode() + b"\n", _is_ours)


def _is_ours(content: bytes) -> bool:
    return content.startswith(b'{"provenance": "python -m decoding.training.tune_acceptance')


def _learning(model: AcceptanceModel) -> AcceptanceModel:
    """A copy that keeps learning however much it has seen."""
    return model._replace(most_tried=MOST_TRIED, learning_rate=LEARNING_RATE)


def _rounded(model: AcceptanceModel) -> dict[str, list[object]]:
    return {
        "chances": [round(float(chance), 5) for chance in model.chances],
        "weights": [[round(float(weight), 4) for weight in weights] for weights in model.weights],
    }


if __name__ == "__main__":
    main()
