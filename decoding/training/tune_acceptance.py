"""Trains every server's initial acceptance model on the replies of real models.

    python -m decoding.training.tune_acceptance --data FOLDER small.gguf large.gguf large.gguf+small.gguf

Owns the run: chats of the training side of public prompt sets, greedy and sampled, with and without a draft model, in
sessions that hold a few other replies. The acceptance model at the end is written beside its code, where every server
loads it; evidence that never came up keeps what it was worth before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
from rich.progress import track
from transformers import AutoTokenizer

from decoding.config import EngineConfig
from decoding.core.files.output import check_output, write_output
from decoding.core.grammar import Grammar
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import IntArray
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.model.checkpoint import folder_of
from decoding.stores import acceptance_model
from decoding.stores.acceptance_model import AcceptanceModel, measured_models, unmeasured_model
from decoding.training.public_prompts import Prompt, as_chat, training_prompts

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


def measure(pair: str, models: tuple[AcceptanceModel, AcceptanceModel], prompts: Sequence[Prompt], most: int) -> None:
    """Let an engine with these acceptance models answer. Of eight requests one has a prediction and one a grammar.
    pair: a model, or TARGET+DRAFT; most: tokens of a reply."""
    target, _, draft_model = pair.partition("+")
    engine = load_engine(EngineConfig(model=target, draft_model=draft_model or "none", max_model_len=2048))
    engine.sessions.acceptance_models = models
    tokenizer = AutoTokenizer.from_pretrained(folder_of(target))
    for number, prompt in enumerate(track(prompts, description=pair)):
        temperature = TEMPERATURES[number // 4 % len(TEMPERATURES)]  # prompts take turns by kind
        request = Request(
            id=str(number),
            prompt=np.array(as_chat(tokenizer, prompt.turns[0])[:1024], np.int32),
            sampling=SamplingParams(max_tokens=most, temperature=temperature, seed=number),
            speculation=SpeculationParams(method="auto", max_nodes=BUDGETS[number % len(BUDGETS)]),
            session_id=f"{number % 4}-{number // (4 * SESSION_LEN)}",
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
    parser.add_argument(
        "pairs", nargs="+", metavar="MODEL[+DRAFT_MODEL]", help="a folder or GGUF file with a chat template"
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="of public prompt sets")
    parser.add_argument("--prompts", type=int, default=60, help="of each prompt set and pair")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path(acceptance_model.__file__).with_name("acceptance_model.json"))
    args = parser.parse_args()
    check_output(args.out, _is_ours)
    models = (_learning(unmeasured_model()), _learning(unmeasured_model()))
    sets = training_prompts(args.data, args.prompts)
    prompts = [prompt for prompt in chain.from_iterable(zip_longest(*sets.values())) if prompt is not None]
    for pair in args.pairs:
        measure(pair, models, prompts, args.max_tokens)
    pairs = ", ".join("+".join(Path(name).stem for name in pair.split("+")) for pair in args.pairs)
    command = f"tune_acceptance --prompts {args.prompts} --max-tokens {args.max_tokens}"
    told = f"python -m decoding.training.{command}: {pairs}; training sides of {', '.join(sets)}"
    completed = [_completed(*pair) for pair in zip(models, measured_models(), strict=True)]
    kinds = {name: _rounded(each) for name, each in zip(("greedy", "sampled"), completed, strict=True)}
    write_output(args.out, json.dumps({"provenance": told, **kinds}).encode() + b"\n", _is_ours)


def _is_ours(content: bytes) -> bool:
    return content.startswith(b'{"provenance": "python -m decoding.training.tune_')


def _learning(model: AcceptanceModel) -> AcceptanceModel:
    """A copy that keeps learning however much it has seen."""
    return model._replace(most_tried=MOST_TRIED, learning_rate=LEARNING_RATE)


def _completed(model: AcceptanceModel, before: AcceptanceModel) -> AcceptanceModel:
    """With what no reply came to as `before` has it."""
    blank = unmeasured_model()
    chances = np.where(model.chances == blank.chances, before.chances, model.chances)
    return model._replace(
        chances=chances, weights=np.where(model.weights == blank.weights, before.weights, model.weights)
    )


def _rounded(model: AcceptanceModel) -> dict[str, list[object]]:
    return {
        "chances": [round(float(chance), 5) for chance in model.chances],
        "weights": [[round(float(weight), 4) for weight in weights] for weights in model.weights],
        "reliability": [round(float(chance), 5) for chance in model.reliability[0]],
    }


if __name__ == "__main__":
    main()
