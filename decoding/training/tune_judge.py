"""Measures what evidence is worth on the bundled model: `python -m decoding.training.tune_judge`.

Owns the run: replies to prompts of the training side, greedy and sampled, with and without the draft model, each from
a session that has seen a few others. What the server's judge has learned by the end is written beside it, where every
server starts from it. No prompt of a benchmark is among them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.progress import track

from decoding.config import BUNDLED_MODEL, EngineConfig
from decoding.core.grammar import Grammar
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import IntArray
from decoding.engine.engine import Engine
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.stores import judge
from decoding.stores.judge import Judge, meant_judge
from decoding.training.heads.prompts import generated_prompts

TEMPERATURES = (0.0, 0.6, 0.0, 1.0)  # turn by turn
SESSION_LEN = 12  # replies
PACE = 0.002
MOST_TRIED = 2.0**20
BUDGETS = (8, 16, 32, 60)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "total": {"type": "integer"}, "is_done": {"type": "boolean"}},
    "required": ["name", "total", "is_done"],
    "additionalProperties": False,
}
GRAMMAR = Grammar("json_schema", json.dumps(SCHEMA))


def measure(draft_model: str, judges: tuple[Judge, Judge], num_prompts: int, max_tokens: int) -> None:
    """Let an engine answer, its server's judges being these. Of eight replies one is drafted for from a prediction and
    one has a grammar."""
    engine = Engine.load(EngineConfig(model=BUNDLED_MODEL, draft_model=draft_model))
    engine.sessions.judges = judges
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
    """The same with a few tokens replaced, put in or left out at every twenty or so; of four one that has nothing to do
    with it."""
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
    parser.add_argument("--out", type=Path, default=Path(judge.__file__).with_name("judge.json"))
    args = parser.parse_args()
    judges = (_learning(meant_judge()), _learning(meant_judge()))
    for draft_model in ("none", "auto"):
        measure(draft_model, judges, args.prompts, args.max_tokens)
    told = (
        f"python -m decoding.training.tune_judge --prompts {args.prompts} --max-tokens {args.max_tokens}: the bundled"
        " model, prompts of its training side"
    )
    kinds = {name: _rounded(each) for name, each in zip(("greedy", "sampled"), judges, strict=True)}
    args.out.write_text(json.dumps({"provenance": told, **kinds}) + "\n", encoding="utf-8")


def _learning(judge: Judge) -> Judge:
    """One that keeps learning, whatever it has seen."""
    return judge._replace(most_tried=MOST_TRIED, pace=PACE)


def _rounded(judge: Judge) -> dict[str, list[object]]:
    return {
        "chances": [round(float(chance), 5) for chance in judge.chances],
        "weights": [[round(float(weight), 4) for weight in weights] for weights in judge.weights],
    }


if __name__ == "__main__":
    main()
